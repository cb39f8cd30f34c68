/**
 * Values of GGUF's tensor types as float32, bit for bit what llama.cpp's Python package gives. Layer 1.
 * Source: ggml-quants.c, dequantize_row_*; ggml-common.h, block_*. Every product of a scale and a quant is exact in a JavaScript number,
 * so a value is rounded once, when it is stored.
 */
import { float16ToFloat32Bits, widenFloats } from './float-bits.ts';
import type { GgmlType } from './gguf-types.ts';

/** Writes the values of whole blocks to `out` from `start` on. */
type Dequantizer = (bytes: Uint8Array, out: Float32Array, start: number) => void;

/** One row a type. */
export const dequantizers: { readonly [T in GgmlType]: Dequantizer } = {
  F32: (bytes, out, start) => widenFloats('F32', bytes, out, start),
  F16: (bytes, out, start) => widenFloats('F16', bytes, out, start),
  BF16: (bytes, out, start) => widenFloats('BF16', bytes, out, start),
  Q8_0: (bytes, out, start) => {
    for (let at = 0, o = start; at < bytes.length; at += 34) {
      const scale = halfAt(bytes, at);
      for (let i = 2; i < 34; i++) out[o++] = scale * signed(bytes[at + i] as number);
    }
  },
  Q4_0: (bytes, out, start) => {
    for (let at = 0, o = start; at < bytes.length; at += 18, o += 32) {
      const scale = halfAt(bytes, at);
      for (let i = 0; i < 16; i++) {
        const pair = bytes[at + 2 + i] as number;
        out[o + i] = scale * ((pair & 15) - 8);
        out[o + i + 16] = scale * ((pair >> 4) - 8);
      }
    }
  },
  Q4_1: (bytes, out, start) => {
    for (let at = 0, o = start; at < bytes.length; at += 20, o += 32) {
      const scale = halfAt(bytes, at);
      const lowest = halfAt(bytes, at + 2);
      for (let i = 0; i < 16; i++) {
        const pair = bytes[at + 4 + i] as number;
        out[o + i] = scale * (pair & 15) + lowest;
        out[o + i + 16] = scale * (pair >> 4) + lowest;
      }
    }
  },
  Q5_0: (bytes, out, start) => {
    for (let at = 0, o = start; at < bytes.length; at += 22, o += 32) {
      const scale = halfAt(bytes, at);
      for (let i = 0; i < 16; i++) {
        const pair = bytes[at + 6 + i] as number;
        out[o + i] = scale * (((pair & 15) | (bitAt(bytes, at + 2, i) << 4)) - 16);
        out[o + i + 16] = scale * (((pair >> 4) | (bitAt(bytes, at + 2, i + 16) << 4)) - 16);
      }
    }
  },
  Q5_1: (bytes, out, start) => {
    for (let at = 0, o = start; at < bytes.length; at += 24, o += 32) {
      const scale = halfAt(bytes, at);
      const lowest = halfAt(bytes, at + 2);
      for (let i = 0; i < 16; i++) {
        const pair = bytes[at + 8 + i] as number;
        out[o + i] = scale * ((pair & 15) | (bitAt(bytes, at + 4, i) << 4)) + lowest;
        out[o + i + 16] = scale * ((pair >> 4) | (bitAt(bytes, at + 4, i + 16) << 4)) + lowest;
      }
    }
  },
  Q4_K: (bytes, out, start) => {
    for (let at = 0, o = start; at < bytes.length; at += 144, o += 256) {
      for (let group = 0; group < 8; group++) {
        const { scale, lowest } = groupScale(bytes, at, group);
        const low = at + 16 + (group >> 1) * 32;
        const shift = (group & 1) * 4;
        for (let i = 0; i < 32; i++) {
          out[o + group * 32 + i] = scale * (((bytes[low + i] as number) >> shift) & 15) - lowest;
        }
      }
    }
  },
  Q5_K: (bytes, out, start) => {
    for (let at = 0, o = start; at < bytes.length; at += 176, o += 256) {
      for (let group = 0; group < 8; group++) {
        const { scale, lowest } = groupScale(bytes, at, group);
        const low = at + 48 + (group >> 1) * 32;
        const shift = (group & 1) * 4;
        for (let i = 0; i < 32; i++) {
          const high = (((bytes[at + 16 + i] as number) >> group) & 1) << 4;
          out[o + group * 32 + i] = scale * ((((bytes[low + i] as number) >> shift) & 15) | high) - lowest;
        }
      }
    }
  },
  Q6_K: (bytes, out, start) => {
    for (let at = 0, o = start; at < bytes.length; at += 210, o += 256) {
      const scale = halfAt(bytes, at + 208);
      for (let i = 0; i < 256; i++) {
        // Halves of 128 values: 64 bytes of low halves, 32 bytes of high pairs, each row of 32 values with a shift of its own.
        const half = i >> 7;
        const row = (i >> 5) & 3;
        const low = (bytes[at + half * 64 + (row & 1) * 32 + (i & 31)] as number) >> ((row >> 1) * 4);
        const high = (bytes[at + 128 + half * 32 + (i & 31)] as number) >> (row * 2);
        const quant = ((low & 15) | ((high & 3) << 4)) - 32;
        out[o + i] = scale * signed(bytes[at + 192 + (i >> 4)] as number) * quant;
      }
    }
  },
};

const floatOf = new Float32Array(1);
const bitsOf = new Uint32Array(floatOf.buffer);

function halfAt(bytes: Uint8Array, at: number): number {
  bitsOf[0] = float16ToFloat32Bits((bytes[at] as number) | ((bytes[at + 1] as number) << 8));
  return floatOf[0] as number;
}

function signed(byte: number): number {
  return (byte << 24) >> 24;
}

/** Bit `index` of the little-endian number at `at`. */
function bitAt(bytes: Uint8Array, at: number, index: number): number {
  return ((bytes[at + (index >> 3)] as number) >> (index & 7)) & 1;
}

/** Scale and minimum of one of the 8 groups of a K block: both 6 bits, of which groups 4 to 7 keep the upper 2 with groups 0 to 3. */
function groupScale(bytes: Uint8Array, at: number, group: number): { scale: number; lowest: number } {
  const scales = at + 4;
  const first = bytes[scales + (group & 3)] as number;
  const second = bytes[scales + 4 + (group & 3)] as number;
  const third = bytes[scales + 4 + group] as number;
  const scale = group < 4 ? first & 63 : (third & 15) | ((first >> 6) << 4);
  const lowest = group < 4 ? second & 63 : (third >> 4) | ((second >> 6) << 4);
  return { scale: halfAt(bytes, at) * scale, lowest: halfAt(bytes, at + 2) * lowest };
}
