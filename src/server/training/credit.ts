/**
 * From rewards of trajectories and turns to the advantage of every turn. Layer 5, pure.
 *   A[k] = turnDiscount^(n − 1 − k) · A + Σ_{j ≥ k} turnDiscount^(j − k) · r̃[j]
 * for turn k of the n turns of one history; A is the trajectory's advantage in its group, r̃ the turn rewards, normalised as rewards are, over
 * all turns of the group. Source of the second term: process supervision, DeepSeekMath (arXiv 2402.03300) section 4.1.3, there undiscounted.
 */
import { type AdvantageKind, advantages, isZeroVariance } from '../../core/advantage.ts';

export interface RewardedTrajectory {
  readonly reward: number;
  /** Turns of each history. */
  readonly turns_H: readonly number[];
  /** [history][turn]; null = none. In a group all have them, or none. */
  readonly turnRewards: readonly (readonly number[])[] | null;
}

export interface CreditOptions {
  readonly advantage: AdvantageKind;
  readonly turnDiscount: number;
  /** Null: no limit. */
  readonly maxAdvantage: number | null;
}

export interface Credit {
  /** [group][trajectory][history][turn]; null for a group without signal. */
  readonly advantages: readonly (readonly (readonly (readonly number[])[])[] | null)[];
  /** Turns that `maxAdvantage` held. */
  readonly clippedTurns: number;
}

/** Groups of fewer than two trajectories, and of equal rewards and equal turn rewards, have no signal. */
export function creditTurns(groups: readonly (readonly RewardedTrajectory[])[], options: CreditOptions): Credit {
  const { advantage, turnDiscount, maxAdvantage: most } = options;
  const isTrained = groups.map(hasSignal);
  const trained = groups.filter((_, index) => isTrained[index]);
  const outcomes = advantages(
    trained.map((group) => group.map(({ reward }) => reward)),
    advantage,
  );
  const pools = advantages(trained.map(poolOf), advantage);
  let clippedTurns = 0;
  const limit = (value: number): number => {
    if (most === null || Math.abs(value) <= most) return value;
    clippedTurns += 1;
    return Math.sign(value) * most;
  };
  const credited = trained.map((group, g) => {
    let taken = 0;
    return group.map((trajectory, i) =>
      trajectory.turns_H.map((turns) => {
        const own = trajectory.turnRewards === null ? null : pools[g]!.slice(taken, taken + turns);
        taken += turns;
        return turnsToGo(outcomes[g]![i]!, turns, own, turnDiscount).map(limit);
      }),
    );
  });
  let position = 0;
  return { advantages: isTrained.map((is) => (is ? credited[position++]! : null)), clippedTurns };
}

function hasSignal(group: readonly RewardedTrajectory[]): boolean {
  if (group.length < 2) return false;
  return !isZeroVariance(group.map(({ reward }) => reward)) || !isZeroVariance(poolOf(group));
}

/** All turn rewards of a group, in order. */
function poolOf(group: readonly RewardedTrajectory[]): number[] {
  return group.flatMap(({ turnRewards }) => turnRewards?.flat() ?? []);
}

function turnsToGo(outcome: number, turns: number, turnRewards: readonly number[] | null, discount: number): number[] {
  const credits = new Array<number>(turns);
  let toGo = 0;
  for (let k = turns - 1; k >= 0; k--) {
    credits[k] = outcome * discount ** (turns - 1 - k);
    if (turnRewards === null) continue;
    toGo = turnRewards[k]! + discount * toGo;
    credits[k]! += toGo;
  }
  return credits;
}
