import { expect, test } from 'vitest';
import { createCountingEngine } from '../../../test/server/counting-engine.ts';
import { completion, group, lookup, trajectory } from '../../../test/server/training-fixtures.ts';
import { AbortedError, DataError } from '../../core/errors.ts';
import { defaultTrainConfig } from '../../core/train-config.ts';
import type { CompletionRecord } from '../inference/served-model.ts';
import { lossConfigOf, planUpdates, runUpdates } from './train-step.ts';
import { buildTrainingBatch, type TrainingBatch } from './training-batch.ts';

/** A group of `count` trajectories; the i-th has i + 1 sampled tokens. */
function batchOf(count: number, init: Partial<CompletionRecord> = {}): TrainingBatch {
  const records = Array.from({ length: count }, (_, i) =>
    completion(`c${i}`, { tokenIds: Array.from({ length: i + 1 }, () => 100 + i), ...init }),
  );
  const trajectories = records.map((record, i) => trajectory(i, [record.completionId]));
  return buildTrainingBatch([group(...trajectories)], lookup(...records), {
    advantage: 'groupCenter',
    maxTokens: 1000,
  });
}

const still = {
  step: 0,
  isExact: true,
  checkpoints: { list: () => [] },
  signal: new AbortController().signal,
  onProgress: () => {},
};

test('every trajectory is in exactly one part of each epoch, in an order that seed, step and epoch decide', () => {
  const batch = batchOf(7);
  const config = { ...defaultTrainConfig, gradientSteps: 3, epochs: 2, seed: 5 };
  const plan = planUpdates(batch, config, 2);
  expect(plan.map((calls) => calls.flat().length)).toEqual([2, 2, 3, 2, 2, 3]);
  for (const epoch of [plan.slice(0, 3), plan.slice(3)]) {
    expect(new Set(epoch.flat(2))).toEqual(new Set(batch.trajectories.flat()));
  }
  expect(planUpdates(batch, config, 2)).toEqual(plan);
  expect(planUpdates(batch, config, 3)).not.toEqual(plan);
  expect(planUpdates(batch, { ...config, seed: 6 }, 2)).not.toEqual(plan);
  expect(plan.slice(0, 3)).not.toEqual(plan.slice(3));
});

test('more parts than trajectories: no empty updates', () => {
  expect(planUpdates(batchOf(2), { ...defaultTrainConfig, gradientSteps: 8 }, 0)).toHaveLength(2);
});

test('scale is one over the action tokens of the part, over all of its calls; calls hold at most 64 data', async () => {
  const engine = createCountingEngine();
  const batch = batchOf(130);
  const progress: unknown[] = [];
  const { metrics, trainedTokens } = await runUpdates({
    ...still,
    engine,
    batch,
    config: { ...defaultTrainConfig, learningRate: 0 },
    onProgress: (event) => progress.push(event),
  });
  const actionTokens = (130 * 131) / 2;
  expect(engine.requests.map(({ data, scale }) => [data.length, scale])).toEqual([
    [64, 1 / actionTokens],
    [64, 1 / actionTokens],
    [2, 1 / actionTokens],
  ]);
  expect(engine.calls).toEqual(['forwardBackward', 'forwardBackward', 'forwardBackward', 'optimStep']);
  expect(progress.at(-1)).toEqual({ stage: 'train', done: 3, total: 3 });
  expect(trainedTokens).toBe(actionTokens + 2 * 130);
  // Loss of the part: −Σ advantage over its tokens ÷ tokens; advantage of trajectory i is i − 64.5, on i + 1 tokens.
  const sum = Array.from({ length: 130 }, (_, i) => (i - 64.5) * (i + 1)).reduce((a, b) => a + b, 0);
  expect(metrics['loss/train']).toBeCloseTo(-sum / actionTokens, 9);
  expect(metrics).toMatchObject({
    'loss/entropy': 0.5,
    'loss/learning_rate': 0,
    'loss/mismatch_kl': 0,
    'data/cum/num_gradient_steps': 1,
    'data/step_packed_sequences': 3,
    'data/step_padding_ratio': 3 / (actionTokens + 2 * 130 + 3),
  });
});

test('mismatch is measured in the first update alone: later ones have changed weights', async () => {
  const engine = createCountingEngine();
  const config = { ...defaultTrainConfig, learningRate: 0.25, epochs: 2 };
  const { metrics } = await runUpdates({ ...still, engine, batch: batchOf(3), config });
  expect(metrics['loss/mismatch_max_abs']).toBe(0);
  expect(metrics['loss/importance_ratio_mean']).not.toBe(1);
});

test('without tokens sampled at this step there is no mismatch to report', async () => {
  const { metrics } = await runUpdates({
    ...still,
    step: 2,
    engine: createCountingEngine(),
    batch: batchOf(2, { policyStep: 1 }),
    config: defaultTrainConfig,
  });
  expect(metrics).not.toHaveProperty('loss/mismatch_kl');
});

test('turns of an undone step are refused, and an aborted step stops between two calls', async () => {
  const engine = createCountingEngine();
  const request = { ...still, engine, batch: batchOf(2, { policyStep: 1 }), config: defaultTrainConfig };
  await expect(runUpdates(request)).rejects.toThrow(DataError);
  const aborted = { ...request, step: 1, signal: AbortSignal.abort() };
  await expect(runUpdates(aborted)).rejects.toThrow(AbortedError);
  expect(engine.calls).toEqual([]);
});

test('clip ranges that the configuration leaves open are those of the loss', () => {
  expect(lossConfigOf(defaultTrainConfig)).toEqual({ name: 'cispo', clipLow: 0, clipHigh: 5, entropyBonus: 0 });
  expect(lossConfigOf({ ...defaultTrainConfig, loss: 'ppo', clipHigh: 0.28 })).toEqual({
    name: 'ppo',
    clipLow: 0.2,
    clipHigh: 0.28,
    entropyBonus: 0,
  });
});
