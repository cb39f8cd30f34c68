import { afterEach, beforeEach, expect, test } from 'vitest';
import { TestApi } from '../../../test/server/test-api.ts';

let api: TestApi;
beforeEach(async () => {
  api = await TestApi.open();
});
afterEach(() => api.close());

const path = '/api/models/agent/train';

/** The engine waits before every update until the returned function is called. */
function holdEngine(): () => void {
  let open = (): void => {};
  api.engine.gate = new Promise((resolve) => {
    open = resolve;
  });
  return () => open();
}

test('a call that does not wait is answered with its job, which can be looked at and followed to its end', async () => {
  const open = holdEngine();
  const started = await api.call('POST', `${path}?wait=false`, api.trainRequest('a'));
  expect(started.status).toBe(202);
  const { id } = started.json;
  expect(started.headers.get('x-art-job-id')).toBe(id);
  expect(['queued', 'running']).toContain(started.json.state);
  const following = api.stream('GET', `/api/jobs/${id}/events`);
  open();
  const events = await following;
  expect(events[0]).toMatchObject({ event: 'job', data: { id } });
  expect(events.map(({ event }) => event)).toContain('progress');
  expect(events.at(-1)).toMatchObject({ event: 'job', data: { id, state: 'done', result: { step: 1 } } });
  expect((await api.call('GET', `/api/jobs/${id}`)).json).toEqual(events.at(-1)?.data);
  expect((await api.call('GET', '/api/jobs?state=done')).json.jobs).toHaveLength(1);
  expect((await api.call('GET', '/api/jobs?state=failed')).json.jobs).toEqual([]);
});

test('a job that trained is known after a restart, by the same id', async () => {
  const result = await api.train('a');
  const before = (await api.call('GET', '/api/jobs')).json.jobs;
  await api.restart();
  const after = (await api.call('GET', '/api/jobs')).json.jobs;
  expect(after).toEqual([{ ...before[0], progress: null, created_at: null, started_at: null, finished_at: null }]);
  expect(after[0].result).toEqual(result);
});

test('an idempotency key with another body is refused: while its job waits, after it ran, and after a restart', async () => {
  const open = holdEngine();
  const first = api.trainRequest('a', [1, 0]);
  const other = { ...first, options: { learning_rate: 0.5 } };
  await api.call('POST', `${path}?wait=false`, first);
  const refused = { status: 409, json: { error: { code: 'idempotency_key_reused', param: 'idempotency_key' } } };
  expect(await api.call('POST', path, other)).toMatchObject(refused);
  const running = api.stream('POST', path, first);
  open();
  const result = (await running).at(-1);
  expect(result?.event).toBe('result');
  expect(await api.call('POST', path, other)).toMatchObject(refused);
  await api.restart();
  expect(await api.call('POST', path, other)).toMatchObject(refused);
  expect((await api.stream('POST', path, first)).at(-1)).toEqual(result);
  expect(api.registry.get('agent').model.step()).toBe(1);
});

test('a key sent many times at once trains once', async () => {
  const request = api.trainRequest('a');
  const streams = await Promise.all(Array.from({ length: 20 }, () => api.stream('POST', path, request)));
  const results = new Set(streams.map((events) => JSON.stringify(events.at(-1)?.data)));
  expect(results.size).toBe(1);
  expect(api.engine.calls.filter((call) => call === 'optimStep')).toHaveLength(1);
});

test('a running job is cancelled between two engine calls, and its step is undone', async () => {
  const weight = api.engine.weight();
  const open = holdEngine();
  const { id } = (await api.call('POST', `${path}?wait=false`, api.trainRequest('a'))).json;
  const following = api.stream('GET', `/api/jobs/${id}/events`);
  expect(await api.call('POST', `/api/jobs/${id}/cancel`)).toMatchObject({ status: 202, json: { id } });
  open();
  const last = (await following).at(-1);
  expect(last?.data).toMatchObject({ state: 'cancelled', result: null, error: { code: 'job_cancelled' } });
  expect(api.registry.get('agent').model.step()).toBe(0);
  expect(api.engine.weight()).toBe(weight);
  expect(await api.call('POST', `/api/jobs/${id}/cancel`)).toMatchObject({ status: 409 });
  // The key is free for another try.
  expect((await api.train('a')).step).toBe(1);
});

test('a waiting job is cancelled before it starts; those behind it train', async () => {
  const open = holdEngine();
  const start = async (key: string) =>
    (await api.call('POST', `${path}?wait=false`, api.trainRequest(key))).json.id as string;
  const [first, second, third] = [await start('a'), await start('b'), await start('c')];
  expect((await api.call('POST', `/api/jobs/${second}/cancel`)).json.state).toBe('cancelled');
  open();
  const ends = await Promise.all(
    [first, second, third].map(async (id) => (await api.stream('GET', `/api/jobs/${id}/events`)).at(-1)?.data.state),
  );
  expect(ends).toEqual(['done', 'cancelled', 'done']);
  expect(api.registry.get('agent').model.step()).toBe(2);
});

test('a job that fails says why, and an unknown job is not found', async () => {
  api.engine.failing = 'optimStep';
  const { id } = (await api.call('POST', `${path}?wait=false`, api.trainRequest('a'))).json;
  const last = (await api.stream('GET', `/api/jobs/${id}/events`)).at(-1);
  expect(last?.data).toMatchObject({
    state: 'failed',
    error: { code: 'engine_error', message: expect.stringMatching(/told to fail/) },
  });
  api.engine.failing = null;
  expect(await api.call('GET', '/api/jobs/job-x')).toMatchObject({
    status: 404,
    json: { error: { code: 'job_not_found' } },
  });
});

test('a full queue answers 429 with the time to come back', async () => {
  await api.close();
  api = await TestApi.open({ maxWaitingTrainCalls: 1 });
  const open = holdEngine();
  await api.call('POST', `${path}?wait=false`, api.trainRequest('a'));
  await api.call('POST', `${path}?wait=false`, api.trainRequest('b'));
  const third = await api.call('POST', path, api.trainRequest('c'));
  expect(third).toMatchObject({ status: 429, json: { error: { code: 'train_queue_full' } } });
  expect(Number(third.headers.get('retry-after'))).toBeGreaterThanOrEqual(1);
  // What is in the queue already is still found by its key.
  const again = await api.call('POST', `${path}?wait=false`, api.trainRequest('b'));
  expect(again.status).toBe(202);
  open();
});

test('a model that is deleted ends its jobs, and those who follow them are told', async () => {
  const open = holdEngine();
  const { id } = (await api.call('POST', `${path}?wait=false`, api.trainRequest('a'))).json;
  const following = api.stream('GET', `/api/jobs/${id}/events`);
  const deleting = api.confirmed('DELETE', '/api/models/agent');
  await expect.poll(() => api.registry.list()).toEqual([]);
  open();
  expect((await deleting).status).toBe(200);
  expect((await following).at(-1)?.data).toMatchObject({ id, state: 'failed' });
  expect((await api.call('GET', `/api/jobs/${id}`)).status).toBe(404);
});
