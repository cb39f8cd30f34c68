import { expect, test } from 'vitest';
import { ConfigError, RolloutError } from '../core/errors.ts';
import { Trajectory, type TrajectoryGroup } from '../core/trajectory.ts';
import { type GroupBatchesOptions, trajectoryGroupBatches } from './batches.ts';
import { gatherInformativeGroups } from './dynamic-sampling.ts';
import { type PendingGroup, trajectoryGroup } from './gather.ts';

const sleep = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms));
const rewards = (groups: readonly TrajectoryGroup[]): number[][] =>
  groups.map((group) => group.trajectories.map((trajectory) => trajectory.reward));

interface Log {
  started: number[];
  running: number;
  most: number;
  aborted: number;
}

/** Group `index` has rewards `index` and `index + spread`; its rollouts take `delayMs`. */
function* sources(count: number, log: Log, delayMs: (index: number) => number, spread = 1): Generator<PendingGroup> {
  for (let index = 0; index < count; index++) {
    const rollout =
      (reward: number) =>
      async ({ signal }: { signal: AbortSignal }): Promise<Trajectory> => {
        log.started.push(index);
        log.most = Math.max(log.most, ++log.running);
        signal.addEventListener('abort', () => log.aborted++);
        await sleep(delayMs(index));
        log.running--;
        return new Trajectory({ reward });
      };
    yield trajectoryGroup([rollout(index), rollout(index + spread)]);
  }
}
const newLog = (): Log => ({ started: [], running: 0, most: 0, aborted: 0 });

test('batches come in order whatever finishes first, and no more run ahead than allowed', async () => {
  const log = newLog();
  const seen: [number, number[]][] = [];
  const options = { batchSize: 2, maxConcurrentBatches: 2, maxConcurrency: 3 };
  for await (const { groups, index } of trajectoryGroupBatches(
    sources(7, log, (i) => 12 - i),
    options,
  )) {
    seen.push([index, groups.map((group) => group.trajectories[0]?.reward ?? -1)]);
    expect(Math.max(...log.started)).toBeLessThan(2 * (index + 3));
  }
  expect(seen).toEqual([
    [0, [0, 1]],
    [1, [2, 3]],
    [2, [4, 5]],
    [3, [6]],
  ]);
  expect(log.most).toBe(3);
});

test('skipped batches never start', async () => {
  const log = newLog();
  const indices: number[] = [];
  const options = { batchSize: 2, skipBatches: 2 };
  for await (const { index } of trajectoryGroupBatches(
    sources(7, log, () => 1),
    options,
  ))
    indices.push(index);
  expect(indices).toEqual([2, 3]);
  expect(Math.min(...log.started)).toBe(4);
});

test('leaving the loop stops what runs ahead', async () => {
  const log = newLog();
  const options = { batchSize: 1, maxConcurrentBatches: 3 };
  for await (const _ of trajectoryGroupBatches(
    sources(9, log, (index) => index * 200),
    options,
  ))
    break;
  expect(log.aborted).toBeGreaterThan(0);
  const { length } = log.started;
  await sleep(20);
  expect(log.started).toHaveLength(length);
});

test('a failing batch is thrown when its turn comes; async sources and promises may be batched', async () => {
  const failing = trajectoryGroup([() => Promise.reject(new Error('no'))]);
  async function* asynchronous(): AsyncGenerator<PendingGroup> {
    yield* sources(2, newLog(), () => 1);
    yield failing;
  }
  const indices: number[] = [];
  const loop = async (options: Partial<GroupBatchesOptions>): Promise<void> => {
    for await (const { index } of trajectoryGroupBatches(asynchronous(), { batchSize: 1, ...options }))
      indices.push(index);
  };
  await expect(loop({})).rejects.toThrow(RolloutError);
  expect(indices).toEqual([0, 1]);
  await loop({ maxBatchExceptions: 1 });
  expect(indices).toEqual([0, 1, 0, 1, 2]);
  await expect(loop({ batchSize: 0 })).rejects.toThrow(ConfigError);
});

test('dynamic sampling: one more scenario for each group without difference, the same groups at any speed', async () => {
  const pattern = [1, 0, 0, 1, 1, 0, 1, 1, 1, 1];
  const run = async (delayMs: (index: number) => number): Promise<unknown> => {
    const log = newLog();
    const list = pattern.flatMap((spread, index) => [...sources(index + 1, log, delayMs, spread)].slice(-1));
    const result = await gatherInformativeGroups(list, { groups: 4 });
    return { found: rewards(result.groups).map(([first]) => first), metrics: result.metrics, sources: result.sources };
  };
  const expected = {
    found: [0, 3, 4, 6],
    metrics: {
      'discarded/step/zero_variance_groups': 3,
      'discarded/step/failed_groups': 0,
      'discarded/rate/zero_variance_groups': 3 / 7,
    },
    sources: 7,
  };
  expect(await run(() => 1)).toEqual(expected);
  expect(await run((index) => 20 - index)).toEqual(expected);
  expect(await run((index) => (index * 7) % 11)).toEqual(expected);
});

test('dynamic sampling ends at its bound, and with its sources', async () => {
  const equal = (count: number): Generator<PendingGroup> => sources(count, newLog(), () => 1, 0);
  const bounded = await gatherInformativeGroups(equal(50), { groups: 2, maxSources: 5 });
  expect([bounded.groups.length, bounded.discarded.length, bounded.sources]).toEqual([0, 5, 5]);
  const ended = await gatherInformativeGroups(equal(3), { groups: 2, maxSources: 9 });
  expect(ended.sources).toBe(3);
  await expect(gatherInformativeGroups(equal(3), { groups: 3, maxSources: 2 })).rejects.toThrow(ConfigError);
});

test('dynamic sampling counts failed groups and asks for another scenario', async () => {
  const failing = trajectoryGroup([() => Promise.reject(new Error('no'))]);
  const list = [failing, ...sources(3, newLog(), () => 1)];
  const result = await gatherInformativeGroups(list, { groups: 2, maxExceptions: 1 });
  expect(rewards(result.groups)).toEqual([
    [0, 1],
    [1, 2],
  ]);
  expect(result.metrics['discarded/step/failed_groups']).toBe(1);
});
