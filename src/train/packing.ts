/**
 * Packs training sequences into rows. Layer 3.
 * A sequence keeps the bits it has alone only at certain offsets (`graph/bit-exact.ts`): at multiples of 8 inside one block of keys,
 * whose size depends on the head size. So rows of at most a block are shared, and a longer sequence has a row to itself.
 */
import { DataError } from '../core/errors.ts';
import { attentionAlignment, attentionBlock } from '../graph/bit-exact.ts';

/** Attention costs the square of a row's length, so short sequences get short rows; very short ones share. */
const SHORTEST_ROW = 128;

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

/** Positions of a row that begins with a sequence of this length. */
export function newRowLength(length: number): number {
  return Math.max(SHORTEST_ROW, 2 ** Math.ceil(Math.log2(length)));
}

/**
 * Packs sequences of the given lengths, longest first, each into the first row that has room. A new row has the smallest power of two
 * of positions that holds the sequence, at least 128. Ascending by row length; the same arguments give the same packing.
 * Throws DataError on a length that is not a whole number ≥ 1.
 */
export function packSequences(lengths: readonly number[], headSize: number): PackedRows[] {
  const longestShared = attentionBlock(headSize);
  const order = lengths
    .map((length, index) => ({ length, index }))
    .sort((a, b) => b.length - a.length || a.index - b.index);
  const rows: { readonly rowLength: number; readonly placements: Placement[]; next: number }[] = [];
  for (const { length, index } of order) {
    if (!Number.isSafeInteger(length) || length < 1) {
      throw new DataError(`packing: a sequence must have at least 1 token, got ${length} at ${index}`);
    }
    let row = rows.find(({ rowLength, next }) => rowLength <= longestShared && next + length <= rowLength);
    if (!row) {
      row = { rowLength: newRowLength(length), placements: [], next: 0 };
      rows.push(row);
    }
    row.placements.push({ index, start: row.next, length });
    row.next = Math.ceil((row.next + length) / attentionAlignment) * attentionAlignment;
  }
  const rowLengths = [...new Set(rows.map(({ rowLength }) => rowLength))].sort((a, b) => a - b);
  return rowLengths.map((rowLength) => ({
    rowLength,
    rows: rows.filter((row) => row.rowLength === rowLength).map(({ placements }) => placements),
  }));
}
