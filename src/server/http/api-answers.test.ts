import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { createCountingEngine } from '../../../test/server/counting-engine.ts';
import { type SentEvent, TestApi } from '../../../test/server/test-api.ts';
import { group, trajectory } from '../../../test/server/training-fixtures.ts';
import { EngineError } from '../../core/errors.ts';
import { apiRoutes } from '../../wire/api-routes.ts';

let api: TestApi;
beforeAll(async () => {
  api = await TestApi.open();
});
afterAll(() => api.close());

const path = '/api/models/agent';

/** Streams of events end or are left here; the calls hold every answer to the row of the route table. */
test('every route of the training API answers as its row says', async () => {
  expect((await api.call('POST', '/api/models', api.registration)).status).toBe(200);
  await api.call('GET', '/api/models');
  await api.call('GET', path);
  for (const key of ['a', 'b', 'c']) await api.train(key);
  const conversations = [
    {
      messages: [
        { role: 'user', content: 'go' },
        { role: 'assistant', content: 'gone' },
      ],
    },
  ];
  await api.stream('POST', `${path}/sft`, { idempotency_key: 'd', conversations });
  await api.call('POST', `${path}/log`, {
    split: 'val',
    step: 1,
    groups: [group(trajectory(1, []))],
    metrics: { accuracy: 0.5 },
  });
  const { jobs } = (await api.call('GET', '/api/jobs')).json;
  await api.call('GET', `/api/jobs/${jobs[0].id}`);
  await api.stream('GET', `/api/jobs/${jobs[0].id}/events`);
  for (const route of ['history', 'metric-names', 'trajectories', 'checkpoints', 'checkpoints/2', 'retention']) {
    expect((await api.call('GET', `${path}/${route}`)).status).toBe(200);
  }
  await api.call('GET', `${path}/metrics?name=loss/learning_rate`);
  await api.call('POST', `${path}/state`, { a: 1 });
  await api.call('PUT', `${path}/state`, { b: 2 });
  expect((await api.call('GET', `${path}/state`)).json).toEqual({ b: 2 });
  expect((await api.call('POST', `${path}/fork`, { model: { ...api.registration, name: 'fork' } })).status).toBe(200);
  await api.confirmed('PUT', `${path}/retention`, { keep_last: 5, keep_best: null });
  await api.confirmed('DELETE', `${path}/checkpoints/1`);
  await api.confirmed('POST', `${path}/rollback`, { step: 2 });
  const { items } = (await api.call('GET', '/api/trash')).json;
  await api.call('POST', `/api/trash/${items[0].id}/restore`);
  await api.confirmed('DELETE', `/api/trash/${items[1].id}`);
  const events = await api.request('GET', '/api/events', undefined, { 'last-event-id': '1' });
  await api.readEvents(events, 'GET', '/api/events', (list) =>
    list.some(({ event }) => event === 'checkpoint.restored'),
  );
  expect((await api.call('GET', '/api/health')).json).toMatchObject({ status: 'ok', models: [{ name: 'agent' }] });
  await api.call('GET', '/healthz');
  await api.call('GET', '/v1/models');
  await api.call('GET', '/openapi.json');
  let open = (): void => {};
  api.engine.gate = new Promise((resolve) => {
    open = resolve;
  });
  const { id } = (await api.call('POST', `${path}/train?wait=false`, api.trainRequest('e'))).json;
  await api.call('POST', `/api/jobs/${id}/cancel`);
  open();
  await api.confirmed('DELETE', path);
  // Those that are no JSON, or need a teacher or a storage, have tests of their own.
  const others = ['docs', 'downloadFile', 'trajectories', 'distill', 'pushCheckpoint', 'pullCheckpoint'];
  expect(Object.keys(apiRoutes).filter((name) => !api.checked.has(name) && !others.includes(name))).toEqual([]);
});

