/**
 * Half-precision numbers of model files, widened to float32 exactly. Layer 1.
 * Assumes a little-endian processor, as every platform of Node.js that we support has.
 */
import { DataError } from '../core/errors.ts';

export type FloatFormat = 'F32' | 'F16' | 'BF16';

/** Bits of the float32 with the value of an IEEE 754 half. */
export function float16ToFloat32Bits(half: number): number {
  const sign = (half & 0x8000) << 16;
  const exponent = (half >>> 10) & 0x1f;
  const fraction = half & 0x3ff;
  if (exponent === 0x1f) return sign | 0x7f800000 | (fraction << 13);
  if (exponent !== 0) return sign | ((exponent + 112) << 23) | (fraction << 13);
  if (fraction === 0) return sign;
  // Subnormal half: fraction · 2⁻²⁴, a normal float32 whose leading bit is dropped.
  const shift = Math.clz32(fraction) - 21;
  return sign | ((113 - shift) << 23) | (((fraction << shift) & 0x3ff) << 13);
}

/** Writes the numbers in `bytes`, which may be unaligned, to `out` from `start` on. */
export function widenFloats(format: FloatFormat, bytes: Uint8Array, out: Float32Array, start: number): void {
  if (format === 'F32') {
    new Uint8Array(out.buffer, out.byteOffset + start * 4, bytes.length).set(bytes);
    return;
  }
  const isAligned = bytes.byteOffset % 2 === 0;
  const { buffer, byteOffset, length } = isAligned ? bytes : bytes.slice();
  const halves = new Uint16Array(buffer, byteOffset, length / 2);
  const bits = new Uint32Array(out.buffer, out.byteOffset + start * 4, halves.length);
  if (format === 'BF16') for (let i = 0; i < halves.length; i++) bits[i] = (halves[i] as number) << 16;
  else for (let i = 0; i < halves.length; i++) bits[i] = float16ToFloat32Bits(halves[i] as number);
}

/** Throws DataError naming file, tensor and place if a weight is infinite or not a number. */
export function checkFinite(values: Float32Array, tensor: string, path: string): void {
  const bits = new Uint32Array(values.buffer, values.byteOffset, values.length);
  for (let i = 0; i < bits.length; i++) {
    if (((bits[i] as number) & 0x7f800000) !== 0x7f800000) continue;
    throw new DataError(`${path}: weights must be finite, got ${values[i]} in ${tensor} at value ${i}`);
  }
}
