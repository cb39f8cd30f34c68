/**
 * A connection to an MCP server: its tools and resources as plain data, its calls bounded and typed. Layer 5.
 * Source: Model Context Protocol, revision 2025-11-25, by the official SDK. Left out: prompts, sampling, elicitation, OAuth.
 */
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StdioClientTransport } from '@modelcontextprotocol/sdk/client/stdio.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import type { Transport } from '@modelcontextprotocol/sdk/shared/transport.js';
import { ApiError, ConfigError, messageOf } from '../core/errors.ts';
import { refuseUnknownKeys } from '../core/options.ts';
import { withDeadline } from '../sdk/deadline.ts';

/** A program that is started and spoken to over its standard streams, or the URL of a server (streamable HTTP). */
export type McpServer =
  | {
      readonly command: string;
      readonly args?: readonly string[];
      /** Of the program; default: the few variables that any program needs, not this process's secrets. */
      readonly env?: Readonly<Record<string, string>>;
      readonly cwd?: string;
    }
  | { readonly url: string; readonly headers?: Readonly<Record<string, string>> };

export interface McpTool {
  readonly name: string;
  readonly description: string | null;
  /** JSON schema of the arguments. */
  readonly inputSchema: Readonly<Record<string, unknown>>;
}

export interface McpResource {
  readonly uri: string;
  readonly name: string;
  readonly description: string | null;
  readonly mimeType: string | null;
}

export interface McpToolResult {
  /** Text parts, one a line; of other parts their kind. */
  readonly text: string;
  /** The tool says that it failed; the text says why. */
  readonly isError: boolean;
}

export interface McpOptions {
  /** Limit of connecting, and of each list; default 30 s. */
  readonly timeoutMs?: number;
  readonly signal?: AbortSignal;
}

export interface McpCallOptions {
  /** Default 60 s; 0 = no limit. */
  readonly timeoutMs?: number;
  readonly signal?: AbortSignal | undefined;
}

/** Pages of a list that a server may send. */
const maxPages = 100;

/** A server under its name; end it with `close` or `await using`. */
export class McpSession implements AsyncDisposable {
  readonly name: string;
  readonly tools: readonly McpTool[];
  readonly resources: readonly McpResource[];
  readonly #client: Client;

  /** Made by `connectMcp`. */
  constructor(name: string, client: Client, tools: readonly McpTool[], resources: readonly McpResource[]) {
    this.name = name;
    this.#client = client;
    this.tools = tools;
    this.resources = resources;
  }

  /** Throws ApiError if the server refuses the call or is gone, AbortedError at the limit; what a tool reports is a result. */
  async callTool(
    name: string,
    args: Readonly<Record<string, unknown>>,
    options: McpCallOptions = {},
  ): Promise<McpToolResult> {
    refuseUnknownKeys(`${this.name}: tool ${name}`, options, ['timeoutMs', 'signal']);
    const { timeoutMs = 60_000, signal } = options;
    const result = await attempt(`${this.name}: call of ${name}`, timeoutMs, signal, (request) =>
      this.#client.callTool({ name, arguments: { ...args } }, undefined, request),
    );
    const content = (result.content ?? []) as readonly Part[];
    const text =
      content.length > 0 ? content.map(partText).join('\n') : JSON.stringify(result.structuredContent ?? null);
    return { text, isError: result.isError === true };
  }

  /** The text of a resource; parts that are not text are named by their type. */
  async readResource(uri: string, options: McpCallOptions = {}): Promise<string> {
    refuseUnknownKeys(`${this.name}: resource ${uri}`, options, ['timeoutMs', 'signal']);
    const { timeoutMs = 60_000, signal } = options;
    const { contents } = await attempt(`${this.name}: resource ${uri}`, timeoutMs, signal, (request) =>
      this.#client.readResource({ uri }, request),
    );
    return contents.map((part) => ('text' in part ? part.text : `[${part.mimeType ?? 'binary data'}]`)).join('\n');
  }

