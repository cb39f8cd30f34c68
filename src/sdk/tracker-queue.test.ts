import { expect, test } from 'vitest';
import { ApiError, ConfigError } from '../core/errors.ts';
import { Trajectory, TrajectoryGroup } from '../core/trajectory.ts';
import { Model } from './model.ts';
import { trackGroups } from './tracked-groups.ts';
import { mergeConfig, type TrackerRow, type TrackerRun, type TrackerSink } from './tracker.ts';
import { createTracker } from './tracker-queue.ts';

const run: TrackerRun = { project: 'demo', name: 'agent', config: { seed: 1 } };
const row = (step: number, metrics: Record<string, number> = { 'train/reward': step }): TrackerRow => ({
  step,
  split: 'train',
  metrics,
  recordedAt: new Date(0),
});
const soon = { timeoutMs: 50, retryDelayMs: 1, maxRetryDelayMs: 2 };

interface ScriptedSink extends TrackerSink {
  readonly calls: string[];
}

/** Writes down what it takes; `fail` decides what a call does instead, by the number of calls before it. */
function scriptedSink(
  fail: (what: string, call: number) => Error | 'hang' | undefined = () => undefined,
): ScriptedSink {
  const calls: string[] = [];
  let count = 0;
  const take = async (what: string): Promise<void> => {
    const outcome = fail(what, count++);
    if (outcome === 'hang') await new Promise(() => {});
    if (outcome instanceof Error) throw outcome;
    calls.push(what);
  };
  return {
    name: 'scripted',
    calls,
    start: ({ config }) => take(`start ${JSON.stringify(config)}`),
    logMetrics: (rows) => take(`rows ${rows.map(({ step }) => step).join()}`),
    logTrajectories: ({ step, groups }) =>
      take(`trajectories ${step} ${JSON.stringify(groups[0]?.trajectories[0]?.texts)}`),
    updateConfig: (config) => take(`config ${JSON.stringify(config)}`),
    close: () => take('close'),
  };
}

test('rows go out once each, in order, those of one moment together, after the run with its configuration', async () => {
  const sink = scriptedSink();
  const tracker = createTracker(sink);
  tracker.start(run);
  tracker.updateConfig({ lora: { rank: 8 } });
  tracker.logMetrics(row(1));
  tracker.logMetrics(row(2));
  await tracker.flush();
  tracker.updateConfig({ lora: { alpha: 16 } });
  tracker.logMetrics(row(0, { 'val/reward': 1 }));
  await tracker.close();
  expect(sink.calls).toEqual([
    'start {"seed":1,"lora":{"rank":8}}',
    'rows 1,2',
    'config {"seed":1,"lora":{"rank":8,"alpha":16}}',
    'rows 0',
    'close',
  ]);
  expect(tracker.health()).toEqual({ name: 'scripted', sent: 3, queued: 0, dropped: 0, lastError: null, isUp: true });
});

test('a row after close opens the run again; closing what never sent anything calls nothing', async () => {
  const sink = scriptedSink();
  const tracker = createTracker(sink);
  tracker.start(run);
  await tracker.close();
  expect(sink.calls).toEqual([]);
  tracker.logMetrics(row(1));
  await tracker.close();
  tracker.logMetrics(row(2));
  await tracker.close();
  expect(sink.calls.filter((call) => call.startsWith('start'))).toHaveLength(2);
  expect(sink.calls.filter((call) => call.startsWith('rows'))).toEqual(['rows 1', 'rows 2']);
});

test('a tracker that is down gets its rows later, in order; one warning', async () => {
  const warnings: string[] = [];
  const sink = scriptedSink((_what, call) => (call < 4 ? new ApiError('scripted: no', 503) : undefined));
  const tracker = createTracker(sink, { ...soon, onWarning: (message) => warnings.push(message) });
  tracker.start(run);
  for (let step = 1; step <= 3; step++) tracker.logMetrics(row(step));
  await tracker.flush();
  expect(sink.calls).toEqual(['start {"seed":1}', 'rows 1,2,3']);
  expect(warnings).toEqual(['tracker scripted: scripted: no; training goes on, rows wait and are sent later']);
  expect(tracker.health()).toMatchObject({ sent: 3, dropped: 0, lastError: 'scripted: no', isUp: true });
});

