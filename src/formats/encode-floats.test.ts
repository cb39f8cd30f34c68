import { describe, expect, test } from 'vitest';
import { DataError } from '../core/errors.ts';
import { createRng } from '../core/rng.ts';
import { type EncodedFloats, encodeFloats, toBfloat16Bits, toFloat16Bits } from './encode-floats.ts';
import { float16ToFloat32Bits } from './float-bits.ts';
import { dequantizers } from './gguf-quants.ts';

const scratch = new Float32Array(1);
const scratchBits = new Uint32Array(scratch.buffer);
const bitsOf = (value: number): number => {
  scratch[0] = value;
  return scratchBits[0]!;
};
const floatOf = (bits: number): number => {
  scratchBits[0] = bits;
  return scratch[0]!;
};

const formats = [
  ['half', toFloat16Bits, (half: number) => floatOf(float16ToFloat32Bits(half)), 0x7c00],
  ['bfloat16', toBfloat16Bits, (half: number) => floatOf(half << 16), 0x7f80],
] as const;

describe.each(formats)('%s', (_name, round, widen, infinity) => {
  test('every one of both signs is its own nearest', () => {
    for (let half = 0; half <= infinity; half++) {
      expect(round(bitsOf(widen(half)))).toBe(half);
      expect(round(bitsOf(-widen(half)))).toBe(half | 0x8000);
    }
  });

  test('between neighbours the nearer wins, and the even one in the middle', () => {
    const rng = createRng('halves');
    // Up to the largest finite one: half a step above that is infinity.
    const places = [
      0,
      1,
      2,
      0x3fe,
      0x3ff,
      0x400,
      0x401,
      infinity - 2,
      ...Array.from({ length: 2000 }, () => rng.integer(infinity - 1)),
    ];
    for (const low of places) {
      const [a, b] = [widen(low), widen(low + 1)];
      // A middle of two bfloat16 next to 0 is below every float32.
      const middle = Math.fround((a + b) / 2);
      if (middle === a || middle === b) continue;
      const bits = bitsOf(middle);
      expect([round(bits - 1), round(bits), round(bits + 1)], `after ${low}`).toEqual([low, low + (low & 1), low + 1]);
    }
  });

  test('what is not a number stays none', () => {
    for (const bits of [0x7fc00000, 0x7f800001, 0xffc00000]) expect(round(bits) & 0x7fff).toBeGreaterThan(infinity);
  });
});

test('half a step above the largest half is infinity, below it is the largest', () => {
  expect(toFloat16Bits(bitsOf(65_520))).toBe(0x7c00);
  expect(toFloat16Bits(bitsOf(Math.fround(65_519.9)))).toBe(0x7bff);
});

test.each([
  ['F16', 65_520],
  ['Q8_0', 1e7],
] as const)('%s refuses what it cannot hold', (type: EncodedFloats, value) => {
  const values = new Float32Array(32).fill(1);
  values[7] = value;
  expect(() => encodeFloats(type, values, 'blk.0.x')).toThrow(DataError);
  expect(() => encodeFloats(type, values, 'blk.0.x')).toThrow(/^blk\.0\.x: values of \w+ must be .*; use bf16 or f32$/);
});

test('Q8_0 is within half a step of its scale, and exact on multiples of it', () => {
  const rng = createRng('q8');
  const values = Float32Array.from({ length: 320 }, () => rng.normal());
  values.fill(0, 32, 64);
  for (let i = 64; i < 96; i++) values[i] = (i - 80) * 0.5;
  values[64] = -63.5; // 127 · 0.5
  const back = new Float32Array(values.length);
  dequantizers.Q8_0(encodeFloats('Q8_0', values, 'x'), back, 0);
  for (let block = 0; block < values.length; block += 32) {
    const largest = Math.max(...values.subarray(block, block + 32).map(Math.abs));
    // Half a step, and what rounding the scale to a half adds over 127 steps.
    const bound = largest / 254 + largest * 2 ** -11;
    for (let i = block; i < block + 32; i++) expect(Math.abs(back[i]! - values[i]!)).toBeLessThanOrEqual(bound);
  }
  expect([...back.subarray(32, 96)]).toEqual([...values.subarray(32, 96)]);
});
