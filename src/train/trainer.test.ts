/** The trainer on ONNX Runtime: what batches, packing and order may change (nothing, or the last bits of gradients). */
import { expect, test } from 'vitest';
import { randomAdapter, randomIds, randomParameters, tinyConfig } from '../../test/tiny-model.ts';
import { expectClose, expectSameBits, tolerances } from '../../test/tolerance.ts';
import { ConfigError, DataError, EngineError } from '../core/errors.ts';
import { createRng } from '../core/rng.ts';
import type { Runtime } from '../graph/runtime.ts';
import { createOrtRuntime } from '../graph/runtime-ort.ts';
import { createReferenceRuntime } from '../graph/runtime-reference.ts';
import { loraSpec } from '../nn/lora.ts';
import type { TrainingSequence } from './microbatch.ts';
import type { AdamWSettings } from './optimizer.ts';
import { type LossSpec, Trainer } from './trainer.ts';

const config = tinyConfig();
const lora = loraSpec({ rank: 2, alpha: 4 }, config);
const parameters = randomParameters(config, 1);
const ort = await createOrtRuntime({ threads: 1 });
const cispo: LossSpec = { name: 'cispo', clipLow: 0, clipHigh: 5 };
const ppo: LossSpec = { name: 'ppo', clipLow: 0.2, clipHigh: 0.2, entropyBonus: 0.1 };

/** With these the first moment after an update is the gradient, and no weight moves. */
const reveal: AdamWSettings = {
  learningRate: 0,
  beta1: 0,
  beta2: 0,
  epsilon: 1e-8,
  weightDecay: 0,
  maxGradNorm: 0,
};
const adam: AdamWSettings = { ...reveal, learningRate: 1e-2, beta1: 0.9, beta2: 0.99, maxGradNorm: 1 };

function createTrainer(options: { runtime?: Runtime; microbatchTokens?: number } = {}): Trainer {
  const { runtime = ort, microbatchTokens = 2048 } = options;
  const trained = randomAdapter(config, lora, 2);
  return new Trainer({ config, lora, parameters, trained, baked: parameters, runtime, microbatchTokens });
}

/** Actions in two turns; the last tokens are none. */
function sequence(length: number, seed: number): TrainingSequence {
  const rng = createRng('sequence', seed);
  const isAction = (t: number): boolean => t > 1 && t < length - 3 && t % 5 !== 0;
  const perAction = (value: () => number, otherwise: number): number[] =>
    Array.from({ length }, (_, t) => (isAction(t) ? value() : otherwise));
  return {
    tokenIds: randomIds(length, config.vocabSize, 'trainer', seed),
    actionMask: perAction(() => 1, 0),
    samplingLogprobs: perAction(() => -4 + rng.normal(), 0),
    advantages: perAction(() => rng.normal(), 0),
    temperatures: perAction(() => 0.5 + rng.uniform(), 1),
  };
}

const sequences = [9, 37, 60, 12, 100, 23, 8, 41].map((length, i) => sequence(length, i));
const trainer = createTrainer();

async function gradientsOf(
  from: Trainer,
  data: readonly TrainingSequence[],
  loss: LossSpec = cispo,
  scale = 1 / 64,
): Promise<ReadonlyMap<string, Float32Array>> {
  await from.forwardBackward(data, loss, scale);
  from.update(reveal);
  return firstMoments(from);
}

function firstMoments(from: Trainer): ReadonlyMap<string, Float32Array> {
  return new Map([...from.optimizer.moments].map(([name, { first }]) => [name, first.slice()]));
}

const flat = (map: ReadonlyMap<string, Float32Array>): Float32Array =>
  Float32Array.from([...map.values()].flatMap((values) => [...values]));

test('logprobs of a packed sequence are those of the sequence alone, bit for bit', async () => {
  const packed = await trainer.forwardBackward(sequences, cispo, 1);
  expect(packed.packedRows).toBeLessThan(sequences.length);
  for (const [i, one] of sequences.entries()) {
    const alone = await trainer.forwardBackward([one], cispo, 1);
    expect(packed.trainingLogprobs[i], `sequence ${i}`).toEqual(alone.trainingLogprobs[0]);
  }
  trainer.update(reveal);
});

test('logprobs() scores every token as forwardBackward does, bit for bit', async () => {
  const tokenIds = randomIds(50, config.vocabSize, 'logprobs');
  const ones = tokenIds.map((_, t) => (t === 0 ? 0 : 1));
  const data = {
    tokenIds,
    actionMask: ones,
    samplingLogprobs: ones,
    advantages: ones,
    temperatures: tokenIds.map(() => 0.7),
  };
  const { trainingLogprobs } = await trainer.forwardBackward([data], { name: 'crossEntropy' }, 1);
  expect(await trainer.logprobs(tokenIds, 0.7)).toEqual(trainingLogprobs[0]);
  trainer.update(reveal);
});

