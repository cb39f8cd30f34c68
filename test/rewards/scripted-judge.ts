/**
 * A judge on loopback that does what a script says, call by call: real HTTP, chat completions and Anthropic's messages.
 * The script sees which scores are asked for, and answers well or badly.
 */
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { afterEach } from 'vitest';

export interface JudgeCall {
  /** From 0. */
  readonly index: number;
  readonly protocol: 'chat-completions' | 'messages';
  readonly body: Readonly<Record<string, unknown>>;
  readonly system: string;
  readonly user: string;
  /** Names that the call asks scores for, as in `trajectory_1`. */
  readonly asked: readonly string[];
  /** Text of every trajectory that is shown, by name. */
  readonly shown: ReadonlyMap<string, string>;
}

/** What one call gets. */
export type JudgeAnswer =
  | { readonly text: string; readonly finishReason?: string; readonly refusal?: string }
  | { readonly body: string; readonly status?: number; readonly headers?: Readonly<Record<string, string>> }
  | { readonly status: number; readonly headers?: Readonly<Record<string, string>>; readonly message?: string }
  | { readonly hang: 'before' | 'drip' | 'cut' };

export type JudgeScript = (call: JudgeCall) => JudgeAnswer;

export interface ScriptedJudge {
  /** With `/v1`. */
  readonly baseURL: string;
  readonly root: string;
  readonly calls: readonly JudgeCall[];
}

const running: { readonly server: Server; readonly timers: Set<NodeJS.Timeout> }[] = [];

afterEach(async () => {
  for (const { server, timers } of running.splice(0)) {
    for (const timer of timers) clearInterval(timer);
    server.closeAllConnections();
    await new Promise((resolve) => server.close(resolve));
  }
});

/** Closed after the test. */
export async function startScriptedJudge(script: JudgeScript): Promise<ScriptedJudge> {
  const calls: JudgeCall[] = [];
  const timers = new Set<NodeJS.Timeout>();
  const server = createServer(async (request, response) => {
    const call = readCall(calls.length, request.url ?? '', await readBody(request));
    calls.push(call);
    send(response, call, script(call), timers);
  });
  running.push({ server, timers });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const root = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  return { baseURL: `${root}/v1`, root, calls };
}

/** The answer that was asked for: for each name the score that `scoreOf` gives for the text of its trajectory. */
export function goodAnswer(call: JudgeCall, scoreOf: (text: string) => number): string {
  const entries = call.asked.map((name) => [
    name,
    { explanation: `about ${name}`, score: scoreOf(call.shown.get(name) ?? '') },
  ]);
  return JSON.stringify(Object.fromEntries(entries));
}

function readCall(index: number, url: string, body: Record<string, unknown>): JudgeCall {
  const messages = body.messages as { role: string; content: string }[];
  const isMessages = url.endsWith('/messages');
  const system = isMessages ? String(body.system) : (messages[0]?.content ?? '');
  const user = messages.at(-1)?.content ?? '';
  const afterData = user.slice(user.lastIndexOf('</trajectory>'));
  const reasked = /scores now for exactly ([\w, ]+), on/.exec(afterData)?.[1];
  const asked = (reasked ?? /exactly these names: ([\w, ]+)\./.exec(system)?.[1] ?? '').split(', ');
  const blocks = user.matchAll(/<trajectory id="(\d+)">\n(.*)\n<\/trajectory>/g);
  const shown = new Map([...blocks].map(([, id, text]) => [`trajectory_${id}`, text ?? '']));
  return { index, protocol: isMessages ? 'messages' : 'chat-completions', body, system, user, asked, shown };
}

async function readBody(request: IncomingMessage): Promise<Record<string, unknown>> {
  const chunks: Buffer[] = [];
  for await (const chunk of request) chunks.push(chunk as Buffer);
  return JSON.parse(Buffer.concat(chunks).toString());
}

function send(response: ServerResponse, call: JudgeCall, answer: JudgeAnswer, timers: Set<NodeJS.Timeout>): void {
  if ('hang' in answer) {
    if (answer.hang === 'before') return;
    response.writeHead(200, { 'content-type': 'application/json' });
    response.write('{"choices": [');
    if (answer.hang === 'cut') {
      response.destroy();
      return;
    }
    timers.add(setInterval(() => response.write(' '), 20));
    return;
  }
  const { status = 200, headers = {} } = 'status' in answer || 'body' in answer ? answer : {};
  response.writeHead(status, { 'content-type': 'application/json', ...headers });
  if ('body' in answer) response.end(answer.body);
  else if ('text' in answer)
    response.end(call.protocol === 'messages' ? toMessage(call, answer) : JSON.stringify(toCompletion(answer)));
  else response.end(JSON.stringify({ error: { type: 'error', message: answer.message ?? `status ${status}` } }));
}

interface TextAnswer {
  readonly text: string;
  readonly finishReason?: string;
  readonly refusal?: string;
}

function toCompletion({ text, finishReason = 'stop', refusal }: TextAnswer): object {
  const message = {
    role: 'assistant',
    content: refusal === undefined ? text : null,
    ...(refusal !== undefined && { refusal }),
  };
  return {
    id: 'chatcmpl-1',
    object: 'chat.completion',
    created: 1,
    model: 'judge',
    choices: [{ index: 0, message, finish_reason: finishReason }],
    usage: {
      prompt_tokens: 1000,
      completion_tokens: 100,
      total_tokens: 1100,
      prompt_tokens_details: { cached_tokens: 400 },
    },
  };
}

/** A forced tool call with the text as its input where that is JSON, as Anthropic's models answer; else text. */
function toMessage(call: JudgeCall, { text, finishReason, refusal }: TextAnswer): string {
  const stopReasons: Record<string, string> = { length: 'max_tokens', content_filter: 'refusal' };
  const stopReason = refusal !== undefined ? 'refusal' : (stopReasons[finishReason ?? ''] ?? 'tool_use');
  const isCall = call.body.tools !== undefined && isJsonObject(text);
  const block = isCall
    ? `{"type":"tool_use","id":"toolu_1","name":"give_scores","input":${text}}`
    : JSON.stringify({ type: 'text', text });
  const usage = { input_tokens: 600, output_tokens: 100, cache_read_input_tokens: 400 };
  const rest = JSON.stringify({
    id: 'msg_1',
    type: 'message',
    role: 'assistant',
    model: 'judge',
    stop_reason: stopReason,
    usage,
  });
  return `{"content":[${refusal === undefined ? block : ''}],${rest.slice(1)}`;
}

function isJsonObject(text: string): boolean {
  try {
    const value: unknown = JSON.parse(text);
    return typeof value === 'object' && value !== null && !Array.isArray(value);
  } catch {
    return false;
  }
}
