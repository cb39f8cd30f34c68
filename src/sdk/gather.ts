/**
 * Gathering: many rollouts at once, results in input order, failures as data. Layer 5.
 * A failing rollout is recorded on its group; a group with nothing left is dropped. Too many failures stop the gather: what is queued
 * never starts, what runs gets its AbortSignal fired.
 */
import { setMaxListeners } from 'node:events';
import pLimit from 'p-limit';
import { AbortedError, ConfigError, DataError, RolloutError } from '../core/errors.ts';
import { type RolloutException, Trajectory, TrajectoryGroup, type TrajectoryGroupInit } from '../core/trajectory.ts';
import { withDeadline } from './deadline.ts';
import { createProgressBar } from './gather-bar.ts';
import { type GatherProgress, GatherTally } from './gather-tally.ts';
import { refuseUnknownKeys } from './options.ts';

export interface RolloutContext {
  /** Fires when the gather stops or the rollout's time is up; pass it on to every call. */
  readonly signal: AbortSignal;
}

/** Produces one trajectory. */
export type Rollout = (context: RolloutContext) => Promise<Trajectory>;

/** A group whose rollouts have not started: the gather starts them, as `maxConcurrency` allows. */
export interface PendingGroup {
  readonly kind: 'pendingGroup';
  readonly rollouts: readonly Rollout[];
  readonly init: TrajectoryGroupInit;
}

/** What may be gathered. A promise is already running: the gather can neither hold it back nor cancel it. */
export type GroupSource =
  | PendingGroup
  | TrajectoryGroup
  | Promise<TrajectoryGroup>
  | ((context: RolloutContext) => Promise<TrajectoryGroup> | TrajectoryGroup);

export interface GatherOptions {
  /** Text beside the progress bar; default `gather`. */
  readonly description?: string;
  /** Failures to bear: a count, or below 1 a share of all rollouts. One more rejects. Default 0. */
  readonly maxExceptions?: number;
  /** Rollouts that run at once; default 128. */
  readonly maxConcurrency?: number;
  /** Limit of one rollout; default none. */
  readonly timeoutMs?: number;
  readonly signal?: AbortSignal;
  /** After every rollout. */
  readonly onProgress?: (progress: GatherProgress) => void;
  /** Draw a progress bar on standard error; default: if that is a terminal. */
  readonly progress?: boolean;
}

export interface GatherGroupsOptions extends GatherOptions {
  /** Sees each group as it completes. May return other groups in its place; null drops it; nothing keeps it. What it throws ends the gather. */
  readonly afterEach?: (group: TrajectoryGroup) => AfterEachResult | Promise<AfterEachResult>;
}

export type AfterEachResult = TrajectoryGroup | readonly TrajectoryGroup[] | null | undefined;

const OPTION_NAMES = [
  'description',
  'maxExceptions',
  'maxConcurrency',
  'timeoutMs',
  'signal',
  'onProgress',
  'progress',
];

/** Describes one group: rollouts of the same scenario, to be started by `gatherTrajectoryGroups`. */
export function trajectoryGroup(rollouts: readonly Rollout[], init: TrajectoryGroupInit = {}): PendingGroup {
  return { kind: 'pendingGroup', rollouts, init };
}

/**
 * Runs all rollouts of all groups and returns the groups in input order, whatever order they finish in.
 * Throws RolloutError past `maxExceptions` with the first failure as cause, AbortedError when `signal` fires.
 */
export async function gatherTrajectoryGroups(
  sources: Iterable<GroupSource>,
  options: GatherGroupsOptions = {},
): Promise<TrajectoryGroup[]> {
  refuseUnknownKeys('gatherTrajectoryGroups', options, [...OPTION_NAMES, 'afterEach']);
  const list = [...sources];
  const groups = await runGather(list.map(rolloutCount), options, (runner) =>
    list.map(async (source, index) => {
      const group = await resolveGroup(source, index, runner);
      return group === null ? [] : applyAfterEach(group, options.afterEach);
    }),
  );
  return groups.flat();
}

/**
 * Runs rollouts that form no group, as an evaluation does, and returns their trajectories in input order.
 * Failures within `maxExceptions` leave no entry; `onProgress` counts them.
 */
export async function gatherTrajectories(
  rollouts: Iterable<Rollout | Promise<Trajectory>>,
  options: GatherOptions = {},
): Promise<Trajectory[]> {
  refuseUnknownKeys('gatherTrajectories', options, OPTION_NAMES);
  const list = [...rollouts];
  const outcomes = await runGather([list.length], options, (runner) =>
    list.map((rollout, index) => {
      const run = typeof rollout === 'function' ? rollout : keepHandled(rollout);
      return runner.rollout(`rollout ${index}`, 0, run);
    }),
  );
  return outcomes.flatMap((outcome) => (outcome instanceof Trajectory ? [outcome] : []));
}

interface Runner {
  /** The trajectory, or its failure, already counted. Rejects only when the whole gather stops. */
  rollout(what: string, group: number, run: Rollout): Promise<Trajectory | RolloutException>;
  /** The same for a source that gives a whole group; null when it failed. */
  group(
    what: string,
    group: number,
    run: (context: RolloutContext) => Promise<TrajectoryGroup>,
  ): Promise<TrajectoryGroup | null>;
}

