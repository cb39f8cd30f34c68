import { expect, test } from 'vitest';
import { AbortedError, ArtError, ConfigError, RolloutError } from '../core/errors.ts';
import { type ChatChoice, Trajectory, TrajectoryGroup } from '../core/trajectory.ts';
import { type GatherGroupsOptions, gatherTrajectories, gatherTrajectoryGroups, trajectoryGroup } from './gather.ts';
import type { GatherProgress } from './gather-tally.ts';

const sleep = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms));
const scored =
  (reward: number, delayMs = 0) =>
  async (): Promise<Trajectory> => {
    await sleep(delayMs);
    return new Trajectory({ reward, metrics: { win: reward > 0, completion_tokens: 10 } });
  };
const failing =
  (message: string, delayMs = 0) =>
  async (): Promise<Trajectory> => {
    await sleep(delayMs);
    throw new TypeError(message);
  };
const rewards = (groups: readonly TrajectoryGroup[]): number[][] =>
  groups.map((group) => group.trajectories.map((trajectory) => trajectory.reward));

test('results come in input order, whatever order rollouts finish in', async () => {
  const groups = await gatherTrajectoryGroups([
    trajectoryGroup([scored(1, 30), scored(2, 1), scored(3, 15)], { metadata: { scenario: 'a' } }),
    async () => new TrajectoryGroup([new Trajectory({ reward: 4 })]),
    Promise.resolve(new TrajectoryGroup([new Trajectory({ reward: 5 })])),
    new TrajectoryGroup([new Trajectory({ reward: 6 })]),
  ]);
  expect(rewards(groups)).toEqual([[1, 2, 3], [4], [5], [6]]);
  expect(groups[0]?.metadata).toEqual({ scenario: 'a' });
});

test('a failing rollout is recorded on its group, and a group with nothing left is dropped', async () => {
  const groups = await gatherTrajectoryGroups(
    [
      trajectoryGroup([scored(1), failing('no board')]),
      trajectoryGroup([failing('a'), failing('b')]),
      () => Promise.reject(new Error('no scenario')),
      trajectoryGroup([scored(2)]),
    ],
    { maxExceptions: 4 },
  );
  expect(rewards(groups)).toEqual([[1], [2]]);
  expect(groups[0]?.exceptions).toEqual([
    { type: 'TypeError', message: 'no board', stack: expect.stringContaining('gather.test.ts') },
  ]);
});

test('onException tells of every failure, also where a group is dropped', async () => {
  const seen: string[] = [];
  const options = { maxExceptions: 2, onException: ({ message }: { message: string }) => seen.push(message) };
  await gatherTrajectoryGroups([trajectoryGroup([failing('a')]), trajectoryGroup([failing('b', 5)])], options);
  expect(seen).toEqual(['a', 'b']);
});

test('completion tokens are counted from the choices, unless the rollout says its own', async () => {
  const choice = (tokens?: number): ChatChoice => ({
    ...{ index: 0, finish_reason: 'stop', message: { role: 'assistant' } },
    art: { completion_id: 'c', policy_step: 0, ...(tokens !== undefined && { completion_tokens: tokens }) },
  });
  const rollouts = [
    [choice(3), choice(4)],
    [choice(3), choice()],
  ].map((messagesAndChoices) => async () => new Trajectory({ messagesAndChoices }));
  const own = async (): Promise<Trajectory> =>
    new Trajectory({ messagesAndChoices: [choice(3)], metrics: { completion_tokens: 9 } });
  const trajectories = await gatherTrajectories([...rollouts, own]);
  expect(trajectories.map(({ metrics }) => metrics)).toEqual([{ completion_tokens: 7 }, {}, { completion_tokens: 9 }]);
});

test('one failure more than allowed stops the gather: queued rollouts never start, running ones are told', async () => {
  let started = 0;
  let isTold = false;
  const waiting = async ({ signal }: { signal: AbortSignal }): Promise<Trajectory> => {
    started++;
    signal.addEventListener('abort', () => (isTold = true));
    await sleep(60_000);
    return new Trajectory();
  };
  const gather = gatherTrajectoryGroups(
    [trajectoryGroup([failing('first', 5), waiting, failing('second', 10), waiting])],
    { maxExceptions: 1, maxConcurrency: 2 },
  );
  const error = await gather.catch((reason: unknown) => reason);
  expect(error).toBeInstanceOf(RolloutError);
  expect(error).toBeInstanceOf(ArtError);
  expect((error as RolloutError).cause).toMatchObject({ message: 'first' });
  expect((error as RolloutError).message).toContain('at most 1 of 4 rollouts may fail (maxExceptions 1), got 2');
  expect({ started, isTold }).toEqual({ started: 1, isTold: true });
});

test('a gather that stops waits for the clean-up of what it told', async () => {
  let isClean = false;
  const tidy = async ({ signal }: { signal: AbortSignal }): Promise<Trajectory> => {
    await new Promise((resolve) => signal.addEventListener('abort', resolve));
    await sleep(30);
    isClean = true;
    return new Trajectory();
  };
  await expect(gatherTrajectoryGroups([trajectoryGroup([tidy, failing('x', 5)])])).rejects.toThrow(RolloutError);
  expect(isClean).toBe(true);
});

test('a rollout whose time was up does not finish a second time', async () => {
  const seen: GatherProgress[] = [];
  const options = { timeoutMs: 10, maxExceptions: 1, onProgress: (progress: GatherProgress) => seen.push(progress) };
  const groups = await gatherTrajectoryGroups([trajectoryGroup([scored(5, 30), scored(1)])], options);
  await sleep(50);
  expect(rewards(groups)).toEqual([[1]]);
  expect(seen.map(({ rolloutsDone, exceptions }) => [rolloutsDone, exceptions])).toEqual([
    [1, 0],
    [2, 1],
  ]);
});

