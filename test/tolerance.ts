/** How far a value may be from the right one, by what it is; a looser bound names its reason where it is used. */
import { expect } from 'vitest';

export interface Tolerance {
  readonly rtol: number;
  readonly atol: number;
}

export const tolerances = {
  /** float64 against float64, another order of sums. */
  reference: { rtol: 1e-9, atol: 1e-12 },
  /** One float32 operator. */
  op: { rtol: 1e-5, atol: 1e-6 },
  /** Logits and logprobs of a float32 model. */
  logits: { rtol: 1e-4, atol: 1e-5 },
  /** Gradients of a float32 model. */
  gradients: { rtol: 1e-3, atol: 1e-5 },
  /** A loss from given logprobs, float32. */
  loss: { rtol: 1e-6, atol: 1e-7 },
} as const satisfies Readonly<Record<string, Tolerance>>;

/** |actual − expected| ≤ atol + rtol · |expected| for every value; the message names the worst. */
export function expectClose(
  actual: ArrayLike<number>,
  expected: ArrayLike<number>,
  { rtol, atol }: Tolerance,
  what = 'values',
): void {
  expect(actual.length, `${what}: number of values`).toBe(expected.length);
  let worst = -1;
  let worstExcess = 0;
  for (let i = 0; i < expected.length; i++) {
    const excess = Math.abs(actual[i]! - expected[i]!) / (atol + rtol * Math.abs(expected[i]!));
    if (excess <= 1 || excess <= worstExcess) continue;
    worst = i;
    worstExcess = Number.isNaN(excess) ? Number.POSITIVE_INFINITY : excess;
  }
  const message = worst < 0 ? '' : `${what}: must be ${expected[worst]} at ${worst}, got ${actual[worst]}`;
  expect(message).toBe('');
}

/** The same bits: NaN equals NaN of the same bits, 0 differs from −0. */
export function expectSameBits(actual: Float32Array, expected: Float32Array, what = 'values'): void {
  expect(actual.length, `${what}: number of values`).toBe(expected.length);
  const [a, b] = [actual, expected].map((data) => new Uint32Array(data.buffer, data.byteOffset, data.length));
  const first = a!.findIndex((bits, i) => bits !== b![i]);
  expect(first < 0 ? '' : `${what}: must be ${expected[first]} at ${first}, got ${actual[first]}`).toBe('');
}
