/** Passes layer by layer: the logprobs of a whole graph bit for bit, its gradients up to rounding, and every shared prefix once. */
import { describe, expect, test } from 'vitest';
import { randomAdapter, randomIds, randomParameters, tinyConfig } from '../../test/tiny-model.ts';
import { expectClose, expectSameBits, tolerances } from '../../test/tolerance.ts';
import { createRng } from '../core/rng.ts';
import type { DecoderConfig } from '../formats/hf-config.ts';
import type { Runtime } from '../graph/runtime.ts';
import { createOrtRuntime } from '../graph/runtime-ort.ts';
import { loraSpec } from '../nn/lora.ts';
import type { TrainingSequence } from './microbatch.ts';
import type { AdamWSettings } from './optimizer.ts';
import { planUnits, wholeValues } from './plan.ts';
import { type LossSpec, Trainer, type TrainerOptions } from './trainer.ts';

const runtime = await createOrtRuntime({ threads: 1 });
const ppo: LossSpec = { name: 'ppo', clipLow: 0.2, clipHigh: 0.2, entropyBonus: 0.1 };
/** With these the first moment after an update is the gradient, and no weight moves. */
const reveal: AdamWSettings = { learningRate: 0, beta1: 0, beta2: 0, epsilon: 1e-8, weightDecay: 0, maxGradNorm: 0 };

type Overrides = Partial<TrainerOptions> & { readonly isFull?: boolean };

function createTrainer(config: DecoderConfig, { isFull = false, ...overrides }: Overrides): Trainer {
  const lora = loraSpec({ rank: 2, alpha: 4 }, config);
  const parameters = randomParameters(config, 1);
  const trained = isFull ? parameters : randomAdapter(config, lora, 2);
  const baked = isFull ? new Map() : parameters;
  const common = { config, lora: isFull ? null : lora, parameters, trained, baked, runtime, microbatchTokens: 2048 };
  return new Trainer({ ...common, ...overrides });
}

/** `prefix` and then random tokens up to `length`; actions from `actionsFrom` on, with gaps. */
function sequence(config: DecoderConfig, prefix: readonly number[], length: number, seed: number): TrainingSequence {
  const rng = createRng('layered', seed);
  const isAction = (t: number): boolean => t >= Math.max(1, prefix.length) && t % 5 !== 0;
  const perAction = (value: () => number, otherwise: number): number[] =>
    Array.from({ length }, (_, t) => (isAction(t) ? value() : otherwise));
  return {
    tokenIds: [...prefix, ...randomIds(length - prefix.length, config.vocabSize, 'layered', seed)],
    actionMask: perAction(() => 1, 0),
    samplingLogprobs: perAction(() => -4 + rng.normal(), 0),
    advantages: perAction(() => rng.normal(), 0),
    temperatures: perAction(() => 0.5 + rng.uniform(), 1),
  };
}

async function passOf(trainer: Trainer, data: readonly TrainingSequence[]) {
  const stats = await trainer.forwardBackward(data, ppo, 1 / 64);
  trainer.update(reveal);
  const gradients = [...trainer.optimizer.moments.values()].flatMap(({ first }) => [...first]);
  return { stats, gradients: Float32Array.from(gradients) };
}

/** Groups of sequences that share a prompt, a prompt that is another's start, one alone, and the same sequence twice. */
function groups(config: DecoderConfig): TrainingSequence[] {
  const prompt = randomIds(150, config.vocabSize, 'prompt');
  const branch = [...prompt.slice(0, 70), ...randomIds(20, config.vocabSize, 'branch')];
  const twice = sequence(config, [], 40, 9);
  return [
    sequence(config, prompt, 163, 1),
    twice,
    sequence(config, branch, 131, 2),
    sequence(config, prompt, 300, 3),
    sequence(config, prompt.slice(0, 5), 33, 4),
    sequence(config, prompt, 151, 5),
    sequence(config, branch, 97, 6),
    twice,
  ];
}

