/** W&B: field by field what its own client sends for the same calls, as recorded in test/fixtures/trackers/wandb.json. */
import { readFileSync } from 'node:fs';
import { expect, test } from 'vitest';
import { type LocalServer, type ReceivedRequest, startLocalServer } from '../../test/trackers/local-server.ts';
import { ModelTrackers } from '../sdk/model-trackers.ts';
import { createTracker } from '../sdk/tracker-queue.ts';
import { WandbSink, wandbTracker } from './wandb.ts';

interface Recorded {
  readonly method: string;
  readonly path: string;
  readonly scheme: string;
  readonly body: Body;
}

interface Body {
  readonly query?: string;
  readonly variables?: Readonly<Record<string, unknown>>;
  readonly operationName?: string;
  readonly files?: Readonly<Record<string, { readonly offset: number; readonly content: readonly string[] }>>;
}

const fixture: Record<'new' | 'resumed', Recorded[]> = JSON.parse(
  readFileSync(new URL('../../test/fixtures/trackers/wandb.json', import.meta.url), 'utf8'),
);
const apiKey = 'k'.repeat(40);
const run = { project: 'demo', name: 'agent-1' };
const config = { seed: 1, lora: { rank: 8 } };

const stored = {
  summaryMetrics: '{"train/reward":0.5,"_step":2}',
  historyLineCount: 3,
  historyTail: JSON.stringify([JSON.stringify({ _step: 2, _runtime: 10.5, 'train/reward': 0.5 })]),
};

/** Answers as the recorder did. */
const startWandb = (bucket: object | null): Promise<LocalServer> =>
  startLocalServer(({ path, body }) => {
    if (path !== '/graphql') return { body: { exitcode: null, limits: {} } };
    const { query = '', variables = {} } = body as Body;
    const owner = { name: variables.project, entity: { name: variables.entity } };
    if (query.includes('upsertBucket')) {
      return { body: { data: { upsertBucket: { bucket: { id: 'x', name: variables.name, project: owner } } } } };
    }
    if (query.includes('RunResumeStatus')) return { body: { data: { model: { bucket } } } };
    return { body: { data: { viewer: { id: 'x', entity: 'me', username: 'me' } } } };
  });

async function logAll(server: LocalServer, entity?: string): Promise<ReceivedRequest[]> {
  const tracker = wandbTracker({ apiKey, baseURL: server.url, ...(entity && { entity }) });
  const trackers = new ModelTrackers([tracker], run, config);
  trackers.logRow({ step: 1, split: 'train', metrics: { 'train/reward': 0.5 } });
  const odd = { 'loss/kl': Number.NaN, 'loss/grad_norm': Number.POSITIVE_INFINITY };
  trackers.logRow({ step: 2, split: 'train', metrics: odd });
  trackers.logRow({ step: 1, split: 'val', metrics: { 'val/reward': 0.25 } });
  await trackers.flush();
  trackers.updateConfig({ tags: ['a'] });
  const [health] = await trackers.close();
  expect(health).toMatchObject({ sent: 3, dropped: 0, lastError: null });
  return server.requests;
}

const ofGraphql = (requests: readonly { readonly body: unknown }[], name: string): Body[] =>
  requests.map(({ body }) => body as Body).filter(({ operationName }) => operationName === name);

/** Names with their types, as in `{ $name: 'String' }`. */
const declaredVariables = (query: string): Record<string, string> =>
  Object.fromEntries(
    [...query.slice(0, query.indexOf('{')).matchAll(/(\$\w+): ?([\w[\]!]+)/g)].map(([, k, v]) => [k, v]),
  );

/** Pairs of an input object, as in `{ modelName: '$project' }`. */
const passedVariables = (query: string): Record<string, string> =>
  Object.fromEntries([...query.slice(query.indexOf('{')).matchAll(/(\w+): ?(\$\w+)/g)].map(([, k, v]) => [k, v]));

const selectedFields = (query: string): string[] =>
  query
    .slice(query.indexOf('{'))
    .replaceAll(/\([^)]*\)/g, '')
    .match(/\w+/g) ?? [];

/** History lines; numbers that JSON lacks as their names. */
function readHistory(requests: readonly { readonly body: unknown }[]): { offset: number; lines: object[] } {
  const files = requests.map(({ body }) => (body as Body).files?.['wandb-history.jsonl']).filter((file) => file);
  const quoted = files.flatMap((file) => file!.content).map((line) => line.replaceAll(/:(NaN|-?Infinity)/g, ':"$1"'));
  return { offset: files[0]!.offset, lines: quoted.map((line) => JSON.parse(line)) };
}

const withoutClock = (line: object): object => ({ ...line, _timestamp: 'a number', _runtime: 'a number' });

