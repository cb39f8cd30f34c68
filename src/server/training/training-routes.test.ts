import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createParser } from 'eventsource-parser';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { type CountingEngine, createCountingEngine } from '../../../test/server/counting-engine.ts';
import { completion, group, trainRequest, trajectory } from '../../../test/server/training-fixtures.ts';
import { writeStarterModel } from '../../formats/starter-model.ts';
import { errorBody } from '../../wire/errors.ts';
import { historyResponse, modelInfo, type RegisterRequest, trainProgress, trainResult } from '../../wire/training.ts';
import { type ArtServer, createArtServer } from '../index.ts';

let root = '';
let server: ArtServer;
let engine: CountingEngine;
let registration: RegisterRequest;
beforeAll(async () => {
  root = await mkdtemp(join(tmpdir(), 'art-routes-'));
  const base = join(root, 'base');
  const sizes = { width: 16, layers: 1, heads: 2, kvHeads: 1, headSize: 8, ffWidth: 16 };
  await writeStarterModel({ seed: 1, directory: base, corpus: ['go'], ...sizes });
  registration = { name: 'agent', project: 'demo', base_model: base, lora: { rank: 4, alpha: 8 }, seed: 3 };
  server = await createArtServer({
    root: join(root, '.art'),
    onWarning: () => {},
    createEngine: async ({ seed }) => {
      engine = createCountingEngine(seed);
      return engine;
    },
  });
});
afterAll(async () => {
  await server.close();
  await rm(root, { recursive: true });
});

async function call(method: string, path: string, body?: unknown): Promise<{ status: number; json: unknown }> {
  const response = await fetch(server.url + path, {
    method,
    ...(body !== undefined && { headers: { 'content-type': 'application/json' }, body: JSON.stringify(body) }),
  });
  return { status: response.status, json: await response.json() };
}

async function events(response: Response): Promise<{ event: string | undefined; data: unknown }[]> {
  const list: { event: string | undefined; data: unknown }[] = [];
  const parser = createParser({ onEvent: ({ event, data }) => list.push({ event, data: JSON.parse(data) }) });
  for await (const chunk of response.body!.pipeThrough(new TextDecoderStream())) parser.feed(chunk);
  return list;
}

function post(body: unknown, signal?: AbortSignal): Promise<Response> {
  const headers = { 'content-type': 'application/json' };
  const init = { method: 'POST', headers, body: JSON.stringify(body), ...(signal && { signal }) };
  return fetch(`${server.url}/api/models/agent/train`, init);
}

function groups(key: string) {
  const { completions, step } = server.registry.get('agent').model;
  for (const index of [0, 1]) completions.put(completion(`${key}-${index}`, { policyStep: step() }));
  return group(trajectory(1, [`${key}-0`]), trajectory(0, [`${key}-1`]));
}

test('the way of a model over HTTP: register, train, log, history', async () => {
  expect(await call('GET', '/api/models/agent')).toMatchObject({
    status: 404,
    json: { error: { code: 'model_not_found', type: 'invalid_request_error' } },
  });
  const registered = await call('POST', '/api/models', registration);
  expect(modelInfo.parse(registered.json)).toMatchObject({ name: 'agent', step: 0 });
  expect(await call('POST', '/api/models', registration)).toMatchObject({ status: 200 });

  const response = await post(trainRequest('first', groups('first')));
  expect(response.headers.get('content-type')).toMatch(/^text\/event-stream/);
  const list = await events(response);
  expect(list.map(({ event }) => event)).toEqual([...Array.from({ length: 5 }, () => 'progress'), 'result']);
  for (const { data } of list.slice(0, -1)) trainProgress.parse(data);
  const result = trainResult.parse(list.at(-1)?.data);
  expect(result.step).toBe(1);

  expect(
    await call('POST', '/api/models/agent/log', { split: 'val', step: null, groups: [], metrics: { a: 1 } }),
  ).toEqual({
    status: 200,
    json: { step: 1 },
  });
  const history = historyResponse.parse((await call('GET', '/api/models/agent/history')).json);
  expect(history.rows.map(({ split, step }) => [split, step])).toEqual([
    ['train', 1],
    ['val', 1],
  ]);
  expect((await call('GET', '/api/models')).json).toMatchObject({ models: [{ name: 'agent', step: 1 }] });

  const again = await events(await post(trainRequest('first', groups('first'))));
  expect(again).toEqual([{ event: 'result', data: result }]);
});

test('invalid requests are plain 400s that name the field', async () => {
  const request = trainRequest('bad', groups('bad'));
  const reject = async (body: unknown) => {
    const response = await post(body);
    return { status: response.status, error: errorBody.parse(await response.json()).error };
  };
  expect(await reject({ ...request, options: { lr: 1 } })).toMatchObject({
    status: 400,
    error: { param: 'options.lr', message: 'options.lr: unknown field' },
  });
  const nan = structuredClone(request);
  nan.groups[0]!.trajectories[1]!.reward = Number.NaN;
  expect(await reject(nan)).toMatchObject({ status: 400, error: { param: 'groups[0].trajectories[1].reward' } });
  expect(await reject(trainRequest('bad', group(trajectory(1, ['unknown']))))).toMatchObject({
    status: 400,
    error: { code: 'data_error', message: expect.stringContaining('groups[0].trajectories[0].entries[1].choice') },
  });
  expect((await call('POST', '/api/models', { ...registration, seed: 9 })).status).toBe(400);
});

test('a failure after the stream began is its last event', async () => {
  engine.failing = 'optimStep';
  const list = await events(await post(trainRequest('fails', groups('fails'))));
  engine.failing = null;
  expect(list.at(-1)).toMatchObject({
    event: 'error',
    data: { error: { type: 'server_error', code: 'engine_error' } },
  });
});

test('a client that goes away does not stop its step; the same key finds it running, then finished', async () => {
  let openGate = (): void => {};
  engine.gate = new Promise((resolve) => {
    openGate = resolve;
  });
  const request = trainRequest('gone', groups('gone'));
  const client = new AbortController();
  const response = await post(request, client.signal);
  expect(response.status).toBe(200);
  client.abort();
  const running = post(request);
  openGate();
  const list = await events(await running);
  expect(list.at(-1)?.event).toBe('result');
  expect(await events(await post(request))).toEqual([list.at(-1)]);
});
