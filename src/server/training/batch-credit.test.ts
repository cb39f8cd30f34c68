/** What turns earn and weigh: turn rewards, histories, length normalisation, overlong trajectories. Hand-computed. */
import { expect, test } from 'vitest';
import { completion, group, lookup, trajectory } from '../../../test/server/training-fixtures.ts';
import { DataError } from '../../core/errors.ts';
import type { WireTrajectory } from '../../wire/training.ts';
import { updateScale } from './length-normalization.ts';
import { overlongPenalty } from './overlong.ts';
import { type BatchOptions, buildTrainingBatch, type TrainingBatch } from './training-batch.ts';

const options = { advantage: 'groupCenter', maxTokens: 100 } as const;
const entriesOf = (ids: readonly string[]): WireTrajectory['entries'] => trajectory(0, ids).entries;

const two = lookup(
  completion('a', { promptIds: [1], tokenIds: [2] }),
  completion('b', { promptIds: [1, 2, 3], tokenIds: [4, 5] }),
  completion('c', { promptIds: [1], tokenIds: [6] }),
  completion('d', { promptIds: [1, 6, 3], tokenIds: [7] }),
);
const advantagesOf = (batch: TrainingBatch): (readonly number[])[] =>
  batch.trajectories.flat().map(({ datum }) => datum.advantages.filter((_, t) => datum.actionMask[t] === 1));

test('turn rewards: a turn gets its own and the later ones, centred over all turns of the group', () => {
  // Turn rewards 1, 3 and 0, 0 have mean 1: 0, 2 and −1, −1. Outcomes 1 and 0: ±0.5.
  const groups = [
    group(
      { ...trajectory(1, ['a', 'b']), turn_rewards: [1, 3] },
      { ...trajectory(0, ['c', 'd']), turn_rewards: [0, 0] },
    ),
  ];
  expect(advantagesOf(buildTrainingBatch(groups, two, options))).toEqual([
    [0.5 + 2, 0.5 + 2, 0.5 + 2],
    [-0.5 - 2, -0.5 - 1],
  ]);
  expect(advantagesOf(buildTrainingBatch(groups, two, { ...options, turnDiscount: 0.5 }))).toEqual([
    [0.25 + 1, 0.5 + 2, 0.5 + 2],
    [-0.25 - 1.5, -0.5 - 1],
  ]);
});

test('turn rewards are signal of their own where the outcomes are equal', () => {
  const build = (first: number[], second: number[]): TrainingBatch =>
    buildTrainingBatch(
      [group({ ...trajectory(1, ['a']), turn_rewards: first }, { ...trajectory(1, ['c']), turn_rewards: second })],
      two,
      options,
    );
  expect(advantagesOf(build([2], [0]))).toEqual([[1], [-1]]);
  expect(build([2], [2]).counts.zeroVarianceGroups).toBe(1);
});

test('turn rewards that are not one a choice, or that a part of a group lacks, are refused', () => {
  const build = (...trajectories: WireTrajectory[]) => {
    return () => buildTrainingBatch([group(...trajectories)], two, options);
  };
  expect(build({ ...trajectory(1, ['a', 'b']), turn_rewards: [1] }, trajectory(0, ['c']))).toThrow(
    'groups[0].trajectories[0].turn_rewards: must be one for each of 2 choices of all histories, got 1',
  );
  const half = build({ ...trajectory(1, ['a']), turn_rewards: [1] }, trajectory(0, ['c']));
  expect(half).toThrow(DataError);
  expect(half).toThrow(/all trajectories of a group must have turn rewards, or none, got none in trajectories\[1\]/);
});

test('additional histories are trained under the same reward, each completion once, with turn rewards of their own', () => {
  const store = lookup(
    completion('main', { promptIds: [1], tokenIds: [2] }),
    completion('sub', { promptIds: [9], tokenIds: [8] }),
    completion('other', { promptIds: [1], tokenIds: [3] }),
  );
  const whole = {
    ...trajectory(1, ['main']),
    additional_histories: [{ entries: entriesOf(['sub', 'main']) }],
  };
  const batch = buildTrainingBatch([group(whole, trajectory(0, ['other']))], store, options);
  expect(batch.trajectories.map((sequences) => sequences.map(({ datum }) => datum.tokenIds))).toEqual([
    [
      [1, 2],
      [9, 8],
    ],
    [[1, 3]],
  ]);
  expect(advantagesOf(batch)).toEqual([[0.5], [0.5], [-0.5]]);
  expect(batch.counts).toMatchObject({ additionalHistories: 1, repeatedCompletions: 1, rerenderedSequences: 0 });
  // −1 of the turn in the other history is no later reward of the main one: pool 2, −1, −1, 0 has mean 0.
  const rewarded = [
    { ...whole, turn_rewards: [2, -1, -1] },
    { ...trajectory(0, ['other']), turn_rewards: [0] },
  ];
  expect(advantagesOf(buildTrainingBatch([group(...rewarded)], store, options))).toEqual([[2.5], [-1.5], [-0.5]]);
});