test('loss, entropy, logprobs and gradients equal the float64 reference', async () => {
  const data = [sequences[0]!, sequences[3]!]; // PPO reaches everything; what CISPO adds is checked below
  const both = [createTrainer({ runtime: createReferenceRuntime() }), trainer].map(async (each) => {
    const stats = await each.forwardBackward(data, ppo, 1 / 8);
    each.update(reveal);
    return { stats, gradients: flat(firstMoments(each)) };
  });
  const [expected, got] = await Promise.all(both);
  const { loss, entropy, trainingLogprobs } = expected!.stats;
  expectClose(got!.stats.trainingLogprobs.flat(), trainingLogprobs.flat(), tolerances.logits, 'logprobs');
  expectClose([got!.stats.loss, got!.stats.entropy], [loss, entropy], tolerances.logits, 'loss and entropy');
  expectClose(got!.gradients, expected!.gradients, tolerances.gradients, 'gradients');
});

test('loss, entropy and counts are those of the action tokens', async () => {
  const one = { ...sequences[0]!, actionMask: [0, 0, 0, 0, 1, 0, 0, 0, 0] };
  const stats = await trainer.forwardBackward([one], { name: 'crossEntropy' }, 0.5);
  trainer.update(reveal);
  expect(stats).toMatchObject({ actionTokens: 1, tokens: 9, paddingTokens: 119, packedRows: 1 });
  const all_V: number[] = [];
  for (let id = 0; id < config.vocabSize; id++) {
    const logprobs = await trainer.logprobs([...one.tokenIds.slice(0, 4), id], one.temperatures[4]!);
    all_V.push(logprobs[4]!);
  }
  const entropy = all_V.reduce((sum, logprob) => sum - Math.exp(logprob) * logprob, 0);
  expectClose([stats.entropy], [entropy], tolerances.logits);
  expect(stats.trainingLogprobs[0]).toEqual([0, 0, 0, 0, all_V[one.tokenIds[4]!], 0, 0, 0, 0]);
  expectClose([stats.loss], [-0.5 * all_V[one.tokenIds[4]!]!], tolerances.loss);
});

test('microbatches and several calls add up to the gradient of the whole batch', async () => {
  const whole = flat(await gradientsOf(trainer, sequences));
  const inParts = createTrainer({ microbatchTokens: 128 });
  const { packedRows } = await inParts.forwardBackward(sequences, cispo, 1 / 64);
  expect(packedRows).toBeGreaterThan(1);
  inParts.update(reveal);
  expectClose(flat(firstMoments(inParts)), whole, tolerances.gradients);
  for (const one of sequences.slice(0, -1)) await trainer.forwardBackward([one], cispo, 1 / 64);
  expectClose(flat(await gradientsOf(trainer, sequences.slice(-1))), whole, tolerances.gradients, 'eight calls');
  expect(Math.max(...whole.map(Math.abs))).toBeGreaterThan(0.01);
});

test('tokens after the last action change nothing, bit for bit', async () => {
  const changed = sequences.map((one) => {
    const last = one.actionMask.lastIndexOf(1);
    return { ...one, tokenIds: one.tokenIds.map((id, t) => (t > last ? (id + 7) % config.vocabSize : id)) };
  });
  expect(changed).not.toEqual(sequences);
  const before = await trainer.forwardBackward(sequences, ppo, 1);
  trainer.update(reveal);
  const after = await trainer.forwardBackward(changed, ppo, 1);
  trainer.update(reveal);
  expect(after).toEqual(before);
  const gradients = flat(await gradientsOf(trainer, sequences, ppo));
  expectSameBits(flat(await gradientsOf(trainer, changed, ppo)), gradients);
});

test('the order of the batch changes no logprob, and gradients in their last bits only', async () => {
  const order = [3, 7, 0, 5, 1, 6, 4, 2];
  const before = await trainer.forwardBackward(sequences, cispo, 1);
  trainer.update(reveal);
  const permuted = order.map((i) => sequences[i]!);
  const after = await trainer.forwardBackward(permuted, cispo, 1);
  trainer.update(reveal);
  expect(after.trainingLogprobs).toEqual(order.map((i) => before.trainingLogprobs[i]));
  expectClose([after.loss, after.entropy], [before.loss, before.entropy], tolerances.logits);
  const gradients = flat(await gradientsOf(trainer, sequences));
  expectClose(flat(await gradientsOf(trainer, permuted)), gradients, tolerances.gradients);
});

