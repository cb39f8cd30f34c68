/** Rules for samplers that differ, by hand: k = π_old / μ, the trainer's probability over the sampler's. */
import { describe, expect, test } from 'vitest';
import { trainingSequence } from '../../../test/server/sequences.ts';
import type { LossConfig } from '../../engines/engine.ts';
import { type Correction, capLoss, correctImportance, needsCorrection } from './importance-weights.ts';

const ppo: LossConfig = { name: 'ppo', clipLow: 0.2, clipHigh: 0.2 };
const cispo: LossConfig = { name: 'cispo', clipLow: 0, clipHigh: 5 };
const off: Correction = { importanceCap: null, importanceMask: null, sequenceMask: null };
const { log } = Math;

/** Two trajectories, the first of two sequences. k by token: [4, 1/2], [1] and [3, 1/3]. */
const a = trainingSequence({ sampling: [-2, -1], advantages: [0.5, 0.5] }, 1);
const b = trainingSequence({ sampling: [-3], advantages: [0.5] }, 2);
const c = trainingSequence({ sampling: [-1, -4], advantages: [-1, -1] }, 3);
const old = new Map([
  [a, [0, -2 + log(4), -1 - log(2)]],
  [b, [0, -3]],
  [c, [0, -1 + log(3), -4 - log(3)]],
]);
const trajectories = [[a, b], [c]];
const data = new Map([a, b, c].map((sequence) => [sequence, sequence.datum]));

function correct(loss: LossConfig, correction: Partial<Correction>) {
  const { data: found, metrics } = correctImportance(trajectories, data, old, loss, { ...off, ...correction });
  const advantages = [a, b, c].map((sequence) =>
    found.get(sequence)!.advantages.map((value) => Number(value.toFixed(12))),
  );
  const anchors = [a, b, c].map((sequence) => found.get(sequence)!.samplingLogprobs);
  return { advantages, anchors, metrics };
}

test('the cap weighs each token by min(k, cap) beside PPO, whose ratio is then to the trainer', () => {
  const { advantages, anchors, metrics } = correct(ppo, { importanceCap: 2 });
  // 0.5 · min(4, 2), 0.5 · 1/2; 0.5 · 1; −1 · min(3, 2), −1 · 1/3
  expect(advantages).toEqual([
    [0, 1, 0.25],
    [0, 0.5],
    [0, -2, -0.333333333333],
  ]);
  expect(anchors).toEqual([old.get(a), old.get(b), old.get(c)]);
  expect(metrics).toEqual({ 'loss/capped_token_fraction': 2 / 5 });
});

test('the mask leaves out tokens outside its range and weighs the others by k; with a cap, by min(k, cap)', () => {
  const { advantages, metrics } = correct(ppo, { importanceMask: [0.4, 3.5] });
  expect(advantages).toEqual([
    [0, 0, 0.25],
    [0, 0.5],
    [0, -3, 0],
  ]);
  expect(metrics).toEqual({ 'loss/masked_token_fraction': 2 / 5 });
  const both = correct(ppo, { importanceMask: [0.4, 3.5], importanceCap: 2 });
  expect(both.advantages).toEqual([
    [0, 0, 0.25],
    [0, 0.5],
    [0, -2, 0],
  ]);
  expect(both.metrics).toEqual({ 'loss/masked_token_fraction': 2 / 5, 'loss/capped_token_fraction': 1 / 5 });
});

test('the sequence mask is about the geometric mean of a whole trajectory, and leaves the ratio to the sampler', () => {
  // (4 · 1/2 · 1)^(1/3) = 1.26; (3 · 1/3)^(1/2) = 1
  const { advantages, anchors, metrics } = correct(ppo, { sequenceMask: [0.99, 1.01] });
  expect(advantages).toEqual([
    [0, 0, 0],
    [0, 0],
    [0, -1, -1],
  ]);
  expect(anchors[2]).toEqual(c.datum.samplingLogprobs);
  // What is left out has a ratio of 1: 0 × Infinity is not a number.
  expect(anchors[0]).toEqual(old.get(a));
  expect(metrics).toEqual({ 'loss/masked_token_fraction': 3 / 5, 'loss/masked_trajectory_fraction': 1 / 2 });
  expect(correct(ppo, { sequenceMask: [0.99, 1.3] }).advantages).toEqual(
    [a, b, c].map(({ datum }) => datum.advantages),
  );
});

test('CISPO has k in its own weight: the cap bounds its range, a mask is 0 or 1', () => {
  const { advantages, anchors } = correct(cispo, { importanceMask: [0.4, 3.5], importanceCap: 2 });
  expect(advantages).toEqual([
    [0, 0, 0.5],
    [0, 0.5],
    [0, -1, 0],
  ]);
  expect(anchors[1]).toEqual(b.datum.samplingLogprobs);
  expect(capLoss(cispo, { ...off, importanceCap: 2 })).toEqual({ ...cispo, clipHigh: 2 });
  expect(capLoss({ ...cispo, clipHigh: 1.5 }, { ...off, importanceCap: 2 })).toEqual({ ...cispo, clipHigh: 1.5 });
  expect(capLoss(cispo, off)).toBe(cispo);
  expect(capLoss(ppo, { ...off, importanceCap: 2 })).toBe(ppo);
});

describe('π_old is asked for only where a rule reads it', () => {
  test.each([
    [cispo, {}, false],
    [cispo, { importanceCap: 2 }, false],
    [cispo, { importanceMask: [0.5, 2] }, true],
    [ppo, {}, false],
    [ppo, { importanceCap: 2 }, true],
    [ppo, { sequenceMask: [0.99, 1.01] }, true],
    [{ name: 'importanceSampling' }, { importanceCap: 2 }, true],
  ] as const)('%o under %o: %o', (loss, correction, needed) => {
    expect(needsCorrection(loss, { ...off, ...correction })).toBe(needed);
  });
});

test('where sampler and trainer agree no rule changes anything, bit for bit', () => {
  const same = new Map([a, b, c].map((sequence) => [sequence, sequence.datum.samplingLogprobs]));
  for (const correction of [
    { importanceCap: 2 },
    { importanceMask: [0.5, 2] },
    { sequenceMask: [0.99, 1.01] },
  ] as const) {
    const found = correctImportance(trajectories, data, same, ppo, { ...off, ...correction }).data;
    for (const sequence of [a, b, c]) expect(found.get(sequence)).toEqual(sequence.datum);
  }
});
