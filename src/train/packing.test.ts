import fc from 'fast-check';
import { expect, test } from 'vitest';
import { DataError } from '../core/errors.ts';
import { attentionBlock, isExactOffset } from '../graph/bit-exact.ts';
import { type PackedRows, packSequences } from './packing.ts';

const headSizes = [16, 32, 48, 64, 80, 96, 128];
const cases = fc.tuple(fc.array(fc.integer({ min: 1, max: 1500 }), { maxLength: 40 }), fc.constantFrom(...headSizes));

const placed = (packed: readonly PackedRows[]) => packed.flatMap(({ rows }) => rows.flat());

test('every sequence is placed once, inside its row and apart from the others', () => {
  fc.assert(
    fc.property(cases, ([lengths, headSize]) => {
      const packed = packSequences(lengths, headSize);
      const indices = placed(packed).map(({ index }) => index);
      expect(indices.sort((a, b) => a - b)).toEqual(lengths.map((_, index) => index));
      for (const { rowLength, rows } of packed) {
        for (const row of rows) {
          let end = 0;
          for (const { index, start, length } of row) {
            expect(length).toBe(lengths[index]);
            expect(start).toBeGreaterThanOrEqual(end);
            end = start + length;
          }
          expect(end).toBeGreaterThan(0);
          expect(end).toBeLessThanOrEqual(rowLength);
        }
      }
    }),
    { seed: 1, numRuns: 200 },
  );
});

test('every offset keeps the bits that the sequence has alone', () => {
  fc.assert(
    fc.property(cases, ([lengths, headSize]) => {
      for (const { start, length } of placed(packSequences(lengths, headSize))) {
        expect(isExactOffset(start, length, headSize)).toBe(true);
      }
    }),
    { seed: 2, numRuns: 200 },
  );
});

test('rows are powers of two from 128, ascending, shared up to one block of keys', () => {
  fc.assert(
    fc.property(cases, ([lengths, headSize]) => {
      const packed = packSequences(lengths, headSize);
      const rowLengths = packed.map(({ rowLength }) => rowLength);
      expect(rowLengths).toEqual([...new Set(rowLengths)].sort((a, b) => a - b));
      for (const { rowLength, rows } of packed) {
        expect([rowLength >= 128, Number.isInteger(Math.log2(rowLength))]).toEqual([true, true]);
        for (const row of rows) {
          // Half a row would not have held its first, longest sequence, unless it is of the shortest kind.
          expect(rowLength === 128 || row[0]!.length > rowLength / 2).toBe(true);
          if (rowLength > attentionBlock(headSize)) expect(row).toHaveLength(1);
        }
      }
    }),
    { seed: 3, numRuns: 200 },
  );
});

test('the same lengths give the same packing; it does not depend on what ran before', () => {
  fc.assert(
    fc.property(cases, ([lengths, headSize]) => {
      const first = packSequences(lengths, headSize);
      packSequences([5, 900, 3], headSize);
      expect(packSequences([...lengths], headSize)).toEqual(first);
    }),
    { seed: 4, numRuns: 50 },
  );
});

test('a small example: the longest first, then into the first row with room, at multiples of 8', () => {
  // Head size 64 has blocks of 256 keys, so the row of 512 is not shared. 104 + 20 fits into 128, then 9 begins a row.
  expect(packSequences([3, 100, 20, 300, 9], 64)).toEqual([
    {
      rowLength: 128,
      rows: [
        [
          { index: 1, start: 0, length: 100 },
          { index: 2, start: 104, length: 20 },
        ],
        [
          { index: 4, start: 0, length: 9 },
          { index: 0, start: 16, length: 3 },
        ],
      ],
    },
    { rowLength: 512, rows: [[{ index: 3, start: 0, length: 300 }]] },
  ]);
});

test('refuses lengths that are no lengths', () => {
  expect(packSequences([], 64)).toEqual([]);
  for (const bad of [0, -1, 1.5, Number.NaN]) {
    expect(() => packSequences([3, bad], 64)).toThrow(DataError);
    expect(() => packSequences([3, bad], 64)).toThrow(
      `packing: a sequence must have at least 1 token, got ${bad} at 1`,
    );
  }
});
