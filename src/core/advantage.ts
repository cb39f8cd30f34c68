/**
 * Group-relative advantages. Layer 0. Source: DeepSeekMath (arXiv 2402.03300) section 4.1; centre-only form: Dr.GRPO (arXiv 2503.20783).
 */

/** Keeps groups of nearly equal rewards from exploding; the value TRL uses. */
const STD_FLOOR = 1e-4;

/** `A_i = r_i − mean(r)`, divided by `std(r) + 1e-4` (population standard deviation) when `isNormalized`. Sums to 0 up to rounding. */
export function groupAdvantages(rewards_G: readonly number[], isNormalized: boolean): number[] {
  const mean = average(rewards_G);
  const scale = isNormalized ? 1 / (standardDeviation(rewards_G) + STD_FLOOR) : 1;
  return rewards_G.map((reward) => (reward - mean) * scale);
}

/** Whether a group has no signal: fewer than two trajectories, or all rewards equal. It is skipped, and counted. */
export function isZeroVariance(rewards_G: readonly number[]): boolean {
  return rewards_G.length < 2 || rewards_G.every((reward) => reward === rewards_G[0]);
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
