/**
 * What `runUpdates` gives the engine for each option of the loss. The counting engine's logprobs are −1 − weight: 0 before training, so that
 * −1 at sampling means equal policies, and changed by every update.
 */
import { describe, expect, test } from 'vitest';
import { createCountingEngine } from '../../../test/server/counting-engine.ts';
import { trainingSequence } from '../../../test/server/sequences.ts';
import { CheckpointError } from '../../core/errors.ts';
import { defaultTrainConfig, type TrainConfig } from '../../core/train-config.ts';
import { runUpdates } from './train-step.ts';
import type { TrainingBatch, TrainingSequence } from './training-batch.ts';

/** Two trajectories of steps `step`: one of two sequences, 3 + 1 tokens, one of 2. */
function batchOf(step = 0, sampling = -1): TrainingBatch {
  const sequence = (length: number, advantage: number, id: number): TrainingSequence => {
    const values = (value: number): number[] => Array.from({ length }, () => value);
    return trainingSequence({ sampling: values(sampling), advantages: values(advantage), step }, id);
  };
  const trajectories = [[sequence(3, 1, 1), sequence(1, 1, 2)], [sequence(2, -1, 3)]];
  return { trajectories, actionTokens: 6 } as unknown as TrainingBatch;
}

async function run(
  options: Partial<TrainConfig>,
  change: { batch?: TrainingBatch; step?: number; isExact?: boolean } = {},
) {
  const engine = createCountingEngine();
  const { metrics } = await runUpdates({
    engine,
    batch: batchOf(),
    config: { ...defaultTrainConfig, ...options },
    step: 0,
    isExact: true,
    checkpoints: { list: () => [] },
    signal: new AbortController().signal,
    onProgress: () => undefined,
    ...change,
  });
  const scores = engine.calls.filter((call) => call.startsWith('score'));
  return { engine, metrics, scores, data: engine.requests.flatMap(({ data }) => data) };
}

describe('fresh tokens of an exact sampler are not scored', () => {
  test.each<Partial<TrainConfig>>([
    {},
    { loss: 'ppo', importanceCap: 2 },
    { loss: 'dapo', importanceMask: [0.5, 2] },
    { loss: 'ppo', sequenceMask: [0.99, 1.01] },
    { loss: 'gspo' },
    { loss: 'importanceSampling', importanceCap: 2 },
  ])('%o', async (options) => {
    const { scores, data } = await run({ ...options, lengthNormalization: 'part' });
    expect(scores).toEqual([]);
    const given = batchOf()
      .trajectories.flat()
      .map(({ datum }) => datum);
    for (const [i, datum] of given.entries()) {
      const found = data.find(({ tokenIds }) => tokenIds.join() === datum.tokenIds.join());
      expect(found, `datum ${i}`).toMatchObject(datum);
    }
  });

  test('stale ones are, once for the whole call; so are those of a sampler that is not exact', async () => {
    const capped = { loss: 'ppo', importanceCap: 2, epochs: 2 } as const;
    expect((await run(capped, { batch: batchOf(0), step: 1 })).scores).toEqual(['score:trainer']);
    expect((await run(capped, { isExact: false })).scores).toEqual(['score:trainer']);
    expect((await run({}, { batch: batchOf(0), step: 1 })).scores).toEqual([]);
  });
});

test('a stale token weighs its ratio up to the cap', async () => {
  const { data, metrics } = await run(
    { loss: 'ppo', importanceCap: 2 },
    { batch: batchOf(0, -1 - Math.log(3)), step: 1 },
  );
  // π_old / μ = e^(−1 + 1 + ln 3) = 3, capped at 2.
  for (const { advantages, samplingLogprobs } of data) {
    expect(new Set(advantages.slice(1).map(Math.abs))).toEqual(new Set([2]));
    expect(new Set(samplingLogprobs.slice(1))).toEqual(new Set([-1]));
  }
  expect(metrics).toMatchObject({
    'loss/importance_cap': 2,
    'loss/capped_token_fraction': 1,
    'loss/clipped_token_fraction': 0,
  });
});

