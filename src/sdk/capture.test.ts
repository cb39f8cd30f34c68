/** Agents that know nothing of a capture, through the public entry. */
import { once } from 'node:events';
import { createServer, request } from 'node:http';
import type { AddressInfo } from 'node:net';
import OpenAI from 'openai';
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { type RepeatingServer, startRepeatingServer } from '../../test/repeating-agent.ts';
import {
  type CaptureContext,
  captureRollout,
  captureTrajectory,
  currentTrajectory,
  gatherTrajectoryGroups,
  Trajectory,
  trajectoryGroup,
} from '../index.ts';

let server: RepeatingServer;
beforeAll(async () => {
  server = await startRepeatingServer();
});
beforeEach(() => {
  server.delayMs = 0;
});
afterAll(() => server[Symbol.asyncDispose]());

const textsOf = (trajectory: Trajectory): unknown[] => trajectory.messages().map(({ content }) => content);

/** First words of what users said in any history. */
function namesOf(trajectory: Trajectory): string[] {
  const histories = [trajectory, ...trajectory.additionalHistories];
  return histories
    .flatMap(({ messagesAndChoices }) => new Trajectory({ messagesAndChoices }).messages())
    .filter(({ role }) => role === 'user')
    .map(({ content }) => String(content).split(' ')[0] ?? '');
}

test('an agent that is not changed becomes a trajectory: messages, choices with their origin, output, metrics', async () => {
  const { trajectory, output } = await captureTrajectory(async ({ trajectory }) => {
    const answer = await server.talk('hello', 2);
    trajectory.reward = 0.5;
    trajectory.metrics.turns = 2;
    currentTrajectory()?.log('said hello');
    return { answer };
  });
  expect(output).toEqual({ answer: 'You said: hello 1' });
  expect(textsOf(trajectory)).toEqual(['Repeat.', 'hello 0', 'You said: hello 0', 'hello 1', 'You said: hello 1']);
  expect(trajectory.allChoices()).toHaveLength(2);
  for (const choice of trajectory.allChoices()) {
    expect(choice).toMatchObject({ index: 0, finish_reason: 'stop', art: { policy_step: 0 } });
  }
  expect(trajectory).toMatchObject({ reward: 0.5, logs: ['said hello'], tools: null, additionalHistories: [] });
  expect(trajectory.metrics).toMatchObject({ turns: 2, duration: expect.any(Number) });
  expect(trajectory.metrics.completion_tokens).toBeGreaterThan(10);
  expect(currentTrajectory()).toBeNull();
  expect(await server.rollouts('open')).toEqual([]);
});

test('sub-agents, parallel calls and a history that is summed up are additional histories, each turn once', async () => {
  const { trajectory } = await captureTrajectory(
    async () => {
      await server.talk('main', 2);
      await Promise.all([server.talk('left', 1), server.talk('right', 3)]);
      const messages = [{ role: 'user', content: 'Summary: main said much.' }] as const;
      await server.client.chat.completions.create({ model: 'agent', messages: [...messages], n: 2 });
    },
    { model: server.model },
  );
  expect(trajectory.messages().at(-1)?.content).toBe('You said: main 1');
  const lengths = trajectory.additionalHistories.map(({ messagesAndChoices }) => messagesAndChoices.length);
  expect(lengths.slice(0, 2).sort()).toEqual([3, 7]);
  expect(lengths.slice(2)).toEqual([2, 2]);
  const ids = trajectory.allChoices().map(({ art, index }) => `${art?.completion_id} ${index}`);
  expect([ids.length, new Set(ids).size]).toEqual([8, 8]);
});

test('tools, and calls of them, are as the agent had them', async () => {
  const tools = [{ type: 'function', function: { name: 'weather', parameters: { type: 'object', properties: {} } } }];
  const call = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>';
  const { trajectory } = await captureTrajectory(() => server.talk(call, 1, server.client, { tools }));
  expect(trajectory.tools).toEqual(tools);
  const [choice] = trajectory.allChoices();
  expect(choice).toMatchObject({ finish_reason: 'tool_calls', message: { role: 'assistant' } });
  expect(choice?.message.tool_calls).toMatchObject([{ type: 'function', function: { name: 'weather' } }]);
});

test('100 captures at once never cross, streamed or not, with one client for all', { timeout: 60_000 }, async () => {
  server.delayMs = 1;
  const capture = async (name: string, isStreamed: boolean): Promise<Trajectory> => {
    const { trajectory } = await captureTrajectory(async () => {
      await new Promise((resolve) => setTimeout(resolve, Math.random() * 20));
      if (!isStreamed) return server.talk(name, 2);
      const messages = [{ role: 'user' as const, content: `${name} 0` }];
      const stream = await server.client.chat.completions.create({ model: 'agent', messages, stream: true });
      for await (const _chunk of stream);
      return server.talk(name, 1);
    });
    return trajectory;
  };
  const all = await Promise.all(Array.from({ length: 100 }, (_, index) => capture(`a${index}`, index % 2 === 0)));
  expect(all.map(namesOf)).toEqual(all.map((_, index) => [`a${index}`, `a${index}`]));
  expect(await server.rollouts('open')).toEqual([]);
});

