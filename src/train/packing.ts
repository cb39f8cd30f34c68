/**
 * Packs training sequences into rows. Layer 3.
 * A sequence keeps the bits it has alone only if it starts at a multiple of 256, or at a multiple of 8 while it stays inside one
 * block of 256 positions: the matrix products sum in blocks of that size (measured for ONNX Runtime's CPU kernels, and tested in
 * `graph/bit-exact.test.ts`). So short sequences share blocks, and long ones get a row of whole blocks.
 */
import { DataError } from '../core/errors.ts';

const BLOCK = 256;
const ALIGNMENT = 8;

/** Where a sequence stands: `index` into the input, position `start` of its row. */
export interface Placement {
  readonly index: number;
  readonly start: number;
  readonly length: number;
}

/** Rows of equal length; `placements` of a row do not overlap. */
export interface PackedRows {
  readonly rowLength: number;
  readonly rows: readonly (readonly Placement[])[];
}

/**
 * Packs sequences of the given lengths: those of up to 256 tokens first-fit, longest first, into rows of 256; longer ones one a
 * row of the next power of two of blocks. Ascending by row length; the same lengths give the same packing.
 * Throws DataError on a length that is not a whole number ≥ 1.
 */
export function packSequences(lengths: readonly number[]): PackedRows[] {
  const byRowLength = new Map<number, Placement[][]>();
  const order = lengths
    .map((length, index) => ({ length, index }))
    .sort((a, b) => b.length - a.length || a.index - b.index);
  const used: number[] = [];
  for (const { length, index } of order) {
    if (!Number.isSafeInteger(length) || length < 1) {
      throw new DataError(`packing: a sequence must have at least 1 token, got ${length} at ${index}`);
    }
    const rowLength = BLOCK * 2 ** Math.max(0, Math.ceil(Math.log2(length / BLOCK)));
    const rows = byRowLength.get(rowLength) ?? [];
    byRowLength.set(rowLength, rows);
    if (rowLength > BLOCK) {
      rows.push([{ index, start: 0, length }]);
      continue;
    }
    let row = used.findIndex((position) => position + length <= BLOCK);
    if (row < 0) {
      row = rows.length;
      rows.push([]);
      used.push(0);
    }
    rows[row]!.push({ index, start: used[row]!, length });
    used[row] = Math.ceil((used[row]! + length) / ALIGNMENT) * ALIGNMENT;
  }
  return [...byRowLength].sort(([a], [b]) => a - b).map(([rowLength, rows]) => ({ rowLength, rows }));
}
