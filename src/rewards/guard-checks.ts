/** Signs that a reward is gamed, each a function of what was observed so far. Layer 5. Pure: rows in, an alarm or null out. */
import { average } from '../core/advantage.ts';

/** What one batch of groups looked like. Plain data: keep rows to go on later. */
export interface GuardRow {
  readonly step: number;
  readonly trajectories: number;
  readonly meanReward: number;
  /** Mean over groups of more than one trajectory; null without any. */
  readonly groupStd: number | null;
  /** Share of trajectories at `maxReward`; null where none was given. */
  readonly saturation: number | null;
  /** Pearson's, of rewards and lengths centred in their groups; null where one of them does not vary, or too few do. */
  readonly lengthCorrelation: number | null;
  /** Mean of the reward that is not trained on; null where there is none. */
  readonly heldOut: number | null;
  /** Share of trajectories that another one of the same group equals. */
  readonly duplicates: number;
  /** Share of trajectories that one of another group equals; null for a single group. */
  readonly shared: number | null;
}

export const alarmKinds = [
  'saturation',
  'collapse',
  'jump',
  'length',
  'held_out',
  'duplicates',
  'shared_completions',
] as const;
export type AlarmKind = (typeof alarmKinds)[number];

export interface RewardAlarm {
  readonly kind: AlarmKind;
  readonly step: number;
  readonly value: number;
  /** What `value` went beyond. */
  readonly threshold: number;
  readonly message: string;
}

export interface GuardThresholds {
  /** Share of trajectories at `maxReward`; default 0.95. */
  readonly saturation: number;
  /** Group deviation as a share of its median so far; default 0.1. */
  readonly collapse: number;
  /** Distance of the mean reward from its median so far, in robust deviations; default 6. */
  readonly jumpDeviations: number;
  /** A smaller jump is none, however steady the reward was; default 0.1. */
  readonly jumpFloor: number;
  /** Absolute correlation of reward and length; default 0.8. */
  readonly lengthCorrelation: number;
  /** Rise of the trained and fall of the held-out reward, between the halves of the window; default 0.05. */
  readonly divergence: number;
  /** Share of trajectories; default 0.5. */
  readonly duplicates: number;
  /** Share of trajectories; default 0.5. */
  readonly sharedCompletions: number;
}

export const defaultGuardThresholds: GuardThresholds = {
  saturation: 0.95,
  collapse: 0.1,
  jumpDeviations: 6,
  jumpFloor: 0.1,
  lengthCorrelation: 0.8,
  divergence: 0.05,
  duplicates: 0.5,
  sharedCompletions: 0.5,
};

interface CheckInput {
  readonly row: GuardRow;
  /** Rows before `row`, the newest last, as many as the window holds. */
  readonly before: readonly GuardRow[];
  readonly thresholds: GuardThresholds;
  /** Rows that must be there before a row is compared with them. */
  readonly minHistory: number;
}

type Check = (input: CheckInput) => RewardAlarm | null;

const checkSaturation: Check = ({ row, thresholds }) =>
  row.saturation === null
    ? null
    : alarmAbove(
        'saturation',
        row,
        row.saturation,
        thresholds.saturation,
        'share of trajectories at the highest reward',
      );

const checkCollapse: Check = ({ row, before, thresholds, minHistory }) => {
  const earlier = before.flatMap(({ groupStd }) => (groupStd === null ? [] : [groupStd]));
  if (row.groupStd === null || earlier.length < minHistory) return null;
  const threshold = thresholds.collapse * median(earlier);
  if (row.groupStd >= threshold) return null;
  return alarm('collapse', row, row.groupStd, threshold, 'deviation of rewards inside groups is below');
};

const checkJump: Check = ({ row, before, thresholds, minHistory }) => {
  if (before.length < minHistory) return null;
  const rewards = before.map(({ meanReward }) => meanReward);
  const centre = median(rewards);
  // 1.4826 makes the median absolute deviation of normal values their standard deviation.
  const deviation = 1.4826 * median(rewards.map((reward) => Math.abs(reward - centre)));
  const threshold = Math.max(thresholds.jumpFloor, thresholds.jumpDeviations * deviation);
  const jump = Math.abs(row.meanReward - centre);
  return alarmAbove(
    'jump',
    row,
    jump,
    threshold,
    `distance of the mean reward from its median of ${before.length} steps`,
  );
};

