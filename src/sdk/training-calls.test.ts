import { type HttpBindings, type ServerType, serve } from '@hono/node-server';
import { type Context, Hono } from 'hono';
import { expect, onTestFinished, test } from 'vitest';
import { AbortedError, ApiError } from '../core/errors.ts';
import type {
  LogRequest,
  ModelInfo,
  RegisterRequest,
  TrainProgress,
  TrainRequest,
  TrainResult,
} from '../wire/training.ts';
import { type CallOptions, createApi } from './call.ts';
import {
  callHistory,
  callLog,
  callModelInfo,
  callRegister,
  callTrain,
  type TrainCallOptions,
  type TrainingLimits,
} from './training-calls.ts';

type FetchCallback = Parameters<typeof serve>[0]['fetch'];

const createClient = (baseURL: string, limits: TrainingLimits = {}) => {
  const api = createApi(() => ({ baseURL, apiKey: 'k' }));
  return {
    train: (name: string, body: Omit<TrainRequest, 'idempotency_key'>, options: TrainCallOptions = {}) =>
      callTrain(api, name, body, options, limits),
    register: (body: RegisterRequest, options: CallOptions = {}) => callRegister(api, body, options, limits),
    model: (name: string, options: CallOptions = {}) => callModelInfo(api, name, options),
    log: (name: string, body: LogRequest) => callLog(api, name, body, {}),
    history: (name: string, options: CallOptions = {}) => callHistory(api, name, options),
  };
};

// A scripted peer: it answers what each test says, so that failures of the network can be staged.
async function listen(
  app: { readonly fetch: FetchCallback },
  limits: TrainingLimits = {},
): Promise<ReturnType<typeof createClient>> {
  const server = await new Promise<ServerType>((resolve) => {
    const started = serve({ fetch: app.fetch, port: 0, hostname: '127.0.0.1' }, () => resolve(started));
  });
  onTestFinished(() => {
    server.close();
    if ('closeAllConnections' in server) server.closeAllConnections();
  });
  const address = server.address();
  if (address === null || typeof address === 'string') throw new Error('no port');
  return createClient(`http://127.0.0.1:${address.port}`, limits);
}

const info: ModelInfo = {
  name: 'agent',
  project: 'demo',
  base_model: '/models/tiny',
  step: 3,
  parameters: 10,
  trainable_parameters: 2,
  directory: '/art/demo/models/agent',
  engine: {
    rss_bytes: 1,
    peak_rss_bytes: 1,
    sampled_tokens: 0,
    prefilled_tokens: 0,
    sampling_seconds: 0,
    trained_tokens: 0,
    training_seconds: 0,
  },
};
const result: TrainResult = {
  step: 4,
  metrics: { 'train/reward': 0.5 },
  checkpoint_path: '/c/4',
  adapter_sha256: 'ab',
};
const request = { groups: [], options: {} };
const sse = (c: Context, chunks: readonly string[]): Response => {
  const queue = [...chunks];
  const body = new ReadableStream<Uint8Array>({
    pull: async (controller) => {
      await new Promise((resolve) => setTimeout(resolve, 5));
      const chunk = queue.shift();
      if (chunk === undefined) return controller.close();
      controller.enqueue(new TextEncoder().encode(chunk));
    },
  });
  return c.body(body, 200, { 'content-type': 'text/event-stream' });
};
const event = (name: string, data: unknown): string => `event: ${name}\ndata: ${JSON.stringify(data)}\n\n`;
const progress: TrainProgress = { stage: 'train', done: 1, total: 2 };

test('train reports progress and gives the result, wherever the stream is cut', async () => {
  const bytes = `: keep-alive\n\n${event('progress', progress)}${event('progress', { ...progress, done: 2 })}${event('result', result)}`;
  for (const cut of [1, 7, 20, 60, 100, bytes.length - 1]) {
    const app = new Hono().post('/api/models/agent/train', (c) => sse(c, [bytes.slice(0, cut), bytes.slice(cut)]));
    const seen: number[] = [];
    const client = await listen(app);
    const onProgress = ({ done }: TrainProgress): unknown => seen.push(done);
    await expect(client.train('agent', request, { onProgress })).resolves.toEqual(result);
    expect(seen).toEqual([1, 2]);
  }
});

test("an error event becomes an ApiError with the server's message, and nothing is sent twice", async () => {
  let calls = 0;
  const error = {
    message: 'group 0: no such completion',
    type: 'invalid_request_error',
    code: 'data_error',
    param: null,
  };
  const app = new Hono().post('/api/models/agent/train', (c) => {
    calls++;
    return sse(c, [event('error', { error })]);
  });
  const failed = await (await listen(app)).train('agent', request).catch((reason: unknown) => reason);
  expect(failed).toBeInstanceOf(ApiError);
  expect(failed).toMatchObject({
    message: 'training of model agent: group 0: no such completion',
    details: { code: 'data_error' },
  });
  expect(calls).toBe(1);
});

test('a broken connection sends train once more, under the same idempotency key', async () => {
  const keys: string[] = [];
  const app = new Hono<{ Bindings: HttpBindings }>().post('/api/models/agent/train', async (c) => {
    keys.push((await c.req.json<TrainRequest>()).idempotency_key);
    if (keys.length > 1) return sse(c, [event('result', result)]);
    setTimeout(() => c.env.incoming.socket.destroy(), 30);
    return sse(
      c,
      Array.from({ length: 100 }, () => event('progress', progress)),
    );
  });
  await expect((await listen(app)).train('agent', request)).resolves.toEqual(result);
  expect(keys).toHaveLength(2);
  expect(new Set(keys).size).toBe(1);
});