test('the entropy bonus lowers the loss by its share of the summed entropy', async () => {
  const scale = 1 / 64;
  const losses: number[] = [];
  for (const entropyBonus of [0, 0.25]) {
    const stats = await trainer.forwardBackward(sequences, { ...cispo, entropyBonus } as LossSpec, scale);
    trainer.update(reveal);
    losses.push(stats.loss + entropyBonus * scale * stats.entropy * stats.actionTokens);
  }
  expectClose([losses[1]!], [losses[0]!], { rtol: 1e-5, atol: 1e-5 });
});

test('scale multiplies loss and gradients', async () => {
  const single = await gradientsOf(trainer, sequences, cispo, 1 / 32);
  const double = flat(await gradientsOf(trainer, sequences, cispo, 1 / 16)); // powers of two round alike
  expectSameBits(
    double,
    flat(single).map((value) => 2 * value),
  );
});

test('a token weight multiplies what the token adds to loss and gradients', async () => {
  const weighted = (weight: number): TrainingSequence[] =>
    sequences.map((one) => ({ ...one, tokenWeights: one.tokenIds.map(() => weight) }));
  const doubled = flat(await gradientsOf(trainer, weighted(2), ppo));
  expectSameBits(doubled, flat(await gradientsOf(trainer, sequences, ppo, 1 / 32)));
  // Weight 0 takes a token out of the loss, but not out of the logprobs.
  const half = sequences.map((one) => ({ ...one, tokenWeights: one.tokenIds.map((_, t) => t % 2) }));
  const masked = sequences.map((one) => ({ ...one, actionMask: one.actionMask.map((action, t) => action * (t % 2)) }));
  const gradients = flat(await gradientsOf(trainer, half, cispo));
  expectClose(gradients, flat(await gradientsOf(trainer, masked, cispo)), tolerances.gradients);
});

test('CISPO has the gradient of cross-entropy weighted by clip(ρ) · A', async () => {
  const one = sequences[1]!;
  const place = one.actionMask.lastIndexOf(1);
  const only = { ...one, actionMask: one.actionMask.map((_, t) => (t === place ? 1 : 0)) };
  const { trainingLogprobs } = await trainer.forwardBackward([only], cispo, 1);
  trainer.update(reveal);
  const ratio = Math.exp(trainingLogprobs[0]![place]! - one.samplingLogprobs[place]!);
  for (const [clipLow, clipHigh, weight] of [
    [0, ratio * 2, ratio],
    [0, ratio / 2, ratio / 2],
    [ratio * 2, ratio * 3, ratio * 2],
  ] as const) {
    const gradients = flat(await gradientsOf(trainer, [only], { name: 'cispo', clipLow, clipHigh }, 1));
    const expected = flat(
      await gradientsOf(trainer, [only], { name: 'crossEntropy' }, weight * one.advantages[place]!),
    );
    expectClose(gradients, expected, { rtol: 1e-4, atol: 1e-7 });
  }
});

test('full-parameter training moves every parameter and learns a sequence by heart', async () => {
  const own = randomParameters(config, 4);
  const before = structuredClone(own);
  const options = { config, lora: null, parameters: own, trained: own, baked: new Map(), microbatchTokens: 128 };
  const full = new Trainer({ ...options, runtime: ort });
  const data = [sequences[2]!];
  const scale = 1 / data[0]!.actionMask.filter((action) => action === 1).length;
  const losses: number[] = [];
  for (let i = 0; i < 25; i++) {
    losses.push((await full.forwardBackward(data, { name: 'crossEntropy' }, scale)).loss);
    full.update(adam);
  }
  expect(losses[0]).toBeGreaterThan(3);
  expect(losses.at(-1)).toBeLessThan(0.2);
  for (const [name, { data: values }] of own) expect(values, name).not.toEqual(before.get(name)!.data);
});