test.each(['new', 'resumed'] as const)('a run that is %s', async (kind) => {
  await using server = await startWandb(kind === 'new' ? null : stored);
  const ours = await logAll(server, 'me');
  const theirs = fixture[kind];

  for (const name of ['RunResumeStatus', 'UpsertBucket']) {
    const [mine, reference] = [ofGraphql(ours, name), ofGraphql(theirs, name)];
    expect(mine).toHaveLength(reference.length);
    for (const [index, { query = '', variables = {} }] of mine.entries()) {
      const { query: known = '', variables: values = {} } = reference[index]!;
      expect(declaredVariables(known)).toMatchObject(declaredVariables(query));
      expect(passedVariables(known)).toMatchObject(passedVariables(query));
      expect(selectedFields(known)).toEqual(expect.arrayContaining(selectedFields(query)));
      const { config: text, ...others } = variables;
      expect(values).toMatchObject(others);
      if (text === undefined) continue;
      const [sent, expected] = [JSON.parse(String(text)), JSON.parse(String(values.config))];
      expect({ ...sent, _wandb: null }).toEqual({ ...expected, _wandb: null });
      // Their first upsert comes before define_metric, ours knows the axis from the start.
      if (index === 1) expect(sent._wandb.value.m).toEqual(expected._wandb.value.m);
    }
  }
  const [mine, reference] = [readHistory(ours), readHistory(theirs)];
  expect(mine.offset).toBe(reference.offset);
  expect(mine.lines.map(withoutClock)).toEqual(reference.lines.map(withoutClock));
  const runtimes = mine.lines.map((line) => Reflect.get(line, '_runtime') as number);
  expect(runtimes[0]).toBeGreaterThanOrEqual(kind === 'new' ? 0 : 10.4);

  const path = '/files/me/demo/agent-1/file_stream';
  expect(theirs.map((request) => request.path)).toContain(path);
  const streams = ours.filter((request) => request.path === path);
  expect(streams.at(-1)?.body).toEqual({ complete: true, exitcode: 0 });
  expect(theirs.at(-1)?.body).toMatchObject({ complete: true, exitcode: 0 });
  const authorization = `${theirs[0]?.scheme} ${Buffer.from(`api:${apiKey}`).toString('base64')}`;
  expect(new Set(ours.map(({ headers }) => headers.authorization))).toEqual(new Set([authorization]));
});

test('the summary has the newest value of every metric, and those of before', async () => {
  await using server = await startWandb(stored);
  const requests = await logAll(server, 'me');
  const summaries = requests.flatMap(({ body }) => (body as Body).files?.['wandb-summary.json']?.content ?? []);
  expect(JSON.parse(summaries[0]!.replaceAll(/:(NaN|Infinity)/g, ':"$1"'))).toMatchObject({
    'train/reward': 0.5,
    'val/reward': 0.25,
    'loss/kl': 'NaN',
    _step: 5,
  });
});

test('without an entity that of the key is asked for', async () => {
  await using server = await startWandb(null);
  const requests = await logAll(server);
  expect(ofGraphql(requests, 'Viewer')).toHaveLength(1);
  expect(requests.at(-1)?.path).toBe('/files/me/demo/agent-1/file_stream');
});

test('rows whose answer was lost are sent to the same place again', async () => {
  await using server = await startWandb(null);
  const tracker = wandbTracker({ apiKey, baseURL: server.url, entity: 'me', retryDelayMs: 1, onWarning: () => {} });
  const trackers = new ModelTrackers([tracker], run, {});
  trackers.logRow({ step: 1, split: 'train', metrics: { a: 1 } });
  await trackers.flush();
  server.fault = 'cut';
  trackers.logRow({ step: 2, split: 'train', metrics: { a: 2 } });
  await expect.poll(() => tracker.health().lastError).toContain('could not be sent or was cut');
  server.fault = undefined;
  await trackers.close();
  const places = server.requests.flatMap(({ body }) => {
    const file = (body as Body).files?.['wandb-history.jsonl'];
    return file ? [[file.offset, JSON.parse(file.content[0]!)._step]] : [];
  });
  expect(places[0]).toEqual([0, 0]);
  expect(places.length).toBeGreaterThan(2);
  expect(new Set(places.slice(1).map(String))).toEqual(new Set(['1,1']));
});

test('a run that is silent is kept alive by empty messages until it is closed', async () => {
  await using server = await startWandb(null);
  const options = { apiKey, baseURL: server.url, entity: 'me', project: undefined, runId: undefined };
  const tracker = createTracker(new WandbSink({ ...options, heartbeatMs: 2 }));
  const trackers = new ModelTrackers([tracker], run, {});
  trackers.logRow({ step: 1, split: 'train', metrics: { a: 1 } });
  const beats = (): number => server.requests.filter(({ body }) => JSON.stringify(body) === '{}').length;
  await expect.poll(beats).toBeGreaterThan(1);
  await trackers.close();
});

test('an error of GraphQL is told without the key; no key is an error at once', async () => {
  await using server = await startLocalServer(() => ({ body: { errors: [{ message: 'permission denied' }] } }));
  const tracker = wandbTracker({ apiKey, baseURL: server.url, onWarning: () => {} });
  const trackers = new ModelTrackers([tracker], run, {});
  trackers.logRow({ step: 1, split: 'train', metrics: { a: 1 } });
  await trackers.close({ timeoutMs: 50 });
  expect(tracker.health()).toMatchObject({ dropped: 1, lastError: 'tracker wandb: Viewer: permission denied' });
  expect(() => wandbTracker({ apiKey: '' })).toThrow('wandbTracker: needs apiKey, or WANDB_API_KEY');
});
