import { expect, test } from 'vitest';
import { completion, group, lookup, trajectory } from '../../../test/server/training-fixtures.ts';
import { DataError } from '../../core/errors.ts';
import type { WireTrajectory } from '../../wire/training.ts';
import { buildTrainingBatch } from './training-batch.ts';

const options = { advantage: 'groupCenter', maxTokens: 100 } as const;

test('a turn that continues the ids so far extends the sequence: mask, logprobs, temperatures and advantages by hand', () => {
  const store = lookup(
    completion('a', { promptIds: [1, 2], tokenIds: [7, 8], logprobs: [-0.5, -0.25], temperature: 0.5, policyStep: 3 }),
    completion('b', {
      promptIds: [1, 2, 7, 8, 4],
      tokenIds: [9],
      logprobs: [-2],
      temperature: 0,
      policyStep: 4,
    }),
    completion('c', { promptIds: [1], tokenIds: [5], logprobs: [-3] }),
  );
  const batch = buildTrainingBatch([group(trajectory(1, ['a', 'b']), trajectory(0, ['c']))], store, options);
  expect(batch.trajectories).toEqual([
    [
      {
        datum: {
          tokenIds: [1, 2, 7, 8, 4, 9],
          actionMask: [0, 0, 1, 1, 0, 1],
          samplingLogprobs: [0, 0, -0.5, -0.25, 0, -2],
          advantages: [0, 0, 0.5, 0.5, 0, 0.5],
          temperatures: [1, 1, 0.5, 0.5, 1, 1],
        },
        samplingSteps: [-1, -1, 3, 3, -1, 4],
        actionTokens: 3,
      },
    ],
    [
      {
        datum: {
          tokenIds: [1, 5],
          actionMask: [0, 1],
          samplingLogprobs: [0, -3],
          advantages: [0, -0.5],
          temperatures: [1, 1],
        },
        samplingSteps: [-1, 0],
        actionTokens: 1,
      },
    ],
  ]);
  expect(batch.actionTokens).toBe(4);
  expect(batch.counts).toEqual({
    groups: 1,
    trajectories: 2,
    trainableGroups: 1,
    zeroVarianceGroups: 0,
    additionalHistories: 0,
    rerenderedSequences: 0,
    repeatedCompletions: 0,
    droppedSequences: 0,
    droppedTrajectories: 0,
    maskedTrajectories: 0,
    clippedTurns: 0,
  });
});

test('a turn whose prompt rewrites what was sampled starts a new sequence, and is counted', () => {
  const store = lookup(
    completion('a'),
    completion('b', { promptIds: [1, 2, 7, 6], tokenIds: [9] }),
    completion('c', { promptIds: [1, 2, 7, 6, 9, 3], tokenIds: [4] }),
    completion('d'),
  );
  const batch = buildTrainingBatch([group(trajectory(1, ['a', 'b', 'c']), trajectory(0, ['d']))], store, options);
  expect(batch.trajectories[0]?.map(({ datum }) => [datum.tokenIds, datum.actionMask])).toEqual([
    [
      [1, 2, 7, 8],
      [0, 0, 1, 1],
    ],
    [
      [1, 2, 7, 6, 9, 3, 4],
      [0, 0, 0, 0, 1, 0, 1],
    ],
  ]);
  expect(batch.counts.rerenderedSequences).toBe(1);
});

test('a prompt that ends inside the sequence starts a new one: choices of one prompt do not overlap', () => {
  const store = lookup(completion('a'), completion('b', { tokenIds: [5] }), completion('c'));
  const batch = buildTrainingBatch([group(trajectory(1, ['a', 'b']), trajectory(0, ['c']))], store, options);
  expect(batch.trajectories[0]?.map(({ datum }) => datum.tokenIds)).toEqual([
    [1, 2, 7, 8],
    [1, 2, 5],
  ]);
});

test('each sampled turn is trained once: twice in a trajectory, or shared by two', () => {
  const store = lookup(
    completion('a'),
    completion('b', { promptIds: [1, 2, 7, 8, 3], tokenIds: [9] }),
    completion('c', { promptIds: [1, 2, 7, 8, 3], tokenIds: [5, 6] }),
  );
  const groups = [group(trajectory(1, ['a', 'a', 'b']), trajectory(0, ['a', 'c']))];
  const batch = buildTrainingBatch(groups, store, options);
  expect(batch.trajectories.map(([sequence]) => sequence?.datum.actionMask)).toEqual([
    [0, 0, 1, 1, 0, 1],
    [0, 0, 0, 0, 0, 1, 1],
  ]);
  expect(batch.actionTokens).toBe(5);
  expect(batch.counts.repeatedCompletions).toBe(2);
  expect(batch.counts.rerenderedSequences).toBe(0);
});

