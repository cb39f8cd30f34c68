/**
 * A server on loopback that speaks the hub's protocol: revisions, paged trees, `resolve`, large files behind a redirect to another
 * origin, ranges, gates, and the failures that tests ask for. Python's huggingface_hub works with it unmodified.
 */
import { createHash } from 'node:crypto';
import { once } from 'node:events';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { handleWrite, type Writes } from './hub-writes.ts';

export interface HubRepo {
  readonly files: Readonly<Record<string, Uint8Array | string>>;
  /** Branches and tags beside `main`, all of the same commit. */
  readonly refs?: readonly string[];
  /** Files that are stored as large ones, behind a redirect; default: .safetensors and .gguf. */
  readonly isLarge?: (path: string) => boolean;
  readonly isGated?: boolean;
  readonly isPrivate?: boolean;
}

/** Failures, by path; each is used up as often as it says. */
export interface Faults {
  /** Ends the connection after so many bytes of the body. */
  cuts?: { readonly path: string; readonly afterBytes: number; times: number }[];
  /** Sends nothing more after so many bytes. */
  stalls?: { readonly path: string; readonly afterBytes: number; times: number }[];
  /** Flips a bit of the body. */
  damages?: { readonly path: string; times: number }[];
  /** Answers with this status. */
  statuses?: { readonly path: string; readonly status: number; times: number }[];
  /** The storage host ignores ranges. */
  hasNoRanges?: boolean;
  /** Announces another size in the tree than the file has. */
  claimedSizes?: Readonly<Record<string, number>>;
}

export interface HubRequest {
  readonly method: string;
  readonly host: 'hub' | 'storage';
  readonly path: string;
  readonly range: string | null;
  readonly authorization: string | null;
}

export interface HubServer {
  readonly endpoint: string;
  readonly requests: HubRequest[];
  faults: Faults;
  readonly repos: Map<string, HubRepo>;
  readonly writes: Writes;
  readonly commitOf: (repo: string) => string;
  readonly close: () => Promise<void>;
}

const pageSize = 3;
export const validToken = 'hf_validTokenOfTheTest';

/** Two origins, as the hub has: one that knows repositories, and one that holds large files and must never see a token. */
export async function startHub(repos: Readonly<Record<string, HubRepo>>): Promise<HubServer> {
  const state = { repos: new Map(Object.entries(repos)), requests: [] as HubRequest[], faults: {} as Faults };
  const writes: Writes = { repos: state.repos, objects: new Map(), failingUploads: 0 };
  const storage = createServer((request, response) => {
    record(state.requests, 'storage', request);
    const [repo = '', path = ''] = decodeURIComponent(pathOf(request).slice(1)).split('|');
    const content = toBytes(state.repos.get(repo)?.files[path] ?? '');
    sendBody(request, response, content, path, state.faults, {});
  });
  const storageUrl = await listen(storage);
  const hub = createServer((request, response) => {
    record(state.requests, 'hub', request);
    const isWrite = request.method === 'POST' || request.method === 'PUT';
    if (
      isWrite &&
      (pathOf(request).startsWith('/upload/') || request.headers.authorization === `Bearer ${validToken}`)
    ) {
      void handleWrite(request, response, writes, `http://${request.headers.host}`).then((isKnown) => {
        if (!isKnown) sendError(response, 404, 'RepoNotFound', 'Repository not found');
      });
      return;
    }
    handle(request, response, state, storageUrl, `http://${request.headers.host}`);
  });
  const endpoint = await listen(hub);
  return {
    endpoint,
    requests: state.requests,
    repos: state.repos,
    writes,
    get faults() {
      return state.faults;
    },
    set faults(value) {
      state.faults = value;
    },
    commitOf: (repo) => commitOf(repo, state.repos.get(repo) as HubRepo),
    close: async () => {
      for (const server of [hub, storage]) {
        server.closeAllConnections();
        server.close();
        await once(server, 'close');
      }
    },
  };
}

