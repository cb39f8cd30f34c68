import { expect, test } from 'vitest';
import { createCountingEngine } from '../../../test/server/counting-engine.ts';
import { completion, group, lookup, trajectory } from '../../../test/server/training-fixtures.ts';
import { defaultTrainConfig } from '../../core/train-config.ts';
import { anchorToTrainer } from './importance-cap.ts';
import { lossConfigOf, runUpdates } from './train-step.ts';
import { buildTrainingBatch } from './training-batch.ts';

const records = [0, 1].map((i) => completion(`c${i}`, { tokenIds: [100, 101 + i], temperature: i === 0 ? 1 : 0.5 }));
const batch = buildTrainingBatch(
  [group(...records.map((record, i) => trajectory(i, [record.completionId])))],
  lookup(...records),
  { advantage: 'groupCenter', maxTokens: 1000 },
);
const still = { batch, step: 0, signal: new AbortController().signal, onProgress: () => {} };

test('weights are the ratio of trainer to sampler up to the cap, and ratios of the loss are to the trainer', async () => {
  const sequences = batch.trajectories.flat();
  const offset = [1.5, -0.25]; // ln of the ratio, by temperature: above ln 2, and below 0
  const engine = {
    doLogprobs: async ({ tokenIds, temperature }: { tokenIds: readonly number[]; temperature: number }) => {
      const { datum } = sequences.find(({ datum: { tokenIds: ids } }) => ids.join() === tokenIds.join())!;
      return datum.samplingLogprobs.map((logprob) => logprob + offset[temperature === 1 ? 0 : 1]!);
    },
  };
  const anchored = await anchorToTrainer(engine, sequences, 2);
  for (const [i, sequence] of sequences.entries()) {
    const { datum } = sequence;
    const got = anchored.get(sequence)!;
    for (const [t, isAction] of datum.actionMask.entries()) {
      if (isAction === 0) continue;
      expect(got.samplingLogprobs[t]).toBe(datum.samplingLogprobs[t]! + offset[i]!);
      expect(got.tokenWeights![t]).toBeCloseTo(i === 0 ? 2 : Math.exp(-0.25), 12);
    }
    expect(got.advantages).toBe(datum.advantages);
  }
});

test('CISPO holds its own weight under the cap; a lower bound of the user stays', async () => {
  for (const [clipHigh, importanceCap, bound] of [
    [null, 2, 2],
    [1.5, 2, 1.5],
    [null, null, 5],
  ] as const) {
    const engine = createCountingEngine();
    const config = { ...defaultTrainConfig, clipHigh, importanceCap };
    const { metrics } = await runUpdates({ ...still, engine, config });
    expect(engine.requests[0]!.loss).toEqual({ ...lossConfigOf(config), clipHigh: bound });
    expect(metrics['loss/importance_cap']).toBe(importanceCap ?? undefined);
  }
});