test('train gives up after the second broken connection', async () => {
  let calls = 0;
  const app = new Hono().post('/api/models/agent/train', (c) => {
    calls++;
    return sse(c, [event('progress', progress)]);
  });
  await expect((await listen(app)).train('agent', request)).rejects.toThrow(
    'training of model agent: the event stream ended without a result',
  );
  expect(calls).toBe(2);
});

test('silence longer than the limit ends the wait and says what for; events reset it', async () => {
  const slow = new Hono().post('/api/models/agent/train', (c) =>
    c.body(new ReadableStream(), 200, { 'content-type': 'text/event-stream' }),
  );
  const client = await listen(slow, { trainSilenceMs: 50 });
  await expect(client.train('agent', request)).rejects.toThrow(
    new AbortedError('training of model agent: nothing within 50 ms', { details: { isDeadline: true } }),
  );
  const steady = new Hono().post('/api/models/agent/train', (c) =>
    sse(c, [...Array.from({ length: 40 }, () => event('progress', progress)), event('result', result)]),
  );
  await expect((await listen(steady, { trainSilenceMs: 150 })).train('agent', request)).resolves.toEqual(result);
});

test("the caller's signal ends a train call", async () => {
  const app = new Hono().post('/api/models/agent/train', (c) =>
    c.body(new ReadableStream(), 200, { 'content-type': 'text/event-stream' }),
  );
  const controller = new AbortController();
  setTimeout(() => controller.abort(), 20);
  const call = (await listen(app)).train('agent', request, { signal: controller.signal });
  await expect(call).rejects.toThrow('training of model agent: aborted by the caller');
});

test('reads are tried again after 503; a refused request and a log are not', async () => {
  const calls = { model: 0, register: 0, log: 0 };
  const error = {
    message: 'seed: must be ≥ 0, got -1',
    type: 'invalid_request_error',
    code: 'invalid_value',
    param: 'seed',
  };
  const app = new Hono()
    .get('/api/models/agent', (c) => (++calls.model < 2 ? c.text('starting', 503) : c.json(info)))
    .post('/api/models', (c) => {
      calls.register++;
      return c.json({ error }, 400);
    })
    .post('/api/models/agent/log', (c) => {
      calls.log++;
      return c.text('busy', 503);
    });
  const client = await listen(app);
  await expect(client.model('agent')).resolves.toEqual(info);
  const register = { name: 'agent', project: 'demo', base_model: 'x', lora: { rank: 1, alpha: 1 }, seed: 0 };
  await expect(client.register(register)).rejects.toMatchObject({
    message: 'registration of model agent: seed: must be ≥ 0, got -1',
    status: 400,
    details: { param: 'seed' },
  });
  const log = { split: 'val', step: null, groups: [], metrics: {} };
  await expect(client.log('agent', log)).rejects.toThrow('log of model agent: HTTP 503: busy');
  expect(calls).toEqual({ model: 2, register: 1, log: 1 });
});

test('an answer of another shape and a server that is not there are named', async () => {
  const app = new Hono().get('/api/models/agent', (c) => c.json({ step: 'three' }));
  await expect((await listen(app)).model('agent')).rejects.toThrow('state of model agent: the answer does not fit');
  const nobody = createClient('http://127.0.0.1:9');
  await expect(nobody.history('agent')).rejects.toThrow(
    /history of model agent: GET http:\/\/127.0.0.1:9\/api\/models\/agent\/history could not be sent/,
  );
});

test('a long history is read page by page', async () => {
  const rows = Array.from({ length: 7 }, (_, step) => ({ step, split: 'train' }));
  const app = new Hono().get('/api/models/agent/history', (c) => {
    const offset = Number(c.req.query('offset') ?? 0);
    return c.json({ rows: rows.slice(offset, offset + 3), next_offset: offset + 3 < rows.length ? offset + 3 : null });
  });
  expect(await (await listen(app)).history('agent')).toEqual(rows);
});

test("the caller's signal ends the wait before the next try of what is tried again", async () => {
  let calls = 0;
  const app = new Hono().all('*', (c) => {
    calls++;
    return c.text('starting', 503);
  });
  const client = await listen(app);
  const register = { name: 'agent', project: 'demo', base_model: 'x', lora: { rank: 1, alpha: 1 }, seed: 0 };
  const waits = [
    (signal: AbortSignal): Promise<unknown> => client.model('agent', { signal }),
    (signal: AbortSignal): Promise<unknown> => client.history('agent', { signal }),
    (signal: AbortSignal): Promise<unknown> => client.register(register, { signal }),
  ];
  for (const wait of waits) {
    calls = 0;
    const controller = new AbortController();
    const call = wait(controller.signal).catch((reason: unknown) => reason);
    await expect.poll(() => calls, { timeout: 5_000, interval: 5 }).toBe(2); // the second pause is a whole second
    const abortedAt = performance.now();
    controller.abort();
    expect(await call).toMatchObject({
      name: 'AbortedError',
      message: expect.stringMatching(/: aborted by the caller$/),
    });
    expect(performance.now() - abortedAt).toBeLessThan(500);
    expect(calls).toBe(2);
  }
});