/** What the hub names a content by. */
export function checksumsOf(content: Uint8Array | string): { readonly blobId: string; readonly sha256: string } {
  const bytes = toBytes(content);
  return {
    blobId: createHash('sha1').update(`blob ${bytes.length}\0`).update(bytes).digest('hex'),
    sha256: createHash('sha256').update(bytes).digest('hex'),
  };
}

interface State {
  readonly repos: Map<string, HubRepo>;
  readonly faults: Faults;
}

function handle(
  request: IncomingMessage,
  response: ServerResponse,
  state: State,
  storageUrl: string,
  ownUrl: string,
): unknown {
  const path = pathOf(request);
  const api = /^\/api\/models\/([^/]+\/[^/]+)\/(revision|tree)\/([^/]+)$/.exec(path);
  const file = /^\/([^/]+\/[^/]+)\/resolve\/([^/]+)\/(.+)$/.exec(path);
  const name = api?.[1] ?? file?.[1] ?? '';
  const revision = decodeURIComponent(api?.[3] ?? file?.[2] ?? '');
  const repo = state.repos.get(name);
  const hasToken = request.headers.authorization === `Bearer ${validToken}`;
  if (repo === undefined || (repo.isPrivate && !hasToken)) {
    return sendError(response, hasToken ? 404 : 401, 'RepoNotFound', 'Repository not found');
  }
  const commit = commitOf(name, repo);
  const known = ['main', commit, commit.slice(0, 7), ...(repo.refs ?? [])];
  if (!known.includes(revision)) return sendError(response, 404, 'RevisionNotFound', `Invalid rev id: ${revision}`);
  const fault = takeFault(state.faults.statuses, file === null ? path : decodeURIComponent(file[3] ?? ''));
  if (fault !== undefined) return sendError(response, fault.status, '', 'a fault of the test');
  if (api !== null) {
    if (api[2] === 'revision') return sendJson(response, describeModel(name, repo, commit));
    return sendTree(request, response, repo, state.faults, ownUrl);
  }
  if (repo.isGated && !hasToken) {
    const isAnonymous = request.headers.authorization === undefined;
    return sendError(response, isAnonymous ? 401 : 403, 'GatedRepo', `Access to model ${name} is restricted.`);
  }
  return sendFile(
    request,
    response,
    { repo, name, path: decodeURIComponent(file?.[3] ?? ''), commit, storageUrl },
    state.faults,
  );
}

function describeModel(name: string, repo: HubRepo, commit: string): object {
  const siblings = Object.keys(repo.files).map((rfilename) => ({ rfilename }));
  return {
    _id: '0123456789abcdef01234567',
    id: name,
    modelId: name,
    sha: commit,
    private: repo.isPrivate ?? false,
    gated: repo.isGated ? 'manual' : false,
    disabled: false,
    downloads: 0,
    likes: 0,
    tags: [],
    lastModified: '2026-01-01T00:00:00.000Z',
    siblings,
  };
}

function sendTree(
  request: IncomingMessage,
  response: ServerResponse,
  repo: HubRepo,
  faults: Faults,
  ownUrl: string,
): void {
  const url = new URL(request.url ?? '', ownUrl);
  const start = Number(url.searchParams.get('cursor') ?? 0);
  const all = Object.entries(repo.files).map(([path, content]) => {
    const { blobId, sha256 } = checksumsOf(content);
    const size = faults.claimedSizes?.[path] ?? toBytes(content).length;
    const lfs = isLarge(repo, path) && { oid: blobId, lfs: { oid: sha256, size, pointerSize: 134 } };
    return { type: 'file', oid: blobId, size, path, ...lfs };
  });
  const headers: Record<string, string> = {};
  if (start + pageSize < all.length) {
    url.searchParams.set('cursor', String(start + pageSize));
    headers.link = `<${url.href}>; rel="next"`;
  }
  sendJson(response, all.slice(start, start + pageSize), headers);
}

interface WantedFile {
  readonly repo: HubRepo;
  readonly name: string;
  readonly path: string;
  readonly commit: string;
  readonly storageUrl: string;
}

