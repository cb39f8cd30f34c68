/** From a rollout of one trajectory to one of a group: what `PipelineTrainer` and loops of one's own run for each scenario. Layer 5. */
import { ConfigError } from '../core/errors.ts';
import { refuseUnknownKeys, requireIntegers } from '../core/options.ts';
import { deriveSeed } from '../core/rng.ts';
import { type Trajectory, TrajectoryGroup } from '../core/trajectory.ts';
import { type AfterEachResult, gatherTrajectoryGroups, trajectoryGroup } from './gather.ts';
import type { RolloutContext } from './gather-run.ts';

export interface ScenarioContext extends RolloutContext {
  /** Which scenario of the run it is, from 0. */
  readonly index: number;
  /** For every random draw of this scenario; that of a rollout differs from its siblings'. */
  readonly seed: number;
}

export interface MemberContext extends ScenarioContext {
  /** Which of the group's rollouts it is, from 0. */
  readonly member: number;
}

/** Rolls out one scenario to a group. */
export type GroupRollout<S> = (scenario: S, context: ScenarioContext) => Promise<TrajectoryGroup>;

export interface GroupRolloutOptions {
  /** Trajectories of a group. */
  readonly groupSize: number;
  /** Limit of one rollout; default none. */
  readonly timeoutMs?: number;
  /** Sees the group when it is complete, as RULER does; may return another. What it throws fails the group. */
  readonly afterGroup?: (group: TrajectoryGroup) => AfterEachResult | Promise<AfterEachResult>;
}

/**
 * `groupSize` rollouts of one scenario at once. A failing one is recorded in `exceptions`; the group may have none left, and is returned
 * all the same. A scenario's `metadata` with plain values becomes the group's as `scenario_<key>`.
 */
export function createGroupRollout<S>(
  rollout: (scenario: S, context: MemberContext) => Promise<Trajectory>,
  options: GroupRolloutOptions,
): GroupRollout<S> {
  refuseUnknownKeys('createGroupRollout', options, ['groupSize', 'timeoutMs', 'afterGroup']);
  const { groupSize, timeoutMs = 0, afterGroup } = options;
  requireIntegers('createGroupRollout', { groupSize }, 1);
  return async (scenario, context) => {
    const exceptions: { type: string; message: string; stack?: string }[] = [];
    const members = Array.from({ length: groupSize }, (_, member) => ({ signal }: RolloutContext) => {
      const seed = deriveSeed(context.seed, 'member', member);
      return rollout(scenario, { ...context, signal, seed, member });
    });
    const metadata = scenarioMetadata(scenario);
    const [group] = await gatherTrajectoryGroups([trajectoryGroup(members, { metadata })], {
      ...{ signal: context.signal, timeoutMs, maxConcurrency: groupSize, maxExceptions: groupSize, progress: false },
      onException: (exception) => exceptions.push(exception),
    });
    if (group === undefined) return new TrajectoryGroup([], { exceptions, metadata });
    if (afterGroup === undefined) return group;
    const result = await afterGroup(group);
    if (result instanceof TrajectoryGroup) return result;
    if (result === undefined) return group;
    if (result === null) return new TrajectoryGroup([], { exceptions: group.exceptions, metadata });
    throw new ConfigError('createGroupRollout: afterGroup must give one group, null or nothing, got a list');
  };
}

function scenarioMetadata(scenario: unknown): Record<string, string | number | boolean | null> {
  const metadata = typeof scenario === 'object' && scenario !== null && 'metadata' in scenario ? scenario.metadata : {};
  if (typeof metadata !== 'object' || metadata === null) return {};
  return Object.fromEntries(
    Object.entries(metadata)
      .filter(([, value]) => value === null || ['string', 'number', 'boolean'].includes(typeof value))
      .map(([key, value]) => [`scenario_${key}`, value]),
  );
}
