/**
 * Watches groups for signs that the policy games its reward. Layer 5.
 * Alarms are data with numbers and thresholds; nothing throws unless asked to, and no group is changed.
 */
import { average, standardDeviation } from '../core/advantage.ts';
import { ConfigError, DataError } from '../core/errors.ts';
import { canonicalJson } from '../core/json.ts';
import { refuseUnknownKeys, requireIntegers } from '../core/options.ts';
import type { Trajectory, TrajectoryGroup } from '../core/trajectory.ts';
import { type Measure, measured } from './budget-rewards.ts';
import {
  type AlarmKind,
  alarmKinds,
  correlation,
  defaultGuardThresholds,
  findAlarms,
  type GuardRow,
  type GuardThresholds,
  type RewardAlarm,
} from './guard-checks.ts';

export interface RewardGuardOptions {
  /** The highest reward there is: many trajectories at it are a sign of saturation. Default: not watched. */
  readonly maxReward?: number;
  /** A reward that is not trained on: a metric of trajectories, or a function. Default: none. */
  readonly heldOut?: { readonly metric: string } | ((trajectory: Trajectory) => number | Promise<number>);
  /** Length of a trajectory; default the characters that were sampled. */
  readonly length?: Measure;
  readonly thresholds?: Partial<GuardThresholds>;
  /** Steps that a new one is compared with; default 20. */
  readonly window?: number;
  /** Steps that must be there before; default 5. */
  readonly minHistory?: number;
  /** Trajectories in groups with different rewards and lengths that a correlation takes; default 16. */
  readonly minCorrelated?: number;
  /** Rows of an earlier guard, to go on from. */
  readonly history?: readonly GuardRow[];
  /** Kinds that make `observe` throw a DataError, after the row is kept; default none. */
  readonly throwOn?: readonly AlarmKind[];
}

export interface GuardReport {
  readonly alarms: readonly RewardAlarm[];
  /** `guard/…`, for `model.log([], { metrics })`. */
  readonly metrics: Readonly<Record<string, number>>;
  readonly row: GuardRow;
}

export interface RewardGuard {
  /** Looks at the groups of a step. Default step: one more than the last. */
  observe(groups: readonly TrajectoryGroup[], options?: { readonly step?: number }): Promise<GuardReport>;
  /** The newest rows, as many as the window holds. */
  readonly history: readonly GuardRow[];
}

const optionNames = [
  ...['maxReward', 'heldOut', 'length', 'thresholds', 'window', 'minHistory', 'minCorrelated', 'history', 'throwOn'],
];

/** Throws ConfigError for unknown options and thresholds that are no numbers. */
export function createRewardGuard(options: RewardGuardOptions = {}): RewardGuard {
  refuseUnknownKeys('createRewardGuard', options, optionNames);
  const { window = 20, minHistory = 5, throwOn = [] } = options;
  const thresholds = checkThresholds(options.thresholds ?? {});
  requireIntegers('createRewardGuard', { window, minHistory }, 1);
  const unknown = throwOn.find((kind) => !alarmKinds.includes(kind));
  if (unknown !== undefined) {
    throw new ConfigError(`createRewardGuard: throwOn must be of ${alarmKinds.join(', ')}, got ${unknown}`);
  }
  const rows: GuardRow[] = [...(options.history ?? [])].slice(-window);
  return {
    get history() {
      return [...rows];
    },
    async observe(groups, { step = (rows.at(-1)?.step ?? -1) + 1 } = {}) {
      const row = await describeGroups(groups, step, options);
      const alarms = findAlarms({ row, before: [...rows], thresholds, minHistory });
      rows.push(row);
      if (rows.length > window) rows.shift();
      const grave = alarms.filter(({ kind }) => throwOn.includes(kind));
      if (grave.length > 0) {
        throw new DataError(`reward guard: ${grave.map(({ message }) => message).join('; ')}`, { details: { alarms } });
      }
      return { alarms, row, metrics: toMetrics(row, alarms) };
    },
  };
}

