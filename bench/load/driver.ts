/** Sends chat requests to the server process and checks every answer against the one that the same request got alone. */
import { type ChildProcess, fork } from 'node:child_process';
import { once } from 'node:events';
import { Agent, request as openRequest } from 'node:http';
import { fileURLToPath } from 'node:url';
import { deriveSeed } from '../../src/core/rng.ts';
import type { AskTimes, EngineTimes, FromServer } from './protocol.ts';

/** From this process's start to the model being served. */
const startLimitMs = 120_000;
const requestLimitMs = 600_000;

export interface Answer {
  readonly status: number;
  readonly text: string;
  readonly milliseconds: number;
}

export interface LoadServer extends AsyncDisposable {
  readonly ask: (seed: number) => Promise<Answer>;
  /** Of the requests since the last call: milliseconds within the engine, by request seed as given to `ask`. */
  readonly engineTimes: (seeds: readonly number[]) => Promise<ReadonlyMap<number, number>>;
}

/** Prompts differ, so that answers do. */
const promptOf = (seed: number): string => `board ${seed % 97}: 2 4 _ _ / _ _ 2 8 / 16 2 _ _ / _ 4 4 2`;

export async function startLoadServer(root: string, baseModel: string, maxSockets: number): Promise<LoadServer> {
  const child = fork(fileURLToPath(new URL('./server.js', import.meta.url)), [root, baseModel], {
    stdio: ['ignore', 'inherit', 'inherit', 'ipc'],
  });
  const ready = await receive(child, 'ready', startLimitMs);
  const { port } = new URL(ready.url);
  const agent = new Agent({ keepAlive: true, maxSockets });
  return {
    ask: (seed) => ask(Number(port), agent, seed),
    engineTimes: async (seeds) => {
      const received = receive(child, 'times', startLimitMs);
      child.send({ kind: 'times' } satisfies AskTimes);
      const { milliseconds } = (await received) as EngineTimes;
      const bySeed = new Map(milliseconds);
      return new Map(seeds.map((seed) => [seed, bySeed.get(deriveSeed(seed, 'choice', 0)) ?? Number.NaN]));
    },
    [Symbol.asyncDispose]: async () => {
      agent.destroy();
      const exited = once(child, 'exit');
      if (child.connected) child.disconnect();
      const timer = setTimeout(() => child.kill('SIGKILL'), 10_000);
      await exited;
      clearTimeout(timer);
    },
  };
}

async function receive<K extends FromServer['kind']>(
  child: ChildProcess,
  kind: K,
  limitMs: number,
): Promise<Extract<FromServer, { kind: K }>> {
  const signal = AbortSignal.timeout(limitMs);
  const ended = once(child, 'exit', { signal }).then(() => {
    throw new Error(`load: the server process must say '${kind}', it ended`);
  });
  const said = (async () => {
    for (;;) {
      const [message] = (await once(child, 'message', { signal })) as [FromServer];
      if (message.kind === kind) return message as Extract<FromServer, { kind: K }>;
    }
  })();
  ended.catch(() => {});
  return await Promise.race([said, ended]);
}

function ask(port: number, agent: Agent, seed: number): Promise<Answer> {
  const body = JSON.stringify({
    model: 'load',
    messages: [{ role: 'user', content: promptOf(seed) }],
    max_tokens: 16,
    seed,
  });
  const headers = { 'content-type': 'application/json', 'content-length': Buffer.byteLength(body) };
  const startedAt = performance.now();
  return new Promise((resolve, reject) => {
    const request = openRequest({
      host: '127.0.0.1',
      port,
      method: 'POST',
      path: '/v1/chat/completions',
      headers,
      agent,
    });
    request.setTimeout(requestLimitMs, () => request.destroy(new Error(`load: no answer within ${requestLimitMs} ms`)));
    request.on('error', reject);
    request.on('response', (response) => {
      let text = '';
      response.setEncoding('utf8').on('data', (chunk: string) => {
        text += chunk;
      });
      response.on('error', reject);
      response.on('end', () => {
        resolve({ status: response.statusCode ?? 0, text, milliseconds: performance.now() - startedAt });
      });
    });
    request.end(body);
  });
}