test('groups without signal are skipped and counted, and do not use a shared turn up', () => {
  const store = lookup(completion('a'), completion('b'), completion('c'));
  const groups = [
    group(trajectory(1, ['a']), trajectory(1, ['b'])),
    group(trajectory(1, ['a'])),
    group(),
    group(trajectory(1, ['a']), trajectory(0, ['c'])),
  ];
  const { counts, trajectories } = buildTrainingBatch(groups, store, options);
  expect(counts).toMatchObject({ groups: 4, trajectories: 5, zeroVarianceGroups: 3, trainableGroups: 1 });
  expect(trajectories).toHaveLength(2);
});

test('normalised advantages: (r − mean) / (std + 1e-4)', () => {
  const store = lookup(completion('a'), completion('b'), completion('c'));
  const groups = [group(trajectory(3, ['a']), trajectory(0, ['b']), trajectory(0, ['c']))];
  const batch = buildTrainingBatch(groups, store, { ...options, advantage: 'groupStd' });
  const scale = 1 / (Math.sqrt(2) + 1e-4);
  expect(batch.trajectories.map(([sequence]) => sequence?.datum.advantages.at(-1))).toEqual([
    2 * scale,
    -scale,
    -scale,
  ]);
});

test('sequences over the context are dropped and counted; one that fits exactly stays', () => {
  const store = lookup(completion('a'), completion('b', { promptIds: [1, 2, 3] }), completion('c', { promptIds: [9] }));
  const groups = [group(trajectory(1, ['a', 'b']), trajectory(0, ['c']), trajectory(0, ['b']))];
  const batch = buildTrainingBatch(groups, store, { ...options, maxTokens: 4 });
  expect(batch.trajectories.map((sequences) => sequences.length)).toEqual([1, 1]);
  expect(batch.counts).toMatchObject({ droppedSequences: 1, droppedTrajectories: 0, repeatedCompletions: 1 });
  const none = buildTrainingBatch(groups, store, { ...options, maxTokens: 1 });
  expect(none.counts).toMatchObject({ droppedSequences: 3, droppedTrajectories: 2, trainableGroups: 0 });
});

test('refusals name group, trajectory and the mend', () => {
  const store = lookup(completion('a'), completion('b', { logprobs: [-1, Number.NaN] }));
  const build = (...trajectories: WireTrajectory[]) => {
    return () => buildTrainingBatch([group(), group(...trajectories)], store, options);
  };
  expect(build(trajectory(1, ['a']), trajectory(Number.NaN, ['a']))).toThrow(DataError);
  expect(build(trajectory(1, ['a']), trajectory(Number.NaN, ['a']))).toThrow(
    'groups[1].trajectories[1].reward: must be a finite number, got NaN',
  );
  expect(build(trajectory(1, []))).toThrow(
    /groups\[1\]\.trajectories\[0\]: must hold at least one choice.*push the choice/,
  );
  expect(build(trajectory(1, ['x']))).toThrow(
    /groups\[1\]\.trajectories\[0\]\.entries\[1\].*completion x.*roll out again/,
  );
  expect(build(trajectory(1, ['b']))).toThrow(/sampling logprobs must be finite, got NaN/);
});

test('turnDiscount: earlier turns get less of the advantage, the last one all of it', () => {
  const store = lookup(
    completion('a', { promptIds: [1], tokenIds: [2] }),
    completion('b', { promptIds: [1, 2, 3], tokenIds: [4, 5] }),
    completion('c', { promptIds: [1, 2, 3, 4, 5, 6], tokenIds: [7] }),
    completion('d', { promptIds: [1], tokenIds: [8] }),
  );
  const groups = [group(trajectory(2, ['a', 'b', 'c']), trajectory(0, ['d']))];
  const batch = buildTrainingBatch(groups, store, { ...options, turnDiscount: 0.5 });
  expect(batch.trajectories.map(([sequence]) => sequence?.datum.advantages)).toEqual([
    [0, 0.25, 0, 0.5, 0.5, 0, 1],
    [0, -1],
  ]);
});
