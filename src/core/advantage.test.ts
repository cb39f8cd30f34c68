import { expect, test } from 'vitest';
import { advantageKinds, advantages, average, isZeroVariance, standardDeviation } from './advantage.ts';
import { createRng } from './rng.ts';

/** Groups of 2 to 9 rewards, seeded; scales from 1e-3 to 1e3. */
const cases: readonly number[][][] = Array.from({ length: 60 }, (_, index) => {
  const rng = createRng('advantage-test', index);
  const scale = 10 ** (rng.uniform() * 6 - 3);
  const sizes = Array.from({ length: 1 + Math.floor(rng.uniform() * 4) }, () => 2 + Math.floor(rng.uniform() * 8));
  return sizes.map((size) => Array.from({ length: size }, () => (rng.uniform() - 0.5) * scale));
});

const flat = (values: readonly (readonly number[])[]): number[] => values.flat();

test('hand values of every kind: groups [1, 0] and [3, 0, 0]', () => {
  const rewards = [
    [1, 0],
    [3, 0, 0],
  ];
  expect(advantages(rewards, 'groupCenter')).toEqual([
    [0.5, -0.5],
    [2, -1, -1],
  ]);
  expect(advantages(rewards, 'groupStd')).toEqual([
    [0.5 / 0.5001, -0.5 / 0.5001].map((value) => expect.closeTo(value, 12)),
    [2, -1, -1].map((value) => expect.closeTo(value / (Math.SQRT2 + 1e-4), 12)),
  ]);
  // Centred: 0.5, −0.5, 2, −1, −1, whose mean square is 6.5 / 5.
  const std = Math.sqrt(1.3) + 1e-4;
  expect(flat(advantages(rewards, 'batchStd'))).toEqual(
    [0.5, -0.5, 2, -1, -1].map((value) => expect.closeTo(value / std, 12)),
  );
  // 1 − 0, 0 − 1; 3 − 0, 0 − 1.5, 0 − 1.5.
  expect(flat(advantages(rewards, 'leaveOneOut'))).toEqual(
    [1, -1, 3, -1.5, -1.5].map((value) => expect.closeTo(value, 12)),
  );
});

test.each(advantageKinds)('%s: a group sums to 0, follows a permutation, and does not see a shift', (kind) => {
  for (const rewards of cases) {
    const found = advantages(rewards, kind);
    const size = Math.max(...flat(found).map(Math.abs));
    for (const group of found) expect(Math.abs(group.reduce((sum, value) => sum + value, 0))).toBeLessThan(1e-9 * size);
    const reversed = advantages(
      rewards.map((group) => group.toReversed()),
      kind,
    );
    const shifted = advantages(
      rewards.map((group, index) => group.map((reward) => reward + 4 * index)),
      kind,
    );
    for (const [g, group] of found.entries()) {
      for (const [i, value] of group.entries()) {
        expect(Math.abs(reversed[g]!.at(-1 - i)! - value)).toBeLessThan(1e-9 * size);
        expect(Math.abs(shifted[g]![i]! - value)).toBeLessThan(1e-7 * size);
      }
    }
  }
});

test('groupStd cannot blow up: |A| stays below √(G − 1), however close two rewards are', () => {
  for (const gap of [1, 1e-3, 1e-6, 1e-11]) {
    const [first, second] = advantages([[0.5 + gap, 0.5]], 'groupStd')[0]!;
    expect(first).toBeGreaterThan(0);
    expect(first).toBeLessThan(1);
    expect(second).toBeCloseTo(-first!, 9);
  }
  for (const group of cases.flat()) {
    const largest = Math.max(...advantages([group], 'groupStd')[0]!.map(Math.abs));
    expect(largest).toBeLessThan(Math.sqrt(group.length - 1));
  }
});

test('batchStd: mean square 1 over the batch; leaveOneOut is groupCenter times G / (G − 1)', () => {
  for (const rewards of cases) {
    const all = flat(advantages(rewards, 'batchStd'));
    const std = standardDeviation(flat(advantages(rewards, 'groupCenter')));
    expect(average(all.map((value) => value * value))).toBeCloseTo((std / (std + 1e-4)) ** 2, 9);
    const [left, centred] = [advantages(rewards, 'leaveOneOut'), advantages(rewards, 'groupCenter')];
    for (const [g, group] of left.entries()) {
      const factor = group.length / (group.length - 1);
      for (const [i, value] of group.entries()) expect(value).toBeCloseTo(centred[g]![i]! * factor, 9);
    }
  }
});

test('no signal: one reward, equal ones, and such that differ by rounding alone', () => {
  expect(isZeroVariance([])).toBe(true);
  expect(isZeroVariance([7])).toBe(true);
  expect(isZeroVariance([2, 2, 2])).toBe(true);
  expect(isZeroVariance([0.1 + 0.2, 0.3])).toBe(true);
  expect(isZeroVariance([1e9, 1e9 + 1])).toBe(false);
  expect(isZeroVariance([1e-6, 0])).toBe(false);
});
