/**
 * Group-relative advantages. Layer 0. Sources: DeepSeekMath (arXiv 2402.03300) section 4.1; centre-only form: Dr. GRPO (arXiv 2503.20783);
 * standard deviation of the batch: REINFORCE++ (arXiv 2501.03262); leave-one-out: RLOO (arXiv 2402.14740).
 */

/** Keeps groups of nearly equal rewards from exploding; the value TRL uses. */
const STD_FLOOR = 1e-4;

/** Rewards that differ by less than this share of their size are equal but for rounding. */
const EQUAL = 1e-12;

/**
 * What an advantage is, for rewards r of one group: `groupStd` (r − mean) / (std + 1e-4); `groupCenter` r − mean; `batchStd` (r − mean) /
 * (std of r − mean over all groups + 1e-4); `leaveOneOut` r − mean of the others' rewards. Standard deviations are of the population.
 */
export type AdvantageKind = (typeof advantageKinds)[number];
export const advantageKinds = ['groupStd', 'groupCenter', 'batchStd', 'leaveOneOut'] as const;

/** Advantages of groups, [group][trajectory]; those of a group sum to 0 up to rounding. One reward alone has advantage 0. */
export function advantages(rewards_P_G: readonly (readonly number[])[], kind: AdvantageKind): number[][] {
  switch (kind) {
    case 'groupStd':
      return rewards_P_G.map((rewards_G) => scaled(centred(rewards_G), 1 / (standardDeviation(rewards_G) + STD_FLOOR)));
    case 'groupCenter':
      return rewards_P_G.map(centred);
    case 'batchStd': {
      const centred_P_G = rewards_P_G.map(centred);
      const scale = 1 / (standardDeviation(centred_P_G.flat()) + STD_FLOOR);
      return centred_P_G.map((centred_G) => scaled(centred_G, scale));
    }
    case 'leaveOneOut':
      // r − (sum − r) / (G − 1) = (r − mean) · G / (G − 1)
      return rewards_P_G.map((rewards_G) =>
        scaled(centred(rewards_G), rewards_G.length / Math.max(1, rewards_G.length - 1)),
      );
  }
}

/** Whether a group has no signal: fewer than two trajectories, or all rewards equal. It is skipped, and counted. */
export function isZeroVariance(rewards_G: readonly number[]): boolean {
  if (rewards_G.length < 2) return true;
  const first = rewards_G[0]!;
  return rewards_G.every((reward) => Math.abs(reward - first) <= EQUAL * Math.max(1, Math.abs(first)));
}

function centred(rewards_G: readonly number[]): number[] {
  const mean = average(rewards_G);
  return rewards_G.map((reward) => reward - mean);
}

function scaled(values: readonly number[], scale: number): number[] {
  return values.map((value) => value * scale);
}

/** Arithmetic mean; 0 for an empty list. */
export function average(values: readonly number[]): number {
  return values.length === 0 ? 0 : values.reduce((sum, value) => sum + value, 0) / values.length;
}

/** Population standard deviation; 0 for an empty list. */
export function standardDeviation(values: readonly number[]): number {
  const mean = average(values);
  return Math.sqrt(average(values.map((value) => (value - mean) ** 2)));
}
