/**
 * Seeded random numbers. Layer 0. Every random draw of this package comes from a `Rng` whose seed is recorded.
 * Generator: sfc32 (Chris Doty-Humphrey, PractRand), seeded by splitmix32 over the hashed parts of the seed.
 */

export type SeedPart = number | string;

export interface Rng {
  /** Uniform in [0, 1) with 53 bits. */
  readonly uniform: () => number;
  /** Uniform integer in [0, bound). */
  readonly integer: (bound: number) => number;
  /** Standard normal (Box-Muller). */
  readonly normal: () => number;
  /** Unsigned 32-bit integer. */
  readonly uint32: () => number;
}

/** A 32-bit seed from any parts (FNV-1a over their text), e.g. `deriveSeed(seed, 'rollout', step, 3)`. */
export function deriveSeed(...parts: readonly SeedPart[]): number {
  let hash = 0x811c9dc5;
  for (const byte of new TextEncoder().encode(parts.join('\u0000'))) {
    hash = Math.imul(hash ^ byte, 0x01000193);
  }
  return hash >>> 0;
}

/** A generator whose stream depends on all `parts` and on nothing else. */
export function createRng(...parts: readonly SeedPart[]): Rng {
  let state = deriveSeed(...parts);
  const splitmix = (): number => {
    state = (state + 0x9e3779b9) | 0;
    let z = state;
    z = Math.imul(z ^ (z >>> 16), 0x21f0aaad);
    z = Math.imul(z ^ (z >>> 15), 0x735a2d97);
    return (z ^ (z >>> 15)) >>> 0;
  };
  let a = splitmix();
  let b = splitmix();
  let c = splitmix();
  let counter = 1;
  const uint32 = (): number => {
    const sum = (((a + b) | 0) + counter) | 0;
    counter = (counter + 1) | 0;
    a = b ^ (b >>> 9);
    b = (c + (c << 3)) | 0;
    c = (c << 21) | (c >>> 11);
    c = (c + sum) | 0;
    return sum >>> 0;
  };
  for (let i = 0; i < 12; i++) uint32();
  const uniform = (): number => (uint32() * 2 ** 21 + (uint32() >>> 11)) / 2 ** 53;
  return {
    uint32,
    uniform,
    integer: (bound) => Math.floor(uniform() * bound),
    normal: () => Math.sqrt(-2 * Math.log(1 - uniform())) * Math.cos(2 * Math.PI * uniform()),
  };
}

/** A seeded Fisher-Yates shuffle; returns a new array. */
export function shuffle<T>(items: readonly T[], rng: Rng): T[] {
  const result = [...items];
  for (let i = result.length - 1; i > 0; i--) {
    const j = rng.integer(i + 1);
    [result[i], result[j]] = [result[j] as T, result[i] as T];
  }
  return result;
}
