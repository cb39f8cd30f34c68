/** How far two scorings of the same trajectories agree. Layer 5. Source: Kendall (1945), "The treatment of ties in ranking problems". */
import { average } from '../core/advantage.ts';

/**
 * Kendall's tau-b: 1 for the same order, −1 for the reverse, ties counted out.
 *   tau = (concordant − discordant) / √((pairs − ties in a)·(pairs − ties in b))
 * Null where one of them has no order at all: fewer than two values, or all equal.
 */
export function kendallTau(a: readonly number[], b: readonly number[]): number | null {
  let difference = 0;
  let orderedInA = 0;
  let orderedInB = 0;
  for (let i = 0; i < a.length; i++) {
    for (let j = i + 1; j < a.length; j++) {
      const signA = Math.sign((a[i] as number) - (a[j] as number));
      const signB = Math.sign((b[i] as number) - (b[j] as number));
      difference += signA * signB;
      orderedInA += Math.abs(signA);
      orderedInB += Math.abs(signB);
    }
  }
  return orderedInA === 0 || orderedInB === 0 ? null : difference / Math.sqrt(orderedInA * orderedInB);
}

export function meanAbsoluteDifference(a: readonly number[], b: readonly number[]): number {
  return average(a.map((value, index) => Math.abs(value - (b[index] as number))));
}

export interface Agreement {
  /** Mean over all pairs of repeats that both have an order; null where there is none. */
  readonly kendallTau: number | null;
  /** Mean over all pairs of repeats and all trajectories. */
  readonly meanAbsoluteDifference: number;
}

/** Agreement between repeats of a scoring; null for fewer than two. */
export function agreementOf(repeats: readonly (readonly number[])[]): Agreement | null {
  if (repeats.length < 2) return null;
  const pairs = repeats.flatMap((a, index) => repeats.slice(index + 1).map((b) => [a, b] as const));
  const taus = pairs.map(([a, b]) => kendallTau(a, b)).filter((tau) => tau !== null);
  return {
    kendallTau: taus.length === 0 ? null : average(taus),
    meanAbsoluteDifference: average(pairs.map(([a, b]) => meanAbsoluteDifference(a, b))),
  };
}