const gemmaLike: Partial<DecoderConfig> = {
  ...{ layers: 3, slidingWindow: 24, slidingLayers: [0, 2], localRopeTheta: 500, activation: 'geluTanh' },
  ...{ normOffset: 1, embeddingScale: 2, hasPostNorms: true, logitSoftcap: 20 },
};

const configs: readonly (readonly [string, Overrides, Partial<DecoderConfig>])[] = [
  ['LoRA', {}, {}],
  ['LoRA with fed weights', { baked: new Map() }, {}],
  ['LoRA with sliding layers', {}, { layers: 3, slidingWindow: 24, slidingLayers: [0, 2] }],
  ['LoRA on what Gemma adds', { baked: new Map() }, gemmaLike],
  ['LoRA on fused projections', {}, { hasFusedProjections: true, hasQkNorm: false, rotarySize: 8 }],
  ['every parameter, tied', { isFull: true }, {}],
  ['every parameter, untied', { isFull: true }, { isEmbeddingTied: false, hasAttentionBias: true }],
];

describe.each(configs)('%s', (_name, overrides, sizes) => {
  const config = tinyConfig({ maxPositions: 512, ...sizes });
  const data = groups(config);
  // The tiny model computes as one graph only where it is told so, because the groups share prompts.
  const whole = passOf(createTrainer(config, { ...overrides, activationRecomputation: 'never' }), data);

  test.each([
    ['computing activations again', 'always'],
    ['keeping results of products', 'auto'],
  ] as const)('%s gives the pass of the whole graph', async (_mode, activationRecomputation) => {
    const expected = await whole;
    const { stats, gradients } = await passOf(createTrainer(config, { ...overrides, activationRecomputation }), data);
    expect(stats.trainingLogprobs).toEqual(expected.stats.trainingLogprobs);
    expectClose(gradients, expected.gradients, tolerances.gradients, 'gradients');
    expectClose([stats.loss, stats.entropy], [expected.stats.loss, expected.stats.entropy], tolerances.logits);
    const { tokens, actionTokens } = expected.stats;
    expect(stats).toMatchObject({ tokens, actionTokens, paddingTokens: 0 });
    // 5 common tokens are too few for a span; the prompt once, its branch from token 70, the pair once.
    expect(stats.computedTokens).toBe(150 + 13 + 150 + 1 + (131 - 70) + (97 - 90) + 33 + 40);
    expect(Math.max(...gradients.map(Math.abs))).toBeGreaterThan(0.01);
  });

  test('scores a sequence as the whole graph does', async () => {
    const { tokenIds } = data[3]!;
    const [expected, got] = await Promise.all(
      (['never', 'always'] as const).map((activationRecomputation) =>
        createTrainer(config, { ...overrides, activationRecomputation }).logprobs(tokenIds, 0.7),
      ),
    );
    expect(got).toEqual(expected);
  });
});

test('microbatches, order and repetition change no logprob; repetition changes no bit of a gradient', async () => {
  const config = tinyConfig({ maxPositions: 512 });
  const data = groups(config);
  const trainer = createTrainer(config, { activationRecomputation: 'always' });
  const first = await passOf(trainer, data);
  const second = await passOf(trainer, data);
  expectSameBits(second.gradients, first.gradients);
  const backwards = await passOf(trainer, data.toReversed());
  expect(backwards.stats.trainingLogprobs.toReversed()).toEqual(first.stats.trainingLogprobs);
  expectClose(backwards.gradients, first.gradients, tolerances.gradients);
});

test('long sequences, in several pieces and more than one chunk of rows, equal the whole graph', async () => {
  const config = tinyConfig({ maxPositions: 1024 });
  const data = [
    sequence(config, randomIds(300, config.vocabSize, 'long'), 1000, 1),
    sequence(config, randomIds(20, config.vocabSize, 'short'), 200, 2),
  ];
  const whole = await passOf(createTrainer(config, { activationRecomputation: 'never' }), data);
  const layered = await passOf(createTrainer(config, { activationRecomputation: 'always' }), data);
  expect(layered.stats.computedTokens).toBe(1200);
  expect(layered.stats.trainingLogprobs).toEqual(whole.stats.trainingLogprobs);
  expectClose(layered.gradients, whole.gradients, tolerances.gradients);
});