/** What the guard looks at, of groups of one step. */
export async function describeGroups(
  groups: readonly TrajectoryGroup[],
  step: number,
  options: Pick<RewardGuardOptions, 'maxReward' | 'heldOut' | 'length' | 'minCorrelated'> = {},
): Promise<GuardRow> {
  const { maxReward, heldOut, length = 'characters', minCorrelated = 16 } = options;
  const trajectories = groups.flatMap((group) => group.trajectories);
  if (trajectories.length === 0) throw new DataError('reward guard: groups must have trajectories, got none');
  const spreads = groups
    .filter((group) => group.length > 1)
    .map((group) => standardDeviation(group.trajectories.map(({ reward }) => reward)));
  const atMax = trajectories.filter(({ reward }) => maxReward !== undefined && reward >= maxReward).length;
  return {
    step,
    trajectories: trajectories.length,
    meanReward: average(trajectories.map(({ reward }) => reward)),
    groupStd: spreads.length === 0 ? null : average(spreads),
    saturation: maxReward === undefined ? null : atMax / trajectories.length,
    lengthCorrelation: correlateLength(groups, length, minCorrelated),
    heldOut: heldOut === undefined ? null : await meanHeldOut(trajectories, heldOut),
    ...countRepeats(groups),
  };
}

async function meanHeldOut(
  trajectories: readonly Trajectory[],
  heldOut: NonNullable<RewardGuardOptions['heldOut']>,
): Promise<number> {
  const read = typeof heldOut === 'function' ? heldOut : (one: Trajectory) => measured('reward guard', heldOut, one);
  const value = average(await Promise.all(trajectories.map(read)));
  if (!Number.isFinite(value)) throw new DataError(`reward guard: heldOut must give finite numbers, got ${value}`);
  return value;
}

function correlateLength(groups: readonly TrajectoryGroup[], length: Measure, least: number): number | null {
  const rewards: number[] = [];
  const lengths: number[] = [];
  for (const { trajectories } of groups) {
    const ofGroup = trajectories.map((trajectory) => measured('reward guard', length, trajectory));
    const centre = { reward: average(trajectories.map(({ reward }) => reward)), length: average(ofGroup) };
    if (standardDeviation(ofGroup) === 0 && trajectories.length > 0) continue;
    if (trajectories.every(({ reward }) => reward === trajectories[0]?.reward)) continue;
    rewards.push(...trajectories.map(({ reward }) => reward - centre.reward));
    lengths.push(...ofGroup.map((value) => value - centre.length));
  }
  return rewards.length < least ? null : correlation(rewards, lengths);
}

/** What the policy did, its texts and calls, without ids. */
function completionOf(trajectory: Trajectory): string {
  const turns = trajectory
    .allChoices()
    .map(({ message }) => [
      message.content ?? '',
      (message.tool_calls ?? []).map((call) => ({ ...call, id: undefined })),
    ]);
  return canonicalJson(turns);
}

function countRepeats(groups: readonly TrajectoryGroup[]): Pick<GuardRow, 'duplicates' | 'shared'> {
  const completions_P_G = groups.map((group) => group.trajectories.map(completionOf));
  const groupsWith = new Map<string, number>();
  for (const list of completions_P_G) {
    for (const one of new Set(list)) groupsWith.set(one, (groupsWith.get(one) ?? 0) + 1);
  }
  let [total, duplicates, shared] = [0, 0, 0];
  for (const list of completions_P_G) {
    const times = new Map<string, number>();
    for (const one of list) times.set(one, (times.get(one) ?? 0) + 1);
    total += list.length;
    duplicates += list.filter((one) => (times.get(one) ?? 0) > 1).length;
    shared += list.filter((one) => (groupsWith.get(one) ?? 0) > 1).length;
  }
  return { duplicates: duplicates / total, shared: groups.length < 2 ? null : shared / total };
}

function toMetrics(row: GuardRow, alarms: readonly RewardAlarm[]): Record<string, number> {
  const values: Record<string, number | null> = {
    mean_reward: row.meanReward,
    group_std: row.groupStd,
    saturation: row.saturation,
    length_correlation: row.lengthCorrelation,
    held_out: row.heldOut,
    duplicates: row.duplicates,
    shared_completions: row.shared,
    alarms: alarms.length,
  };
  for (const { kind } of alarms) values[`alarm/${kind}`] = 1;
  const present = Object.entries(values).filter((entry): entry is [string, number] => entry[1] !== null);
  return Object.fromEntries(present.map(([name, value]) => [`guard/${name}`, value]));
}

function checkThresholds(given: Partial<GuardThresholds>): GuardThresholds {
  refuseUnknownKeys('createRewardGuard.thresholds', given, Object.keys(defaultGuardThresholds));
  for (const [name, value] of Object.entries(given)) {
    if (!Number.isFinite(value) || value < 0) {
      throw new ConfigError(`createRewardGuard.thresholds: ${name} must be a number of at least 0, got ${value}`);
    }
  }
  return { ...defaultGuardThresholds, ...given };
}
