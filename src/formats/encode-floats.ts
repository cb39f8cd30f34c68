/**
 * float32 values as bytes of a narrower type, rounded to nearest with ties to even. Layer 1.
 * Source: IEEE 754; Q8_0 as in ggml's `quantize_row_q8_0_ref`: blocks of 32 values, a half-precision scale and 32 signed bytes.
 * Assumes a little-endian processor, as every platform of Node.js that we support has.
 */
import { DataError } from '../core/errors.ts';

export type EncodedFloats = 'F32' | 'F16' | 'BF16' | 'Q8_0';

const q8BlockValues = 32;
const q8BlockBytes = 34;

/** Whether a tensor whose rows have this many values can be of the type. */
export function isEncodable(type: EncodedFloats, rowSize: number): boolean {
  return type !== 'Q8_0' || rowSize % q8BlockValues === 0;
}

/** Bytes of that many values; for Q8_0 a multiple of 32. */
export function encodedBytes(type: EncodedFloats, values: number): number {
  if (type === 'Q8_0') return (values / q8BlockValues) * q8BlockBytes;
  return values * (type === 'F32' ? 4 : 2);
}

/** F32 is a view of `values`. Throws DataError, naming `what`, if a value is too large for F16 (above 65,504) or for the scale of Q8_0. */
export function encodeFloats(type: EncodedFloats, values: Float32Array, what: string): Uint8Array {
  switch (type) {
    case 'F32':
      return new Uint8Array(values.buffer, values.byteOffset, values.byteLength);
    case 'F16':
      return encodeHalves(values, toFloat16Bits, what);
    case 'BF16':
      return encodeHalves(values, toBfloat16Bits, what);
    case 'Q8_0':
      return encodeQ8(values, what);
  }
}

/** The half nearest to the float32 with these bits. Source: IEEE 754. */
export function toFloat16Bits(bits: number): number {
  const sign = (bits >>> 16) & 0x8000;
  const magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return sign | 0x7e00;
  // From 65,520 on, half a step above the largest half, values round to infinity.
  if (magnitude >= 0x477ff000) return sign | 0x7c00;
  if (magnitude >= 0x38800000) return sign | ((roundHalfEven(magnitude, 13) - (112 << 10)) & 0x7fff);
  // Subnormal half: a multiple of 2⁻²⁴. Below half of that everything is zero.
  const exponent = magnitude >>> 23;
  if (exponent < 102) return sign;
  return sign | roundHalfEven((magnitude & 0x7fffff) | 0x800000, 126 - exponent);
}

/** The bfloat16 nearest to the float32 with these bits. */
export function toBfloat16Bits(bits: number): number {
  if ((bits & 0x7fffffff) > 0x7f800000) return (bits >>> 16) | 0x40;
  return ((bits >>> 16) & 0x8000) | roundHalfEven(bits & 0x7fffffff, 16);
}

/** value / 2^shift, to nearest, ties to even; 0 < shift < 26. */
function roundHalfEven(value: number, shift: number): number {
  const half = 2 ** (shift - 1);
  const isOdd = (value >>> shift) & 1;
  return Math.floor((value + half - 1 + isOdd) / 2 ** shift);
}

function encodeHalves(values: Float32Array, toBits: (bits: number) => number, what: string): Uint8Array {
  const bits = new Uint32Array(values.buffer, values.byteOffset, values.length);
  const halves = new Uint16Array(values.length);
  for (let i = 0; i < bits.length; i++) halves[i] = toBits(bits[i]!);
  if (toBits === toFloat16Bits) {
    const at = halves.findIndex((half) => (half & 0x7c00) === 0x7c00);
    if (at >= 0)
      throw new DataError(`${what}: values of f16 must be at most 65504, got ${values[at]}; use bf16 or f32`);
  }
  return new Uint8Array(halves.buffer);
}

function encodeQ8(values: Float32Array, what: string): Uint8Array {
  const out = new Uint8Array(encodedBytes('Q8_0', values.length));
  const view = new DataView(out.buffer);
  const scratch = new Float32Array(1);
  const scratchBits = new Uint32Array(scratch.buffer);
  for (let from = 0, at = 0; from < values.length; from += q8BlockValues, at += q8BlockBytes) {
    let largest = 0;
    for (let i = 0; i < q8BlockValues; i++) largest = Math.max(largest, Math.abs(values[from + i]!));
    const scale = Math.fround(largest / 127);
    const inverse = scale === 0 ? 0 : Math.fround(1 / scale);
    scratch[0] = scale;
    const half = toFloat16Bits(scratchBits[0]!);
    if ((half & 0x7c00) === 0x7c00) {
      throw new DataError(`${what}: values of q8_0 must be below 8e6, got ${largest}; use bf16 or f32`);
    }
    view.setUint16(at, half, true);
    for (let i = 0; i < q8BlockValues; i++) {
      const scaled = Math.fround(values[from + i]! * inverse);
      // roundf of C: half away from zero.
      view.setInt8(at + 2 + i, Math.sign(scaled) * Math.floor(Math.abs(scaled) + 0.5));
    }
  }
  return out;
}