function sendFile(request: IncomingMessage, response: ServerResponse, wanted: WantedFile, faults: Faults): unknown {
  const { repo, name, path, commit, storageUrl } = wanted;
  const content = repo.files[path];
  if (content === undefined) return sendError(response, 404, 'EntryNotFound', 'Entry not found', commit);
  const { blobId, sha256 } = checksumsOf(content);
  if (!isLarge(repo, path)) {
    return sendBody(request, response, toBytes(content), path, faults, {
      'x-repo-commit': commit,
      etag: `"${blobId}"`,
    });
  }
  response.writeHead(302, {
    'x-repo-commit': commit,
    'x-linked-etag': `"${sha256}"`,
    'x-linked-size': toBytes(content).length,
    location: `${storageUrl}/${encodeURIComponent(`${name}|${path}`)}`,
  });
  return response.end();
}

function sendBody(
  request: IncomingMessage,
  response: ServerResponse,
  whole: Uint8Array,
  path: string,
  faults: Faults,
  headers: Readonly<Record<string, string>>,
): unknown {
  const from = faults.hasNoRanges ? 0 : Number(/^bytes=(\d+)-/.exec(request.headers.range ?? '')?.[1] ?? 0);
  if (from > 0 && from >= whole.length) return sendError(response, 416, '', 'range');
  const body = Buffer.from(whole.subarray(from));
  const range = { 'content-range': `bytes ${from}-${whole.length - 1}/${whole.length}` };
  const isPartial = from > 0 || (request.headers.range !== undefined && !faults.hasNoRanges);
  response.writeHead(isPartial ? 206 : 200, { ...headers, 'content-length': body.length, ...(isPartial && range) });
  if (request.method === 'HEAD') return response.end();
  if (takeFault(faults.damages, path) !== undefined) body[body.length - 1] = (body.at(-1) ?? 0) ^ 1;
  const cut = takeFault(faults.cuts, path);
  if (cut !== undefined) return response.write(body.subarray(0, cut.afterBytes), () => response.destroy());
  const stall = takeFault(faults.stalls, path);
  if (stall !== undefined) return response.write(body.subarray(0, stall.afterBytes));
  return response.end(body);
}

function takeFault<T extends { readonly path: string; times: number }>(
  list: readonly T[] | undefined,
  path: string,
): T | undefined {
  const fault = list?.find((candidate) => candidate.path === path && candidate.times > 0);
  if (fault !== undefined) fault.times -= 1;
  return fault;
}

function isLarge(repo: HubRepo, path: string): boolean {
  return repo.isLarge?.(path) ?? /\.(safetensors|gguf)$/.test(path);
}

function commitOf(name: string, repo: HubRepo): string {
  const hash = createHash('sha1').update(name);
  for (const [path, content] of Object.entries(repo.files)) hash.update(path).update(toBytes(content));
  return hash.digest('hex');
}

function sendJson(response: ServerResponse, value: unknown, headers: Readonly<Record<string, string>> = {}): void {
  response.writeHead(200, { 'content-type': 'application/json', ...headers });
  response.end(JSON.stringify(value));
}

function sendError(response: ServerResponse, status: number, code: string, message: string, commit?: string): void {
  const headers = { 'x-error-code': code, 'x-error-message': message, 'content-type': 'application/json' };
  response.writeHead(status, { ...headers, ...(commit !== undefined && { 'x-repo-commit': commit }) });
  response.end(JSON.stringify({ error: message }));
}

function record(requests: HubRequest[], host: HubRequest['host'], request: IncomingMessage): void {
  requests.push({
    method: request.method ?? '',
    host,
    path: pathOf(request),
    range: request.headers.range ?? null,
    authorization: request.headers.authorization ?? null,
  });
}

function pathOf(request: IncomingMessage): string {
  return new URL(request.url ?? '', 'http://localhost').pathname;
}

function toBytes(content: Uint8Array | string): Uint8Array {
  return typeof content === 'string' ? Buffer.from(content) : content;
}

async function listen(server: Server): Promise<string> {
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
}