const checkLength: Check = ({ row, thresholds }) =>
  row.lengthCorrelation === null
    ? null
    : alarmAbove(
        'length',
        row,
        Math.abs(row.lengthCorrelation),
        thresholds.lengthCorrelation,
        `correlation of reward and length (${row.lengthCorrelation < 0 ? 'shorter' : 'longer'} is rewarded)`,
      );

const checkHeldOut: Check = ({ row, before, thresholds, minHistory }) => {
  const rows = [...before, row].filter(({ heldOut }) => heldOut !== null);
  if (row.heldOut === null || rows.length < Math.max(2, minHistory)) return null;
  const half = Math.floor(rows.length / 2);
  const change = (read: (row: GuardRow) => number): number =>
    average(rows.slice(-half).map(read)) - average(rows.slice(0, half).map(read));
  const rise = change(({ meanReward }) => meanReward);
  const fall = -change(({ heldOut }) => heldOut as number);
  if (rise <= thresholds.divergence) return null;
  const what = `fall of the held-out reward while the trained one rose by ${rise.toFixed(3)}`;
  return alarmAbove('held_out', row, fall, thresholds.divergence, what);
};

const checkDuplicates: Check = ({ row, thresholds }) =>
  alarmAbove(
    'duplicates',
    row,
    row.duplicates,
    thresholds.duplicates,
    'share of trajectories equal to another of their group',
  );

const checkShared: Check = ({ row, thresholds }) =>
  row.shared === null
    ? null
    : alarmAbove(
        'shared_completions',
        row,
        row.shared,
        thresholds.sharedCompletions,
        'share of trajectories equal to one of another group',
      );

const checks: Readonly<Record<AlarmKind, Check>> = {
  saturation: checkSaturation,
  collapse: checkCollapse,
  jump: checkJump,
  length: checkLength,
  held_out: checkHeldOut,
  duplicates: checkDuplicates,
  shared_completions: checkShared,
};

/** All alarms of a row, in the order of `alarmKinds`. */
export function findAlarms(input: CheckInput): RewardAlarm[] {
  return alarmKinds.map((kind) => checks[kind](input)).filter((found) => found !== null);
}

function alarmAbove(
  kind: AlarmKind,
  row: GuardRow,
  value: number,
  threshold: number,
  what: string,
): RewardAlarm | null {
  return value > threshold ? alarm(kind, row, value, threshold, `${what} is above`) : null;
}

function alarm(kind: AlarmKind, { step }: GuardRow, value: number, threshold: number, what: string): RewardAlarm {
  return {
    kind,
    step,
    value,
    threshold,
    message: `step ${step}: ${what} ${threshold.toFixed(3)}, got ${value.toFixed(3)}`,
  };
}

function median(values: readonly number[]): number {
  const sorted = values.toSorted((a, b) => a - b);
  const middle = Math.floor(sorted.length / 2);
  return sorted.length % 2 === 1 ? (sorted[middle] as number) : average(sorted.slice(middle - 1, middle + 1));
}

/** Pearson's correlation; null where a side does not vary. */
export function correlation(a: readonly number[], b: readonly number[]): number | null {
  const [meanA, meanB] = [average(a), average(b)];
  let [products, squaresA, squaresB] = [0, 0, 0];
  for (const [index, value] of a.entries()) {
    const [fromA, fromB] = [value - meanA, (b[index] as number) - meanB];
    products += fromA * fromB;
    squaresA += fromA ** 2;
    squaresB += fromB ** 2;
  }
  // Rounding leaves a remainder of equal values that is no variation.
  return squaresA < 1e-18 || squaresB < 1e-18 ? null : products / Math.sqrt(squaresA * squaresB);
}
