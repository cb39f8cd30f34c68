/** Every policy loss through the trainer: all ways to compute it agree, parts add up, and at equal policy all are REINFORCE. */
import { describe, expect, test } from 'vitest';
import { randomAdapter, randomIds, randomParameters, tinyConfig } from '../../test/tiny-model.ts';
import { expectClose, expectSameBits, tolerances } from '../../test/tolerance.ts';
import { createRng } from '../core/rng.ts';
import { createOrtRuntime } from '../graph/runtime-ort.ts';
import { loraSpec } from '../nn/lora.ts';
import { policyLossNames } from './loss-graph.ts';
import type { TrainingSequence } from './microbatch.ts';
import type { AdamWSettings } from './optimizer.ts';
import { type LossSpec, Trainer, type TrainerOptions } from './trainer.ts';

const config = tinyConfig({ maxPositions: 512 });
const lora = loraSpec({ rank: 2, alpha: 4 }, config);
const parameters = randomParameters(config, 1);
const runtime = await createOrtRuntime({ threads: 1 });
const SCALE = 1 / 64;
/** With these the first moment after an update is the gradient, and no weight moves. */
const reveal: AdamWSettings = { learningRate: 0, beta1: 0, beta2: 0, epsilon: 1e-8, weightDecay: 0, maxGradNorm: 0 };
const step: AdamWSettings = { ...reveal, learningRate: 1e-2, beta1: 0.9, beta2: 0.99, maxGradNorm: 1 };

function createTrainer(overrides: Partial<TrainerOptions> = {}): Trainer {
  const common = { config, lora, parameters, baked: parameters, runtime, microbatchTokens: 2048 };
  return new Trainer({ ...common, trained: randomAdapter(config, lora, 2), ...overrides });
}

/** Ratios from about 1/4 to 4, a reference near the policy; two of three trajectories are two sequences. */
const sequences = [60, 33, 100, 23, 41].map((length, i): TrainingSequence => {
  const rng = createRng('policy-losses', i);
  const perAction = (value: () => number, otherwise: number): number[] =>
    Array.from({ length }, (_, t) => (t > 1 && t % 5 !== 0 ? value() : otherwise));
  return {
    tokenIds: randomIds(length, config.vocabSize, 'policy-losses', i),
    actionMask: perAction(() => 1, 0),
    samplingLogprobs: perAction(() => -4 + 0.7 * rng.normal(), 0),
    advantages: perAction(() => rng.normal(), 0),
    temperatures: perAction(() => 0.5 + rng.uniform(), 1),
    referenceLogprobs: perAction(() => -4 + 0.5 * rng.normal(), 0),
    sequenceLogRatio: [0.1, 0.1, -0.3, 0.02, 0.02][i]!,
  };
});

/** With clip bounds that some ratios are beyond. */
function lossOf(name: string, extra: object = {}): LossSpec {
  return { name, ...(name === 'importanceSampling' ? {} : { clipLow: 0.2, clipHigh: 0.3 }), ...extra } as LossSpec;
}

const gradientOf = (trainer: Trainer): Float32Array => {
  trainer.update(reveal);
  return Float32Array.from([...trainer.optimizer.moments.values()].flatMap(({ first }) => [...first]));
};

async function passOf(trainer: Trainer, data: readonly TrainingSequence[], loss: LossSpec) {
  const stats = await trainer.forwardBackward(data, loss, SCALE);
  return { stats, gradient: gradientOf(trainer) };
}

