/**
 * Constants of the GGUF format, for its reader and its writer. Layer 1.
 * Source: ggml docs/gguf.md (layout), ggml-common.h (blocks); quantised types that no table here names are not read or written.
 */

/** ASCII "GGUF". */
export const ggufMagic = 0x46554747;
export const ggufVersion = 3;
/** Multiple of bytes at which tensors begin where `general.alignment` names none. */
export const ggufAlignment = 32;

/** Numbers by which metadata values say their type. */
export const ggufValueTypes = {
  uint8: 0,
  int8: 1,
  uint16: 2,
  int16: 3,
  uint32: 4,
  int32: 5,
  float32: 6,
  bool: 7,
  string: 8,
  array: 9,
  uint64: 10,
  int64: 11,
  float64: 12,
} as const;

export interface GgmlTypeInfo {
  /** Number of the type in a tensor's description. */
  readonly id: number;
  /** Consecutive values of a row that share a block; a row is a multiple of it. */
  readonly blockValues: number;
  readonly blockBytes: number;
}

/** How tensors may be stored. */
export const ggmlTypes = {
  F32: { id: 0, blockValues: 1, blockBytes: 4 },
  F16: { id: 1, blockValues: 1, blockBytes: 2 },
  BF16: { id: 30, blockValues: 1, blockBytes: 2 },
  Q8_0: { id: 8, blockValues: 32, blockBytes: 34 },
  Q4_0: { id: 2, blockValues: 32, blockBytes: 18 },
  Q4_1: { id: 3, blockValues: 32, blockBytes: 20 },
  Q5_0: { id: 6, blockValues: 32, blockBytes: 22 },
  Q5_1: { id: 7, blockValues: 32, blockBytes: 24 },
  Q4_K: { id: 12, blockValues: 256, blockBytes: 144 },
  Q5_K: { id: 13, blockValues: 256, blockBytes: 176 },
  Q6_K: { id: 14, blockValues: 256, blockBytes: 210 },
} as const satisfies Readonly<Record<string, GgmlTypeInfo>>;

export type GgmlType = keyof typeof ggmlTypes;

/** `general.file_type` of a file whose matrices are of this type. */
export const ggufFileTypes = { F32: 0, F16: 1, Q8_0: 7, BF16: 32 } as const;

/** `tokenizer.ggml.token_type`. */
export const ggufTokenTypes = { normal: 1, unknown: 2, control: 3, userDefined: 4, unused: 5, byte: 6 } as const;