  /** Ends the connection, and the program where one was started. Idempotent. */
  async close(): Promise<void> {
    await this.#client.close();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }
}

/**
 * Connects and reads what the server offers. Throws ConfigError for a server that is neither command nor URL, ApiError if it cannot be
 * reached or does not speak MCP, AbortedError at the limit; nothing is left running then.
 */
export async function connectMcp(server: McpServer, options: McpOptions = {}): Promise<McpSession> {
  refuseUnknownKeys('connectMcp', options, ['timeoutMs', 'signal']);
  const { timeoutMs = 30_000, signal } = options;
  const { name, transport } = createTransport(server);
  const client = new Client({ name: 'agent-reinforcement-trainer', version: '1' });
  try {
    await attempt(`${name}: connection`, timeoutMs, signal, (request) => client.connect(transport, request));
    const offers = client.getServerCapabilities() ?? {};
    const tools =
      offers.tools === undefined
        ? []
        : await readPages(`${name}: list of tools`, (cursor) =>
            attempt(`${name}: list of tools`, timeoutMs, signal, (request) =>
              client.listTools({ cursor }, request),
            ).then((page) => ({
              items: page.tools.map(toTool),
              next: page.nextCursor,
            })),
          );
    const resources =
      offers.resources === undefined
        ? []
        : await readPages(`${name}: list of resources`, (cursor) =>
            attempt(`${name}: list of resources`, timeoutMs, signal, (request) =>
              client.listResources({ cursor }, request),
            ).then((page) => ({ items: page.resources.map(toResource), next: page.nextCursor })),
          );
    return new McpSession(name, client, tools, resources);
  } catch (error) {
    await client.close().catch(() => {});
    throw error;
  }
}

function createTransport(server: McpServer): { readonly name: string; readonly transport: Transport } {
  if ('command' in server) {
    refuseUnknownKeys('MCP server', server, ['command', 'args', 'env', 'cwd']);
    const { command, args = [], env, cwd } = server;
    const parameters = { command, args: [...args], ...(env && { env: { ...env } }), ...(cwd !== undefined && { cwd }) };
    return { name: `MCP server ${command}`, transport: new StdioClientTransport({ ...parameters, stderr: 'ignore' }) };
  }
  refuseUnknownKeys('MCP server', server, ['url', 'headers']);
  if (!URL.canParse(server.url)) {
    throw new ConfigError(`MCP server: must be a command or a URL like http://host:3000/mcp, got ${server.url}`);
  }
  const requestInit = { headers: { ...server.headers } };
  // The SDK's optional members are not declared `| undefined`, as exactOptionalPropertyTypes wants it.
  const transport = new StreamableHTTPClientTransport(new URL(server.url), { requestInit }) as Transport;
  return { name: `MCP server ${new URL(server.url).host}`, transport };
}

interface Request {
  readonly signal: AbortSignal;
  readonly timeout: number;
}

/** Runs a call of the SDK under a limit of our own, which also covers what the SDK does not limit. */
function attempt<T>(
  what: string,
  timeoutMs: number,
  signal: AbortSignal | undefined,
  work: (request: Request) => Promise<T>,
): Promise<T> {
  return withDeadline({ what, timeoutMs, signal }, async (stop) => {
    try {
      // The SDK's own limit comes later, so that it is ours that is reported.
      return await work({ signal: stop, timeout: timeoutMs === 0 ? 2 ** 31 - 1 : timeoutMs + 10_000 });
    } catch (cause) {
      if (stop.aborted) throw stop.reason;
      // The SDK's error for an HTTP answer has its status as `code`; those of JSON-RPC are negative.
      const { code } = cause as { readonly code?: unknown };
      const status = typeof code === 'number' && code > 0 ? code : 0;
      throw new ApiError(`${what}: ${status > 0 ? `HTTP ${status}: ` : ''}${messageOf(cause)}`, status, { cause });
    }
  });
}

interface Page<T> {
  readonly items: readonly T[];
  readonly next: string | undefined;
}

async function readPages<T>(what: string, read: (cursor: string | undefined) => Promise<Page<T>>): Promise<T[]> {
  const items: T[] = [];
  let cursor: string | undefined;
  for (let page = 0; page < maxPages; page++) {
    const { items: more, next } = await read(cursor);
    items.push(...more);
    if (next === undefined) return items;
    cursor = next;
  }
  throw new ApiError(`${what}: must end within ${maxPages} pages, got more`, 0);
}

interface Part {
  readonly type: string;
  readonly text?: string;
  readonly mimeType?: string;
  readonly uri?: string;
  readonly resource?: { readonly text?: string; readonly uri: string };
}

function partText(part: Part): string {
  if (part.type === 'text') return part.text ?? '';
  if (part.type === 'resource') return part.resource?.text ?? `[${part.resource?.uri ?? 'resource'}]`;
  return `[${part.mimeType ?? part.uri ?? part.type}]`;
}

function toTool(tool: { name: string; description?: string | undefined; inputSchema: object }): McpTool {
  return {
    name: tool.name,
    description: tool.description ?? null,
    inputSchema: tool.inputSchema as McpTool['inputSchema'],
  };
}

function toResource(resource: {
  uri: string;
  name: string;
  description?: string | undefined;
  mimeType?: string | undefined;
}): McpResource {
  const { uri, name, description = null, mimeType = null } = resource;
  return { uri, name, description, mimeType };
}