test('the queue of a tracker that never answers is bounded: the oldest rows go, and are counted', async () => {
  const warnings: string[] = [];
  const tracker = createTracker(
    scriptedSink(() => 'hang'),
    {
      timeoutMs: 100_000,
      maxQueuedRows: 10,
      onWarning: (message) => warnings.push(message),
    },
  );
  tracker.start(run);
  tracker.logMetrics(row(0));
  await new Promise((resolve) => setImmediate(resolve)); // row 0 is under way
  for (let step = 1; step <= 1000; step++) tracker.logMetrics(row(step));
  expect(tracker.health()).toMatchObject({ sent: 0, queued: 11, dropped: 990 });
  const health = await tracker.close({ timeoutMs: 20 });
  expect(health).toMatchObject({ sent: 0, queued: 0, dropped: 1001 });
  expect(warnings).toEqual([
    'tracker scripted: more than 10 rows wait; the oldest are dropped and counted in its health',
    'tracker scripted: closed; lost: 11 rows (steps 0–1000) and 0 batches of trajectories',
  ]);
});

test('a call that hangs ends at its limit and is made again', async () => {
  const warnings: string[] = [];
  const sink = scriptedSink((_what, call) => (call === 0 ? 'hang' : undefined));
  const tracker = createTracker(sink, { ...soon, timeoutMs: 5, onWarning: (message) => warnings.push(message) });
  tracker.start(run);
  tracker.logMetrics(row(1));
  await tracker.flush();
  expect(sink.calls).toEqual(['start {"seed":1}', 'rows 1']);
  expect(warnings[0]).toContain('tracker scripted: start: nothing within 5 ms');
});

test('a flush that takes too long keeps the rows and says how many', async () => {
  const warnings: string[] = [];
  let isDown = true;
  const sink = scriptedSink(() => (isDown ? new Error('nonsense') : undefined));
  const tracker = createTracker(sink, { ...soon, onWarning: (message) => warnings.push(message) });
  tracker.start(run);
  tracker.logMetrics(row(3));
  tracker.logMetrics(row(9));
  expect(await tracker.flush({ timeoutMs: 20 })).toMatchObject({ sent: 0, queued: 2, dropped: 0, isUp: false });
  expect(warnings[1]).toBe(
    'tracker scripted: 2 rows (steps 3–9) and 0 batches of trajectories could not be sent in time and stay queued',
  );
  isDown = false;
  expect(await tracker.flush()).toMatchObject({ sent: 2, queued: 0 });
});

test('of rows that are refused only the culprit is lost', async () => {
  const sink = scriptedSink((what) => (/^rows .*\b6\b/.test(what) ? new ApiError('row 6 is odd', 400) : undefined));
  const tracker = createTracker(sink, { ...soon, onWarning: () => {} });
  tracker.start(run);
  for (let step = 1; step <= 8; step++) tracker.logMetrics(row(step));
  await tracker.flush();
  const steps = sink.calls.slice(1).flatMap((call) => call.replace('rows ', '').split(',').map(Number));
  expect(steps).toEqual([1, 2, 3, 4, 5, 7, 8]);
  expect(tracker.health()).toMatchObject({ sent: 7, dropped: 1, lastError: 'row 6 is odd' });
});

test('a refused configuration costs no row', async () => {
  const sink = scriptedSink((what) => (what.startsWith('config') ? new ApiError('no such field', 400) : undefined));
  const tracker = createTracker(sink, { ...soon, onWarning: () => {} });
  tracker.start(run);
  tracker.logMetrics(row(1));
  await tracker.flush();
  tracker.updateConfig({ a: 1 });
  tracker.logMetrics(row(2));
  await tracker.flush();
  expect(tracker.health()).toMatchObject({ sent: 2, dropped: 0 });
});

