/**
 * The server's own share of a request: the official client over HTTP against an engine that replies at once.
 * Client and server share this process, so the same client against a server that does nothing is measured beside it.
 */
import { once } from 'node:events';
import { mkdtemp, rm } from 'node:fs/promises';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import OpenAI from 'openai';
import { writeStarterModel } from '../src/formats/starter-model.ts';
import { loadTokenizer } from '../src/formats/tokenizer.ts';
import { RemoteBackend, TrainableModel } from '../src/index.ts';
import { createArtServer } from '../src/server/index.ts';
import { createScriptedEngine, type ScriptedEngine } from '../src/testing/index.ts';

const concurrency = 32;
const systemText = 'You play 2048. Reply with one of left, right, up, down.';
const replyText = ' left<|im_end|>';

type Message = OpenAI.ChatCompletionMessageParam;

export interface ServerBench extends AsyncDisposable {
  /** Single-turn requests, each with a prompt of its own. */
  readonly singleTurns: (count: number) => Promise<void>;
  /** Conversations of ten turns, each turn one request. */
  readonly tenTurns: (count: number) => Promise<void>;
  /** The same requests as `singleTurns` to a server that sends a stored reply. */
  readonly nullServer: (count: number) => Promise<void>;
}

export async function createServerBench(): Promise<ServerBench> {
  const folder = await mkdtemp(join(tmpdir(), 'art-bench-'));
  const directory = join(folder, 'model');
  await writeStarterModel({
    seed: 1,
    directory,
    corpus: Array.from({ length: 50 }, () => systemText),
    width: 32,
    layers: 1,
  });
  const tokenizer = await loadTokenizer(directory);
  const reply = tokenizer.encode(replyText);
  const createEngine = async (): Promise<ScriptedEngine> => {
    const engine = createScriptedEngine({ reply: () => ({ tokenIds: reply }), decode: tokenizer.decode });
    // What it keeps for tests would grow with every request.
    (engine.requests as unknown[]).push = () => 0;
    return engine;
  };
  const server = await createArtServer({ root: folder, createEngine });
  const model = new TrainableModel({ name: 'bench', project: 'bench', baseModel: directory });
  await model.register(new RemoteBackend({ baseURL: server.url }));
  const client = model.openaiClient();
  const nullServer = await startNullServer(await rawReply(server.url));
  const nullClient = new OpenAI({ baseURL: `${nullServer.url}/v1`, apiKey: 'bench', maxRetries: 0 });
  return {
    singleTurns: (count) => inParallel(count, () => ask(client, startConversation())),
    nullServer: (count) => inParallel(count, () => ask(nullClient, startConversation())),
    tenTurns: (count) => inParallel(count, () => converse(client)),
    [Symbol.asyncDispose]: async () => {
      nullServer.close();
      await server.close();
      await rm(folder, { recursive: true, force: true });
    },
  };
}

let boards = 0;
const nextBoard = (): Message => ({ role: 'user', content: `board ${boards++}\n2 4 _ _\n_ _ 2 8\n16 2 _ _\n_ 4 4 2` });
const startConversation = (): Message[] => [{ role: 'system', content: systemText }, nextBoard()];

async function ask(client: OpenAI, messages: readonly Message[]): Promise<OpenAI.ChatCompletionMessage> {
  const completion = await client.chat.completions.create({
    model: 'bench',
    messages: [...messages],
    max_tokens: 16,
    seed: 1,
  });
  return completion.choices[0]!.message;
}

async function converse(client: OpenAI): Promise<void> {
  const messages = startConversation();
  for (let turn = 0; turn < 10; turn++) messages.push(await ask(client, messages), nextBoard());
}

async function inParallel(count: number, work: () => Promise<unknown>): Promise<void> {
  let started = 0;
  const workers = Array.from({ length: concurrency }, async () => {
    while (started++ < count) await work();
  });
  await Promise.all(workers);
}

async function rawReply(url: string): Promise<string> {
  const response = await fetch(`${url}/v1/chat/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ model: 'bench', messages: startConversation() }),
  });
  return response.text();
}

async function startNullServer(body: string): Promise<{ readonly url: string; readonly close: () => void }> {
  const server = createServer((request, response) => {
    request.resume().on('end', () => {
      response
        .writeHead(200, { 'content-type': 'application/json', 'content-length': Buffer.byteLength(body) })
        .end(body);
    });
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const close = (): void => {
    server.close();
    server.closeAllConnections();
  };
  return { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`, close };
}