test.each<[string, () => Promise<unknown>, new (message: string) => Error, string]>([
  [
    'no action tokens',
    () => trainer.forwardBackward([{ ...sequences[0]!, actionMask: new Array(9).fill(0) }], cispo, 1),
    DataError,
    'forwardBackward: at least one token must have actionMask 1, got none',
  ],
  ['no data', () => trainer.forwardBackward([], cispo, 1), DataError, 'must have actionMask 1, got none'],
  [
    'a bad id',
    () => trainer.forwardBackward([{ ...sequences[0]!, tokenIds: new Array(9).fill(64) }], cispo, 1),
    DataError,
    'datum 0: token ids must be below 64, got 64 at 0',
  ],
  ['a bad scale', () => trainer.forwardBackward(sequences, cispo, Number.NaN), ConfigError, 'scale must be finite'],
  [
    'a bad clip bound',
    () => trainer.forwardBackward(sequences, { ...ppo, clipHigh: Number.NaN } as LossSpec, 1),
    ConfigError,
    'loss: clipHigh must be finite, got NaN',
  ],
  [
    'a missing clip bound',
    () => trainer.forwardBackward(sequences, { name: 'ppo', clipLow: 0.2 } as unknown as LossSpec, 1),
    ConfigError,
    'loss: ppo needs clipHigh, got none',
  ],
  [
    'a setting of another loss',
    () => trainer.forwardBackward(sequences, { name: 'crossEntropy', klWeight: 1 } as unknown as LossSpec, 1),
    ConfigError,
    'loss: crossEntropy takes no settings, got klWeight',
  ],
  [
    'a KL term without reference',
    () => trainer.forwardBackward(sequences, { ...cispo, klWeight: 0.1 } as LossSpec, 1),
    DataError,
    'datum 0: cispo+klWeight needs referenceLogprobs, got none',
  ],
  [
    'GSPO without the ratio of a trajectory',
    () =>
      trainer.forwardBackward([{ ...sequences[0]!, sequenceLogRatio: 0 }, sequences[1]!], { ...ppo, name: 'gspo' }, 1),
    DataError,
    'datum 1: gspo+entropyBonus needs sequenceLogRatio, got none',
  ],
  [
    'an unknown loss',
    () => trainer.forwardBackward(sequences, { ...ppo, name: 'dpo' } as unknown as LossSpec, 1),
    ConfigError,
    "loss: name must be one of cispo, ppo, gspo, importanceSampling, crossEntropy, forwardKlTopK, reverseKlTopK, got 'dpo'",
  ],
])('refuses %s, and keeps what has accumulated', async (_name, call, type, message) => {
  const expected = flat(await gradientsOf(trainer, sequences));
  await trainer.forwardBackward(sequences, cispo, 1 / 64);
  await expect(call()).rejects.toThrow(type);
  await expect(call()).rejects.toThrow(message);
  trainer.update(reveal);
  expectSameBits(flat(firstMoments(trainer)), expected);
});

test('update needs gradients, and clears them', async () => {
  const own = createTrainer();
  expect(() => own.update(adam)).toThrow(ConfigError);
  expect(() => own.update(adam)).toThrow('update: must follow at least one forwardBackward, got none');
  await own.forwardBackward(sequences, cispo, 1);
  expect(own.update(adam)).toBeGreaterThan(0);
  expect(() => own.update(adam)).toThrow('update: must follow at least one forwardBackward, got none');
  await own.forwardBackward(sequences, cispo, 1);
  own.restoreOptimizer(own.optimizer);
  expect(() => own.update(adam)).toThrow('update: must follow at least one forwardBackward, got none');
});

test('a gradient that is not finite leaves weights and optimizer as they were, and the next batch trains', async () => {
  const own = createTrainer();
  await own.forwardBackward(sequences, cispo, 1 / 64);
  own.update(adam);
  const before = structuredClone({ trained: own.trained, optimizer: own.optimizer });
  // ρ = exp(−4 + 300) overflows float32, and PPO does not hold it back where the advantage is negative.
  const overflowing = sequences.map((one) => ({
    ...one,
    samplingLogprobs: one.samplingLogprobs.map((logprob) => logprob - 300),
    advantages: one.advantages.map(() => -1),
  }));
  await own.forwardBackward(overflowing, ppo, 1 / 64);
  expect(() => own.update(adam)).toThrow(EngineError);
  expect({ trained: own.trained, optimizer: own.optimizer }).toEqual(before);
  const twin = createTrainer();
  await twin.forwardBackward(sequences, cispo, 1 / 64);
  twin.update(adam);
  const norms: number[] = [];
  for (const each of [own, twin]) {
    await each.forwardBackward(sequences, cispo, 1 / 64);
    norms.push(each.update(adam));
  }
  expect(norms[0]).toBe(norms[1]);
  expect(own.trained).toEqual(twin.trained);
});

test('the gradients of a call that broke down half-way are not trained on', async () => {
  let runs = 0;
  const breaking: Runtime = {
    compile: async (graph, options) => {
      const { run, dispose } = await ort.compile(graph, options);
      const breakingRun: typeof run = (feeds) =>
        ++runs === 2 ? Promise.reject(new Error('out of memory')) : run(feeds);
      return { run: breakingRun, dispose };
    },
  };
  const own = createTrainer({ runtime: breaking, microbatchTokens: 128 });
  await expect(own.forwardBackward(sequences, cispo, 1)).rejects.toThrow('out of memory');
  expect(() => own.update(adam)).toThrow('update: must follow at least one forwardBackward, got none');
});
