/**
 * Gathering: many rollouts at once, results in input order, failures as data. Layer 5.
 * A failing rollout is recorded on its group; a group with nothing left is dropped. Too many failures stop the gather: what is queued
 * never starts, what runs gets its AbortSignal fired and a moment to clean up.
 */
import { refuseUnknownKeys } from '../core/options.ts';
import { type RolloutException, Trajectory, TrajectoryGroup, type TrajectoryGroupInit } from '../core/trajectory.ts';
import {
  type GatherOptions,
  type GatherRun,
  gatherOptionNames,
  type Rollout,
  type RolloutContext,
  runGather,
} from './gather-run.ts';

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

export interface GatherGroupsOptions extends GatherOptions {
  /**
   * Sees each group as it completes. May return other groups in its place; null drops it; nothing keeps it.
   * When it throws, as a judge may, the group is dropped and counts as one failure of `maxExceptions`.
   */
  readonly afterEach?: (group: TrajectoryGroup) => AfterEachResult | Promise<AfterEachResult>;
}

export type AfterEachResult = TrajectoryGroup | readonly TrajectoryGroup[] | null | undefined;

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
  refuseUnknownKeys('gatherTrajectoryGroups', options, [...gatherOptionNames, 'afterEach']);
  const list = [...sources];
  const groups = await runGather(list.map(rolloutCount), options, (run) =>
    list.map((source, index) => gatherSource(source, index, options.afterEach, run)),
  );
  return groups.flatMap((group) => group ?? []);
}

/** The groups that come of one source; null when it failed. */
export async function gatherSource(
  source: GroupSource,
  index: number,
  afterEach: GatherGroupsOptions['afterEach'],
  run: GatherRun,
): Promise<readonly TrajectoryGroup[] | null> {
  const group = await resolveGroup(source, index, run);
  if (group === null) return null;
  const after = await run.afterGroup(`afterEach of group ${index}`, () => applyAfterEach(group, afterEach));
  return after === null ? null : after.result;
}

/**
 * Runs rollouts that form no group, as an evaluation does, and returns their trajectories in input order.
 * Failures within `maxExceptions` leave no entry; `onProgress` counts them.
 */
export async function gatherTrajectories(
  rollouts: Iterable<Rollout | Promise<Trajectory>>,
  options: GatherOptions = {},
): Promise<Trajectory[]> {
  refuseUnknownKeys('gatherTrajectories', options, gatherOptionNames);
  const list = [...rollouts];
  const outcomes = await runGather([list.length], options, (run) =>
    list.map((rollout, index) => {
      const start = typeof rollout === 'function' ? rollout : keepHandled(rollout);
      return run.rollout(`rollout ${index}`, 0, start);
    }),
  );
  return outcomes.flatMap((outcome) => (outcome instanceof Trajectory ? [outcome] : []));
}

async function resolveGroup(source: GroupSource, index: number, run: GatherRun): Promise<TrajectoryGroup | null> {
  if (source instanceof TrajectoryGroup) return run.group(`group ${index}`, index, async () => source);
  if (source instanceof Promise) return run.group(`group ${index}`, index, keepHandled(source));
  if (typeof source === 'function') return run.group(`group ${index}`, index, async (context) => source(context));
  const outcomes = await Promise.all(
    source.rollouts.map((start, position) => run.rollout(`rollout ${position} of group ${index}`, index, start)),
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

/** How many rollouts a source counts as. */
export function rolloutCount(source: GroupSource): number {
  return typeof source === 'object' && 'kind' in source ? source.rollouts.length : 1;
}