test('a batch that takes more memory than it may goes layer by layer', async () => {
  const config = tinyConfig();
  const data = [sequence(config, [], 100, 1), sequence(config, [], 60, 2)];
  const roomy = await passOf(createTrainer(config, {}), data);
  const tight = await passOf(createTrainer(config, { activationBytes: 1e5 }), data);
  expect(roomy.stats.paddingTokens).toBeGreaterThan(0);
  expect(tight.stats).toMatchObject({ paddingTokens: 0, computedTokens: 160 });
  expect(tight.stats.trainingLogprobs).toEqual(roomy.stats.trainingLogprobs);
});

test('as one graph microbatches are as large as memory allows, and change no logprob', async () => {
  const config = tinyConfig();
  const data = [1, 2, 3, 4, 5, 6, 7, 8].map((seed) => sequence(config, [], 100 + seed, seed));
  const roomy = await passOf(createTrainer(config, {}), data);
  const activationBytes = 4 * wholeValues(config, 128) * 400;
  const units = planUnits(data, { config, microbatchTokens: 2048, activationRecomputation: 'auto', activationBytes });
  expect(units.map((unit) => unit.kind === 'whole' && unit.microbatch.rows)).toEqual([3, 3, 2]);
  const tight = await passOf(createTrainer(config, { activationBytes }), data);
  expect(tight.stats.trainingLogprobs).toEqual(roomy.stats.trainingLogprobs);
  expectClose(tight.gradients, roomy.gradients, tolerances.gradients);
});

test('one graph gives the same bits after a batch went layer by layer', async () => {
  const config = tinyConfig();
  const shared = [1, 2, 3, 4].map((seed) => sequence(config, randomIds(50, config.vocabSize, 'shared'), 60, seed));
  const alone = [sequence(config, [], 40, 5)];
  const trainer = createTrainer(config, {});
  const first = await passOf(trainer, alone);
  expect((await passOf(trainer, shared)).stats).toMatchObject({ tokens: 240, computedTokens: 90 });
  const second = await passOf(trainer, alone);
  expect(second.stats).toEqual(first.stats);
  expectSameBits(second.gradients, first.gradients);
});

test('the head sees a few tokens at a time, so the logits of a large vocabulary never exist together', async () => {
  const config = tinyConfig({ maxPositions: 512, layers: 1, vocabSize: 60_000 });
  const rowsOfHead: number[] = [];
  const watched: Runtime = {
    compile: async (graph, options) => {
      const executable = await runtime.compile(graph, options);
      return {
        dispose: () => executable.dispose(),
        run: (feeds, fetches) => {
          if (feeds.targets) rowsOfHead.push(feeds.targets.shape[0]!);
          return executable.run(feeds, fetches);
        },
      };
    },
  };
  const data = [sequence(config, [], 290, 1)];
  const whole = await passOf(createTrainer(config, { activationRecomputation: 'never' }), data);
  const layered = await passOf(createTrainer(config, { activationRecomputation: 'always', runtime: watched }), data);
  expect(rowsOfHead).toEqual([208, whole.stats.actionTokens - 208]);
  expect(layered.stats.trainingLogprobs).toEqual(whole.stats.trainingLogprobs);
  expectClose(layered.gradients, whole.gradients, tolerances.gradients);
});

test('a group with a shared prompt is not cut into two microbatches while it fits one', async () => {
  const config = tinyConfig({ maxPositions: 512 });
  const prompts = [1, 2].map((seed) => randomIds(50, config.vocabSize, 'boundary', seed));
  const data = prompts.flatMap((prompt) => [1, 2, 3, 4, 5].map((seed) => sequence(config, prompt, 90, seed)));
  // At most 4 × 100 tokens go together, and each group has 50 + 5 · 40 of its own.
  const { stats } = await passOf(createTrainer(config, { microbatchTokens: 100 }), data);
  expect(stats).toMatchObject({ tokens: 900, computedTokens: 500 });
});