test('rows of the history by split and step, a page at a time; one metric; stored trajectories', async () => {
  await api.close();
  api = await TestApi.open();
  for (const key of ['a', 'b', 'c']) await api.train(key);
  await api.call('POST', `${path}/log`, {
    split: 'val',
    step: 2,
    groups: [],
    metrics: { accuracy: 0.5, 'time/eval_s': 3 },
  });
  const rows = async (query: string): Promise<unknown> => {
    const { json } = await api.call('GET', `${path}/history${query}`);
    return [json.rows.map(({ split, step }: { split: string; step: number }) => [split, step]), json.next_offset];
  };
  expect(await rows('')).toEqual([
    [
      ['train', 1],
      ['train', 2],
      ['train', 3],
      ['val', 2],
    ],
    null,
  ]);
  expect(await rows('?split=val')).toEqual([[['val', 2]], null]);
  expect(await rows('?from=2&to=2')).toEqual([
    [
      ['train', 2],
      ['val', 2],
    ],
    null,
  ]);
  expect(await rows('?limit=3')).toEqual([
    [
      ['train', 1],
      ['train', 2],
      ['train', 3],
    ],
    3,
  ]);
  expect(await rows('?limit=3&offset=3')).toEqual([[['val', 2]], null]);
  expect(await rows('?offset=9')).toEqual([[], null]);
  expect((await api.call('GET', `${path}/history?limit=0`)).json.error).toMatchObject({ param: 'limit' });
  expect((await api.call('GET', `${path}/history?page=2`)).json.error).toMatchObject({
    message: 'page: unknown field',
  });

  const { points } = (await api.call('GET', `${path}/metrics?name=val/accuracy`)).json;
  expect(points).toEqual([{ step: 2, split: 'val', value: 0.5 }]);
  expect((await api.call('GET', `${path}/metrics?name=time/eval_s`)).json.points).toEqual([
    { step: 2, split: 'val', value: 3 },
  ]);
  expect((await api.call('GET', `${path}/metrics?name=nothing`)).json.points).toEqual([]);
  const { names } = (await api.call('GET', `${path}/metric-names`)).json;
  expect(names).toEqual([...names].sort());
  expect(names).toEqual(expect.arrayContaining(['loss/train', 'time/eval_s', 'val/accuracy']));
  expect(names).not.toContain('step');

  const { files } = (await api.call('GET', `${path}/trajectories?split=train&from=2`)).json;
  expect(files.map(({ step }: { step: number }) => step)).toEqual([2, 3]);
  const response = await api.request('GET', `${path}/trajectories/train/2`);
  expect(response.headers.get('content-type')).toBe('application/jsonl');
  const stored = join(api.registry.get('agent').directory, 'trajectories', 'train', '0002.jsonl');
  expect(await response.text()).toBe(await readFile(stored, 'utf8'));
  for (const wrong of ['train/9', 'train/x', 'nothing/1', '..%2f..%2fmodel/1', 'train/..%2f0002']) {
    expect((await api.call('GET', `${path}/trajectories/${wrong}`)).status).toBe(404);
  }
});

test('an engine that does not answer is told by health, with the reason', async () => {
  await api.engine.close();
  api.engine.doInfo = () => Promise.reject(new Error('gone'));
  const { status, json } = await api.call('GET', '/api/health');
  expect(status).toBe(503);
  expect(json).toMatchObject({
    status: 'unavailable',
    models: [{ status: 'unavailable', engine: null, error: 'gone' }],
  });
});

test('an engine that dies and runs again is told as events, and by health meanwhile', async () => {
  await api.close();
  let die = (_cause: EngineError): void => {};
  let isHeld = false;
  let release = (): void => {};
  api = await TestApi.open({
    createEngine: async ({ seed }) => {
      if (isHeld) await new Promise<void>((resolve) => (release = resolve));
      const died = new Promise<EngineError>((resolve) => (die = resolve));
      return Object.assign(createCountingEngine(seed), { died });
    },
  });
  const response = await api.request('GET', '/api/events');
  const isBack = (list: readonly SentEvent[]): boolean => list.some(({ data }) => data.state === 'running');
  const reading = api.readEvents(response, 'GET', '/api/events', isBack);
  isHeld = true;
  die(new EngineError('killed by the test', { details: { isRetryable: true } }));
  const state = async () => (await api.call('GET', '/api/health')).json.models[0].engine_state;
  await expect.poll(state).toBe('restarting');
  release();
  const states = (await reading).filter(({ event }) => event === 'engine.state').map(({ data }) => data);
  expect(states).toEqual([
    { model: 'agent', state: 'restarting', reason: 'killed by the test' },
    { model: 'agent', state: 'running', reason: null },
  ]);
  expect(await state()).toBe('running');
});