test('agents that take turns find their own sequences again: the longest that the prompt repeats', () => {
  const store = lookup(
    completion('x1', { promptIds: [1], tokenIds: [2] }),
    completion('y1', { promptIds: [5], tokenIds: [6] }),
    completion('x2', { promptIds: [1, 2, 3], tokenIds: [4] }),
    completion('y2', { promptIds: [5, 6, 7], tokenIds: [8] }),
    completion('z', { promptIds: [1], tokenIds: [9] }),
  );
  const groups = [group(trajectory(1, ['x1', 'y1', 'x2', 'y2']), trajectory(0, ['z']))];
  const batch = buildTrainingBatch(groups, store, options);
  expect(batch.trajectories[0]?.map(({ datum }) => [datum.tokenIds, datum.actionMask])).toEqual([
    [
      [1, 2, 3, 4],
      [0, 1, 0, 1],
    ],
    [
      [5, 6, 7, 8],
      [0, 1, 0, 1],
    ],
  ]);
  expect(batch.counts.rerenderedSequences).toBe(1);
});

/** Weight of every trained token times the scale of its update: what the token's loss is divided by. */
function weights(lengthNormalization: BatchOptions['lengthNormalization'] & string, parts: number): number[] {
  const store = lookup(completion('l', { tokenIds: [3, 4, 5] }), completion('s', { tokenIds: [6] }));
  const batch = buildTrainingBatch([group(trajectory(1, ['l']), trajectory(0, ['s']))], store, {
    ...options,
    lengthNormalization,
    maxCompletionTokens: 10,
  });
  return batch.trajectories.flatMap((sequences) => {
    const partTokens = parts === 1 ? batch.actionTokens : sequences[0]!.actionTokens;
    const scale = updateScale(lengthNormalization, { partTokens, batchTokens: batch.actionTokens, parts });
    return sequences.flatMap(({ datum }) =>
      datum.actionMask.flatMap((mask, t) => (mask === 1 ? [(datum.tokenWeights?.[t] ?? 1) * scale] : [])),
    );
  });
}

test('length normalisation by hand: trajectories of 3 and 1 tokens, in one update and in two', () => {
  const close = (values: readonly number[]): unknown[] => values.map((value) => expect.closeTo(value, 12));
  const quarter = 1 / 4;
  expect(weights('part', 1)).toEqual([quarter, quarter, quarter, quarter]);
  expect(weights('part', 2)).toEqual(close([1 / 3, 1 / 3, 1 / 3, 1]));
  expect(weights('token', 1)).toEqual([quarter, quarter, quarter, quarter]);
  expect(weights('token', 2)).toEqual([0.5, 0.5, 0.5, 0.5]);
  expect(weights('trajectory', 1)).toEqual(close([1 / 6, 1 / 6, 1 / 6, 1 / 2]));
  expect(weights('trajectory', 2)).toEqual(close([1 / 3, 1 / 3, 1 / 3, 1]));
  expect(weights('constant', 1)).toEqual(close([1 / 20, 1 / 20, 1 / 20, 1 / 20]));
});

test('overlong: the penalty is linear in the buffer, and shapes rewards before advantages', () => {
  const overlong = { mask: false, bufferTokens: 4 };
  expect([5, 6, 7, 8, 10, 12].map((length) => overlongPenalty(length, overlong, 10) + 0)).toEqual([
    0, 0, -0.25, -0.5, -1, -1,
  ]);
  const store = lookup(completion('l', { tokenIds: [3, 4, 5, 6] }), completion('s', { tokenIds: [6] }));
  const batch = buildTrainingBatch([group(trajectory(1, ['l']), trajectory(1, ['s']))], store, {
    ...options,
    overlong,
    maxCompletionTokens: 5,
  });
  // 4 of 5 tokens with a buffer of 4: −0.75, so that rewards are 0.25 and 1.
  expect(advantagesOf(batch)).toEqual([[-0.375, -0.375, -0.375, -0.375], [0.375]]);
  expect(batch.meanOverlongPenalty).toBe(-0.375);
});

test('overlong.mask: a trajectory that a token limit ended is not trained, but its reward counts in the group', () => {
  const store = lookup(
    completion('a', { finishReason: 'length' }),
    completion('b', { promptIds: [1, 2, 7, 8, 3], finishReason: 'stop' }),
    completion('c', { finishReason: 'length', tokenIds: [4] }),
  );
  const groups = [group(trajectory(3, ['a', 'b']), trajectory(0, ['c']))];
  const batch = buildTrainingBatch(groups, store, { ...options, overlong: { mask: true, bufferTokens: 0 } });
  expect(advantagesOf(batch)).toEqual([[1.5, 1.5, 1.5, 1.5]]);
  expect(batch.counts.maskedTrajectories).toBe(1);
  expect(batch.meanOverlongPenalty).toBeNull();
});

test('maxAdvantage holds advantages and counts the turns', () => {
  const groups = [group(trajectory(10, ['a', 'b']), trajectory(0, ['c']))];
  const batch = buildTrainingBatch(groups, two, { ...options, maxAdvantage: 2, turnDiscount: 0.25 });
  expect(advantagesOf(batch)).toEqual([[1.25, 2, 2], [-2]]);
  expect(batch.counts.clippedTurns).toBe(2);
});