test('a logger that throws stops nothing', async () => {
  const sink = scriptedSink((_what, call) => (call === 0 ? new Error('down') : undefined));
  const tracker = createTracker(sink, {
    ...soon,
    onWarning: () => {
      throw new Error('logger is down too');
    },
  });
  tracker.start(run);
  tracker.logMetrics(row(1));
  expect(await tracker.flush()).toMatchObject({ sent: 1 });
});

test('a tracker follows one run; options and values out of range are refused', () => {
  const tracker = createTracker(scriptedSink());
  expect(() => tracker.logMetrics(row(1))).toThrow('must be given to a model');
  tracker.start(run);
  tracker.start({ ...run });
  expect(() => tracker.start({ ...run, name: 'other' })).toThrow(
    'follows one run, demo/agent; make another for demo/other',
  );
  expect(() => createTracker(scriptedSink(), { maxQueuedRows: 0 })).toThrow('maxQueuedRows must be > 0, got 0');
  expect(() => createTracker(scriptedSink(), { retries: 1 } as object)).toThrow('got retries');
});

test('configuration merges object by object; a value that differs is an error that names its place', () => {
  const config = mergeConfig({ a: { b: 1 }, list: [1] }, { a: { c: 2 }, list: [1] });
  expect(config).toEqual({ a: { b: 1, c: 2 }, list: [1] });
  expect(() => mergeConfig(config, { a: { b: 3 } })).toThrow(
    new ConfigError('tracker config.a.b: must stay what it was set to, 1, got 3'),
  );
  expect(() => mergeConfig({}, { f: () => 1 })).toThrow('config.f: must be JSON data, got a function');
});

const conversation = new Trajectory({
  messagesAndChoices: [{ role: 'user', content: 'secret' }],
  tools: [{ type: 'function', function: { name: 'search' } }],
  additionalHistories: [{ messagesAndChoices: [{ role: 'user', content: 'sub-agent' }] }],
  reward: 0.5,
  metrics: { won: true },
  metadata: { user: 'Ada' },
  logs: ['note'],
});

test('trajectories go without texts unless these are asked for', async () => {
  const group = new TrajectoryGroup([conversation], { exceptions: [{ type: 'Error', message: 'secret' }] });
  const sink = scriptedSink();
  const model = new Model({
    name: 'gpt',
    project: 'demo',
    inferenceBaseURL: 'https://example.test/v1',
    inferenceApiKey: 'k',
    trackers: [createTracker(sink)],
  });
  model.log([group], { metrics: { accuracy: 1 } });
  await model.trackers.close();
  expect(sink.calls).toEqual(['start {"inferenceModelName":"gpt"}', 'rows 0', 'trajectories 0 null', 'close']);
  expect(JSON.stringify(trackGroups([group], false))).not.toMatch(/secret|sub-agent|Ada|note|search/);
});

test('a copy with texts has tools, all histories, metadata and logs, and is not reached by later changes', () => {
  const [tracked] = trackGroups([new TrajectoryGroup([conversation])], true);
  const before = JSON.stringify(tracked);
  conversation.messagesAndChoices.push({ role: 'user', content: 'later' });
  conversation.metrics.won = false;
  expect(JSON.stringify(tracked)).toBe(before);
  expect(tracked?.trajectories[0]).toMatchObject({
    reward: 0.5,
    metrics: { won: 1 },
    texts: {
      histories: [
        { messages: [{ message: { content: 'secret' } }], tools: [{}] },
        { messages: [{}], tools: null },
      ],
      metadata: { user: 'Ada' },
      logs: ['note'],
    },
  });
});

test('a model without a tracker says that its rows would go nowhere', () => {
  const model = new Model({
    name: 'gpt',
    project: 'demo',
    inferenceBaseURL: 'https://example.test/v1',
    inferenceApiKey: 'k',
  });
  expect(() => model.log([], { metrics: { accuracy: 1 } })).toThrow('log needs a tracker');
});