test('a share of failures is of all rollouts', async () => {
  const rollouts = [scored(1), scored(1), failing('a'), failing('b')];
  await expect(gatherTrajectoryGroups([trajectoryGroup(rollouts)], { maxExceptions: 0.5 })).resolves.toHaveLength(1);
  await expect(gatherTrajectoryGroups([trajectoryGroup(rollouts)], { maxExceptions: 0.49 })).rejects.toThrow(
    RolloutError,
  );
});

test('never more than maxConcurrency rollouts run at once', async () => {
  let running = 0;
  let most = 0;
  const counted = async (): Promise<Trajectory> => {
    most = Math.max(most, ++running);
    await sleep(2);
    running--;
    return new Trajectory();
  };
  const groups = Array.from({ length: 4 }, () => trajectoryGroup(Array.from({ length: 5 }, () => counted)));
  await gatherTrajectoryGroups(groups, { maxConcurrency: 3 });
  expect(most).toBe(3);
});

test("the caller's signal ends the gather and reaches the rollouts", async () => {
  const controller = new AbortController();
  const seen: unknown[] = [];
  const gather = gatherTrajectories(
    [
      async ({ signal }) => {
        signal.addEventListener('abort', () => seen.push(signal.reason));
        await sleep(60_000);
        return new Trajectory();
      },
    ],
    { signal: controller.signal },
  );
  setTimeout(() => controller.abort(new Error('Ctrl-C')), 5);
  const error = await gather.catch((reason: unknown) => reason);
  expect(error).toBeInstanceOf(AbortedError);
  expect(error).toMatchObject({ cause: { message: 'Ctrl-C' } });
  expect(seen).toHaveLength(1);
  await expect(gatherTrajectories([scored(1)], { signal: AbortSignal.abort() })).rejects.toThrow(AbortedError);
});

test('a rollout past its time limit is a failure that names it', async () => {
  const groups = await gatherTrajectoryGroups([trajectoryGroup([scored(1), scored(2, 60_000)])], {
    timeoutMs: 20,
    maxExceptions: 1,
  });
  expect(groups[0]?.exceptions).toMatchObject([
    { type: 'AbortedError', message: 'rollout 1 of group 0: nothing within 20 ms' },
  ]);
});

test('afterEach may keep, replace, multiply or drop a group; what it throws drops the group as a failure', async () => {
  const gather = (afterEach: NonNullable<GatherGroupsOptions['afterEach']>): Promise<number[][]> =>
    gatherTrajectoryGroups([trajectoryGroup([scored(1)]), trajectoryGroup([scored(2)])], { afterEach }).then(rewards);
  const isFirst = (group: TrajectoryGroup): boolean => group.trajectories[0]?.reward === 1;
  await expect(
    gather(async (group) => {
      for (const trajectory of group) trajectory.reward *= 10;
    }),
  ).resolves.toEqual([[10], [20]]);
  await expect(gather((group) => (isFirst(group) ? null : [group, group]))).resolves.toEqual([[2], [2]]);
  const judgeFails = (): never => {
    throw new RangeError('judge');
  };
  const error = await gather(judgeFails).catch((reason: unknown) => reason);
  expect(error).toBeInstanceOf(RolloutError);
  expect(error).toMatchObject({
    message: expect.stringContaining('afterEach of group 0'),
    cause: { message: 'judge' },
  });
  const groups = [trajectoryGroup([scored(1)]), trajectoryGroup([scored(2)])];
  const afterEach = (group: TrajectoryGroup): undefined => (isFirst(group) ? judgeFails() : undefined);
  expect(rewards(await gatherTrajectoryGroups(groups, { afterEach, maxExceptions: 1 }))).toEqual([[2]]);
});

test('progress counts rollouts, groups, failures and means', async () => {
  const seen: GatherProgress[] = [];
  await gatherTrajectoryGroups([trajectoryGroup([scored(1), scored(0, 5)]), trajectoryGroup([failing('x', 10)])], {
    maxExceptions: 1,
    onProgress: (progress) => seen.push(progress),
  });
  expect(seen.map((progress) => progress.rolloutsDone)).toEqual([1, 2, 3]);
  expect(seen.at(-1)).toMatchObject({
    groupsDone: 2,
    groupsTotal: 2,
    rolloutsTotal: 3,
    exceptions: 1,
    meanReward: 0.5,
    meanMetrics: { win: 0.5, completion_tokens: 10 },
    completionTokens: 20,
  });
});

test('promises that reject early are failures of the gather, not unhandled rejections', async () => {
  const early = Promise.reject(new Error('early'));
  const trajectories = await gatherTrajectories([scored(1, 20), early], { maxExceptions: 1, maxConcurrency: 1 });
  expect(trajectories.map((trajectory) => trajectory.reward)).toEqual([1]);
});

test('unknown and senseless options are refused by name', async () => {
  const options = { maxException: 3 } as GatherGroupsOptions;
  await expect(gatherTrajectoryGroups([], options)).rejects.toThrow(
    /known options are .*maxExceptions.*got maxException$/,
  );
  await expect(gatherTrajectoryGroups([], { maxExceptions: 1.5 })).rejects.toThrow(ConfigError);
  await expect(gatherTrajectoryGroups([], { maxConcurrency: 0 })).rejects.toThrow(ConfigError);
});