/** Concurrency, time limits, counting, progress and stopping, common to both gathers. `rollouts_P`: number of rollouts per group. */
async function runGather<T>(
  rollouts_P: readonly number[],
  options: GatherOptions,
  start: (runner: Runner) => Promise<T>[],
): Promise<T[]> {
  const { maxExceptions = 0, maxConcurrency = 128, timeoutMs = 0, onProgress, description = 'gather' } = options;
  const tally = new GatherTally(rollouts_P);
  const allowed = allowedExceptions(maxExceptions, tally.rolloutsTotal);
  if (!Number.isInteger(maxConcurrency) || maxConcurrency < 1) {
    throw new ConfigError(`gather: maxConcurrency must be a positive integer, got ${maxConcurrency}`);
  }
  const limit = pLimit(maxConcurrency);
  const controller = new AbortController();
  setMaxListeners(0, controller.signal); // one listener for each running rollout is no leak
  const bar = createProgressBar(description, options.progress);
  const report = (): void => {
    if (controller.signal.aborted) return;
    const progress = tally.progress();
    bar?.update(progress);
    onProgress?.(progress);
  };

  const attempt = <R>(what: string, run: (context: RolloutContext) => Promise<R>): Promise<R | RolloutException> =>
    limit(async () => {
      try {
        return await withDeadline({ what, timeoutMs, signal: controller.signal }, (signal) => run({ signal }));
      } catch (error) {
        if (controller.signal.aborted) throw controller.signal.reason;
        const exception = describeException(error);
        if (tally.addException(error) > allowed) {
          const { exceptions, rolloutsTotal } = tally.progress();
          controller.abort(
            new RolloutError(
              `gather: at most ${allowed} of ${rolloutsTotal} rollouts may fail (maxExceptions ${maxExceptions}), got ${exceptions}; ` +
                `${what} failed with ${exception.type}: ${exception.message}`,
              { cause: tally.firstException, details: { exceptions, maxExceptions, rolloutsTotal } },
            ),
          );
          throw controller.signal.reason;
        }
        return exception;
      }
    });

  const runner: Runner = {
    rollout: async (what, group, run) => {
      const outcome = await attempt(what, async (context) => {
        const trajectory: unknown = await run(context);
        if (trajectory instanceof Trajectory) return trajectory;
        throw new DataError(`${what}: a rollout must return a Trajectory, got ${typeof trajectory}`);
      });
      if (outcome instanceof Trajectory) tally.addTrajectory(outcome);
      tally.finishRollout(group);
      report();
      return outcome;
    },
    group: async (what, group, run) => {
      const outcome = await attempt(what, async (context) => {
        const result: unknown = await run(context);
        if (result instanceof TrajectoryGroup) return result;
        throw new DataError(`${what}: must give a TrajectoryGroup, got ${typeof result}`);
      });
      const isGroup = outcome instanceof TrajectoryGroup;
      if (isGroup) outcome.trajectories.forEach((trajectory) => void tally.addTrajectory(trajectory));
      tally.finishRollout(group);
      report();
      return isGroup ? outcome : null;
    },
  };

  const stop = (): void => {
    controller.abort(new AbortedError(`${description}: aborted by the caller`, { cause: options.signal?.reason }));
  };
  try {
    if (options.signal?.aborted) stop();
    options.signal?.addEventListener('abort', stop, { once: true });
    const work = start(runner);
    for (const promise of work) promise.catch((error: unknown) => controller.abort(error));
    return await Promise.all(work);
  } catch (error) {
    throw controller.signal.aborted ? controller.signal.reason : error;
  } finally {
    options.signal?.removeEventListener('abort', stop);
    bar?.stop();
  }
}

async function resolveGroup(source: GroupSource, index: number, runner: Runner): Promise<TrajectoryGroup | null> {
  if (source instanceof TrajectoryGroup) return runner.group(`group ${index}`, index, async () => source);
  if (source instanceof Promise) return runner.group(`group ${index}`, index, keepHandled(source));
  if (typeof source === 'function') return runner.group(`group ${index}`, index, async (context) => source(context));
  const outcomes = await Promise.all(
    source.rollouts.map((run, position) => runner.rollout(`rollout ${position} of group ${index}`, index, run)),
  );
  const trajectories: Trajectory[] = [];
  const failures: RolloutException[] = [];
  for (const outcome of outcomes) {
    if (outcome instanceof Trajectory) trajectories.push(outcome);
    else failures.push(outcome);
  }
  if (trajectories.length === 0) return null;
  return new TrajectoryGroup(trajectories, {
    ...source.init,
    exceptions: [...(source.init.exceptions ?? []), ...failures],
  });
}

async function applyAfterEach(
  group: TrajectoryGroup,
  afterEach: GatherGroupsOptions['afterEach'],
): Promise<readonly TrajectoryGroup[]> {
  if (afterEach === undefined) return [group];
  const result = await afterEach(group);
  if (result === null) return [];
  if (result === undefined) return [group];
  return result instanceof TrajectoryGroup ? [result] : result;
}

/** A promise as something to run; its rejection is never "unhandled" while it waits for its turn. */
function keepHandled<T>(promise: Promise<T>): () => Promise<T> {
  promise.catch(() => {});
  return () => promise;
}

function rolloutCount(source: GroupSource): number {
  return typeof source === 'object' && 'kind' in source ? source.rollouts.length : 1;
}

function allowedExceptions(maxExceptions: number, rollouts: number): number {
  if (Number.isInteger(maxExceptions) && maxExceptions >= 0) return maxExceptions;
  if (maxExceptions > 0 && maxExceptions < 1) return Math.floor(maxExceptions * rollouts);
  throw new ConfigError(`gather: maxExceptions must be a count or a share between 0 and 1, got ${maxExceptions}`);
}

function describeException(error: unknown): RolloutException {
  return error instanceof Error
    ? { type: error.name, message: error.message }
    : { type: typeof error, message: String(error) };
}