describe.each(policyLossNames)('%s', (name) => {
  const all = lossOf(name, { entropyBonus: 0.1, klWeight: 0.2 });

  test('whole graph, layers computed again and layers kept agree; so do microbatches and several calls', async () => {
    const whole = await passOf(createTrainer({ activationRecomputation: 'never' }), sequences, all);
    const ways: readonly Partial<TrainerOptions>[] = [
      { activationRecomputation: 'always' },
      { activationRecomputation: 'auto', activationBytes: 3e6 },
      { activationRecomputation: 'never', microbatchTokens: 128 },
    ];
    for (const way of ways) {
      const other = await passOf(createTrainer(way), sequences, all);
      expect(other.stats.trainingLogprobs).toEqual(whole.stats.trainingLogprobs);
      expectClose([other.stats.loss], [whole.stats.loss], tolerances.logits);
      expectClose(other.gradient, whole.gradient, tolerances.gradients);
    }
    const trainer = createTrainer();
    for (const one of sequences) await trainer.forwardBackward([one], all, SCALE);
    expectClose(gradientOf(trainer), whole.gradient, tolerances.gradients, 'call by call');
    expect(Math.max(...whole.gradient.map(Math.abs))).toBeGreaterThan(1e-3);
  });

  test('a KL term of weight 0, or none, is no term: the same bits as without a reference', async () => {
    const without = sequences.map(({ referenceLogprobs: _, ...rest }) => rest);
    const plain = await passOf(createTrainer(), without, lossOf(name));
    const zero = await passOf(createTrainer(), sequences, lossOf(name, { klWeight: 0, entropyBonus: 0 }));
    expect(zero.stats).toEqual(plain.stats);
    expectSameBits(zero.gradient, plain.gradient);
    const weighed = await passOf(createTrainer(), sequences, lossOf(name, { klWeight: 0.2 }));
    expect(weighed.gradient).not.toEqual(plain.gradient);
  });

  test('at equal policy the gradient is that of REINFORCE, bit for bit that of every other loss', async () => {
    const trainer = createTrainer();
    const sampling = await trainer.score(sequences);
    const fresh = sequences.map((one, i) => ({ ...one, samplingLogprobs: sampling[i]!, sequenceLogRatio: 0 }));
    // Bounds around 1 for CISPO too.
    const around = name === 'cispo' ? { clipLow: 0.8, clipHigh: 1.2 } : {};
    const { gradient } = await passOf(trainer, fresh, lossOf(name, around));
    const ppo = await passOf(trainer, fresh, lossOf('ppo'));
    expectSameBits(gradient, ppo.gradient);
    const weighted = fresh.map((one) => ({ ...one, tokenWeights: one.advantages }));
    const reinforce = await passOf(trainer, weighted, { name: 'crossEntropy' });
    expectClose(gradient, reinforce.gradient, tolerances.gradients);
  });
});

test('the KL term adds weight × k3 of the tokens, and pulls the policy to the reference', async () => {
  const trainer = createTrainer();
  const still = sequences.map((one) => ({ ...one, advantages: one.advantages.map(() => 0) }));
  const { loss, trainingLogprobs } = await trainer.forwardBackward(still, lossOf('ppo', { klWeight: 0.2 }), SCALE);
  const k3 = sequences.flatMap(({ actionMask, referenceLogprobs }, i) =>
    actionMask.map((action, t) => {
      const x = referenceLogprobs![t]! - trainingLogprobs[i]![t]!;
      return action === 1 ? Math.exp(x) - x - 1 : 0;
    }),
  );
  expectClose([loss], [0.2 * SCALE * k3.reduce((sum, value) => sum + value, 0)], tolerances.logits);
  trainer.update(step);
  const after = await trainer.forwardBackward(still, lossOf('ppo', { klWeight: 0.2 }), SCALE);
  expect(after.loss).toBeLessThan(loss);
});

describe.each([
  ['as one graph', { activationRecomputation: 'never' }],
  ['layer by layer, fed weights', { activationRecomputation: 'always', baked: new Map() }],
] as const)('scoring %s', (_name, options) => {
  test('gives the bits of training, under other weights those of a trainer that has them', async () => {
    const trainer = createTrainer(options);
    const { trainingLogprobs } = await trainer.forwardBackward(sequences, lossOf('ppo'), SCALE);
    expect(await trainer.score(sequences)).toEqual(trainingLogprobs);
    const weights = randomAdapter(config, lora, 7);
    const other = createTrainer({ ...options, trained: weights });
    const expected = await other.score(sequences);
    expect(expected).not.toEqual(trainingLogprobs);
    expect(await trainer.score(sequences, weights)).toEqual(expected);
    expect(await trainer.score(sequences)).toEqual(trainingLogprobs);
  });

  test('between a pass and its update changes no bit of either', async () => {
    const run = async (isScoring: boolean): Promise<Float32Array> => {
      const trainer = createTrainer(options);
      for (let i = 0; i < 2; i++) {
        await trainer.forwardBackward(sequences.slice(0, 3), lossOf('gspo'), SCALE);
        if (isScoring) await trainer.score(sequences, randomAdapter(config, lora, 8));
        await trainer.forwardBackward(sequences.slice(3), lossOf('gspo'), SCALE);
        trainer.update(step);
      }
      return Float32Array.from([...trainer.trained.values()].flatMap(({ data }) => [...data]));
    };
    expectSameBits(await run(true), await run(false));
  });
});