test('calls of a capture inside another belong to the inner one', async () => {
  const { trajectory, output } = await captureTrajectory(async () => {
    await server.talk('outer', 1);
    const outer = currentTrajectory();
    const inner = await captureTrajectory(async () => {
      expect(currentTrajectory()).not.toBe(outer);
      return server.talk('inner', 2);
    });
    await server.talk('outer', 1);
    return { inner: inner.trajectory };
  });
  expect([namesOf(trajectory), namesOf(output.inner)]).toEqual([
    ['outer', 'outer'],
    ['inner', 'inner'],
  ]);
});

test('only requests to the server’s /v1 get the header, whatever else the agent calls', async () => {
  const seen: unknown[] = [];
  const other = createServer((incoming, response) => {
    seen.push(incoming.headers['x-art-rollout']);
    response.end('{}');
  }).listen(0, '127.0.0.1');
  await once(other, 'listening');
  const { port } = other.address() as AddressInfo;
  try {
    await captureTrajectory(async ({ fetch: ownFetch }) => {
      await fetch(`http://127.0.0.1:${port}/v1/chat/completions`);
      await ownFetch(new Request(`http://127.0.0.1:${port}/v1/chat/completions`));
      await fetch(`http://localhost:${port}/v1`);
      await once(request(`http://127.0.0.1:${port}/v1`).end(), 'response');
      await server.talk('hello', 1);
    });
  } finally {
    other.close();
  }
  expect(seen).toEqual([undefined, undefined, undefined, undefined]);
});

/** A client on node:http with this base URL. */
function httpClient(baseURL: string): OpenAI {
  const send = async (url: string | URL | Request, init?: RequestInit): Promise<Response> => {
    const headers = Object.fromEntries(new Headers(init?.headers));
    const outgoing = request(String(url), { method: init?.method ?? 'GET', headers }).end(init?.body);
    const [incoming] = await once(outgoing, 'response');
    const chunks: Buffer[] = [];
    for await (const chunk of incoming) chunks.push(chunk);
    return new Response(Buffer.concat(chunks), { status: incoming.statusCode, headers: incoming.headers });
  };
  return new OpenAI({ baseURL, apiKey: 'none', maxRetries: 0, fetch: send as typeof fetch });
}

/** Outside of the capture, as a worker or another process is. */
const waiting: (() => void)[] = [];
const elsewhere = <T>(work: () => Promise<T>): Promise<T> =>
  new Promise((resolve, reject) => waiting.push(() => work().then(resolve, reject)));

test.each<[string, (context: CaptureContext) => OpenAI]>([
  ['baseURL, on node:http', ({ baseURL }) => httpClient(baseURL)],
  ['baseURL', ({ baseURL, apiKey }) => new OpenAI({ baseURL, apiKey })],
  ['headers', ({ headers, apiKey }) => new OpenAI({ baseURL: `${server.url}/v1`, apiKey, defaultHeaders: headers })],
  ['fetch', ({ fetch, apiKey }) => new OpenAI({ baseURL: `${server.url}/v1`, apiKey, fetch })],
])('calls from elsewhere belong to the capture by its %s', async (_name, createClient) => {
  const timer = setInterval(() => waiting.shift()?.(), 1);
  try {
    const { trajectory } = await captureTrajectory(
      (context) => elsewhere(() => server.talk('far', 1, createClient(context), { model: context.modelName })),
      { model: server.model },
    );
    expect(namesOf(trajectory)).toEqual(['far']);
  } finally {
    clearInterval(timer);
  }
});

const [major = 0, minor = 0] = process.versions.node.split('.').map(Number);
const hasHttpChannel = major > 22 || (major === 22 && minor >= 12);
test.skipIf(!hasHttpChannel)('clients on node:http are seen too (from Node.js 22.12 on)', async () => {
  const { trajectory } = await captureTrajectory(() => server.talk('plain', 1, httpClient(`${server.url}/v1`)));
  expect(namesOf(trajectory)).toEqual(['plain']);
});

test('localhost is the same server', async () => {
  const { port } = new URL(server.url);
  const client = new OpenAI({ baseURL: `http://localhost:${port}/v1`, apiKey: 'none' });
  expect(namesOf((await captureTrajectory(() => server.talk('local', 1, client))).trajectory)).toEqual(['local']);
});

test('captured rollouts are gathered into groups, and each turn is trained once', async () => {
  const rollout = captureRollout(server.model, async ({ trajectory, signal }) => {
    expect(signal).toBeInstanceOf(AbortSignal);
    await server.talk('train', 2, server.model.openaiClient());
    trajectory.reward = Math.random();
  });
  const groups = await gatherTrajectoryGroups([trajectoryGroup([rollout, rollout, rollout])]);
  expect(groups.map(({ length }) => length)).toEqual([3]);
  const { step } = await server.backend.train(server.model, groups);
  const { trajectory } = await captureTrajectory(async ({ trajectory }) => {
    await server.talk('next', 1);
    trajectory.reward = 0;
  });
  expect([step, trajectory.allChoices()[0]?.art?.policy_step]).toEqual([1, 1]);
  await server.model.log([trajectory]);
});