describe('GSPO', () => {
  const gspo = { loss: 'gspo', lengthNormalization: 'part', learningRate: 0.25 } as const;

  test('has ratio 1 without scoring at first, and is scored before every later update', async () => {
    const { engine, data } = await run({ ...gspo, epochs: 2, clipLow: 0.2, clipHigh: 0.3 });
    expect(engine.calls).toEqual(['forwardBackward', 'optimStep', 'score:trainer', 'forwardBackward', 'optimStep']);
    expect(engine.requests[0]!.loss).toEqual({ name: 'gspo', clipLow: 0.2, clipHigh: 0.3, entropyBonus: 0 });
    const ratios = data.map(({ sequenceLogRatio }) => sequenceLogRatio);
    expect(ratios.slice(0, 3)).toEqual([0, 0, 0]);
    // One update: the gradient of the counting engine is (Σ advantages + 1) / 6 = (4 − 2 + 1) / 6, so the weight is −0.25 / 2.
    expect(ratios.slice(3)).toEqual([0.125, 0.125, 0.125]);
  });

  test('the ratio of a trajectory is its mean over all tokens of all its sequences', async () => {
    const sequences = [
      trainingSequence({ sampling: [-1.4, -0.8, -1], step: 0 }, 1),
      trainingSequence({ sampling: [-2] }, 2),
    ];
    const batch = {
      trajectories: [sequences, batchOf().trajectories[1]!],
      actionTokens: 6,
    } as unknown as TrainingBatch;
    const { data, scores } = await run(gspo, { batch, step: 1 });
    expect(scores).toEqual(['score:trainer']);
    // (0.4 − 0.2 + 0 + 1) / 4 = 0.3
    const ratioOf = (id: number): number => data.find(({ tokenIds }) => tokenIds[0] === id)!.sequenceLogRatio!;
    expect(ratioOf(1)).toBeCloseTo(0.3, 12);
    expect(ratioOf(2)).toBe(ratioOf(1));
    expect(ratioOf(3)).toBe(0);
  });

  test('beside a cap the ratio is to the trainer as the call began, and what was scored is not scored again', async () => {
    const { data, scores } = await run({ ...gspo, importanceCap: 2 }, { batch: batchOf(0, -1 - Math.log(3)), step: 1 });
    expect(scores).toEqual(['score:trainer']);
    expect(data.map(({ sequenceLogRatio }) => sequenceLogRatio)).toEqual([0, 0, 0]);
  });
});

describe('KL penalty', () => {
  const base = { weight: 0.2, reference: 'base' } as const;

  test('none: no reference, no term, no metric', async () => {
    const { scores, engine, data, metrics } = await run({});
    expect(scores).toEqual([]);
    expect(engine.requests[0]!.loss).toEqual({ name: 'cispo', clipLow: 0, clipHigh: 5, entropyBonus: 0 });
    for (const datum of data) expect(datum).not.toHaveProperty('referenceLogprobs');
    expect(Object.keys(metrics).filter((name) => name.includes('kl_'))).toEqual([]);
  });

  test('in the loss: the reference is scored once, before anything is trained, and its distance reported', async () => {
    const { engine, data, metrics } = await run({
      klPenalty: { ...base, form: 'loss' },
      epochs: 2,
      learningRate: 0.25,
    });
    expect(engine.calls).toEqual(['score:base', 'forwardBackward', 'optimStep', 'forwardBackward', 'optimStep']);
    expect(engine.requests[0]!.loss).toMatchObject({ name: 'cispo', klWeight: 0.2 });
    expect(data[0]!.referenceLogprobs).toEqual(data[0]!.actionMask.map((action) => (action === 1 ? -1 : 0)));
    // First pass x = 0; then the weight is −0.125, x = −1 − (−1 + 0.125) = −0.125.
    const k3 = (Math.exp(-0.125) + 0.125 - 1) / 2;
    expect(metrics['loss/kl_policy_ref']).toBeCloseTo(k3, 12);
    expect(metrics['loss/kl_penalty']).toBeCloseTo(0.2 * k3, 12);
  });

  test('on advantages: no term in the graph; shifts that sum to zero, none where the distance is equal', async () => {
    const { engine, data, metrics } = await run({ klPenalty: { ...base, form: 'advantage' } });
    expect(engine.requests[0]!.loss).not.toHaveProperty('klWeight');
    expect(data.map(({ advantages }) => advantages)).toEqual(
      expect.arrayContaining([
        [0, 1, 1, 1],
        [0, 1],
        [0, -1, -1],
      ]),
    );
    expect(metrics['loss/kl_policy_ref']).toBe(0);
  });

  test('a reference that is not there fails before anything is scored or trained', async () => {
    const engine = createCountingEngine();
    const config: TrainConfig = {
      ...defaultTrainConfig,
      klPenalty: { weight: 0.1, reference: { step: 4 }, form: 'loss' },
    };
    const request = {
      ...{ engine, batch: batchOf(), config, step: 0, isExact: true, signal: new AbortController().signal },
      ...{ checkpoints: { list: () => [] }, onProgress: () => undefined },
    };
    await expect(runUpdates(request)).rejects.toThrow(CheckpointError);
    await expect(runUpdates(request)).rejects.toThrow(
      'klPenalty.reference must be a checkpoint that is kept, got step 4',
    );
    expect(engine.calls).toEqual([]);
  });
});

test('a later pass over a batch has ratios to the sampler, for every loss', async () => {
  for (const loss of ['cispo', 'ppo', 'grpo', 'dapo', 'bnpo', 'importanceSampling'] as const) {
    const { data, metrics } = await run({ loss, epochs: 2, learningRate: 0.25, lengthNormalization: 'part' });
    expect(data).toHaveLength(6);
    for (const { samplingLogprobs } of data) expect(new Set(samplingLogprobs.slice(1)), loss).toEqual(new Set([-1]));
    // e^0 in the first pass, e^0.125 in the second.
    expect(metrics['loss/importance_ratio_mean']).toBeCloseTo((1 + Math.exp(0.125)) / 2, 12);
  }
});
