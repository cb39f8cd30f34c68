/** MLflow against a local server; a real one is in `npm run test:trackers`. */
import { expect, test } from 'vitest';
import { type Answer, type LocalServer, startLocalServer } from '../../test/trackers/local-server.ts';
import { Trajectory, TrajectoryGroup } from '../core/trajectory.ts';
import { ModelTrackers } from '../sdk/model-trackers.ts';
import { mlflowTracker } from './mlflow.ts';

interface Stored {
  readonly params: Map<string, string>;
  readonly metrics: { key: string; value: unknown; step: number }[];
  readonly statuses: string[];
  experiment: string | undefined;
  run: { info: object; data: { params: { key: string }[] } } | undefined;
}

/** The calls of MLflow's API that the tracker makes, with its rules: experiments and runs are made once, parameters never change. */
async function startStore(): Promise<LocalServer & { readonly stored: Stored }> {
  const stored: Stored = { params: new Map(), metrics: [], statuses: [], experiment: undefined, run: undefined };
  const calls: Record<string, (body: Record<string, unknown>) => Answer> = {
    'experiments/get-by-name': () =>
      stored.experiment === undefined
        ? { status: 404, body: { error_code: 'RESOURCE_DOES_NOT_EXIST' } }
        : { body: { experiment: { experiment_id: '1', name: stored.experiment } } },
    'experiments/create': ({ name }) => {
      stored.experiment = String(name);
      return { body: { experiment_id: '1' } };
    },
    'runs/search': () => ({ body: stored.run ? { runs: [stored.run] } : {} }),
    'runs/create': ({ run_name }) => {
      const info = { run_id: 'r1', run_name, artifact_uri: 'mlflow-artifacts:/1/r1/artifacts' };
      stored.run = { info, data: { params: [] } };
      return { body: { run: stored.run } };
    },
    'runs/update': ({ status }) => {
      stored.statuses.push(String(status));
      return { body: {} };
    },
    'runs/log-batch': ({ metrics = [], params = [] }) => {
      for (const { key, value } of params as { key: string; value: string }[]) {
        if (stored.params.has(key)) return { status: 400, body: { error_code: 'INVALID_PARAMETER_VALUE' } };
        stored.params.set(key, value);
        stored.run?.data.params.push({ key });
      }
      stored.metrics.push(...(metrics as Stored['metrics']));
      return { body: {} };
    },
  };
  const server = await startLocalServer(({ path, body }) => {
    const call = /^\/api\/2\.0\/mlflow\/([\w/-]+)/.exec(path)?.[1] ?? '';
    return calls[call]?.((body ?? {}) as Record<string, unknown>) ?? { body: '' };
  });
  return Object.assign(server, { stored });
}

const run = { project: 'demo', name: 'agent-1' };

test('a run is made once and goes on after a restart; parameters are sent once', async () => {
  await using server = await startStore();
  for (const step of [1, 2]) {
    const trackers = new ModelTrackers([mlflowTracker({ baseURL: server.url, token: 't' })], run, {
      lora: { rank: 8 },
    });
    trackers.logRow({ step, split: 'train', metrics: { 'train/reward': 0.5, 'loss/kl': Number.NaN, 'odd@name': 1 } });
    if (step === 2) trackers.updateConfig({ tags: ['a'] });
    const [health] = await trackers.close();
    expect(health).toMatchObject({ sent: 1, dropped: 0, lastError: null });
  }
  const { stored, requests } = server;
  expect(Object.fromEntries(stored.params)).toEqual({ 'lora.rank': '8', tags: '["a"]' });
  expect(stored.metrics.map(({ key, value, step }) => [key, value, step])).toEqual(
    [1, 2].flatMap((step) => [
      ['train/reward', 0.5, step],
      ['loss/kl', 'NaN', step],
      ['odd_name', 1, step],
    ]),
  );
  expect(stored.statuses).toEqual(['RUNNING', 'FINISHED', 'RUNNING', 'FINISHED']);
  expect(new Set(requests.map(({ headers }) => headers.authorization))).toEqual(new Set(['Bearer t']));
});

test('trajectories are artifacts of the run, where texts are asked for', async () => {
  await using server = await startStore();
  const trackers = new ModelTrackers([mlflowTracker({ baseURL: server.url, texts: true })], run, {});
  const trajectory = new Trajectory({ messagesAndChoices: [{ role: 'user', content: 'Hello' }], reward: 1 });
  trackers.logRow({ step: 3, split: 'val', metrics: {}, groups: [new TrajectoryGroup([trajectory])] });
  await trackers.close();
  const upload = server.requests.find(({ method }) => method === 'PUT');
  expect(upload?.path).toMatch(
    /^\/api\/2\.0\/mlflow-artifacts\/artifacts\/1\/r1\/artifacts\/trajectories\/val\/3-\d+\.jsonl$/,
  );
  expect(JSON.stringify(upload?.body)).toContain('Hello');
});

test('a long backlog goes in calls of 1,000 metrics', async () => {
  await using server = await startStore();
  const trackers = new ModelTrackers([mlflowTracker({ baseURL: server.url })], run, {});
  const metrics = Object.fromEntries(Array.from({ length: 7 }, (_, index) => [`m${index}`, index]));
  for (let step = 0; step < 400; step++) trackers.logRow({ step, split: 'train', metrics });
  await trackers.close();
  const sizes = server.requests.flatMap(({ body }) => {
    const list = (body as { metrics?: unknown[] }).metrics;
    return list === undefined ? [] : [list.length];
  });
  expect(sizes).toEqual([1000, 1000, 800]);
});
