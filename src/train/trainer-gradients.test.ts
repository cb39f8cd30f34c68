/** The whole training graph against central differences, in float64. Tensors are checked along a random direction and at places. */
import { expect, test } from 'vitest';
import { randomAdapter, randomIds, randomParameters, tinyConfig } from '../../test/tiny-model.ts';
import { createRng } from '../core/rng.ts';
import type { DecoderConfig } from '../formats/hf-config.ts';
import { makeGraph } from '../graph/builder.ts';
import { type Feeds, type HostTensor, hostIds, hostTensor } from '../graph/runtime.ts';
import { createReferenceRuntime } from '../graph/runtime-reference.ts';
import { type LoraSpec, loraSpec } from '../nn/lora.ts';
import type { Parameter } from '../nn/parameters.ts';
import { createRopeFeeds } from '../nn/rope-table.ts';
import type { LossKind } from './loss-graph.ts';
import { trainingGraph } from './trainer.ts';

const runtime = createReferenceRuntime();
const BATCH = 2;
const TIME = 4;
/** Step of the central difference; its error is about h² = 1e-10 of third derivatives, beside 1e-16 / h of rounding. */
const STEP = 1e-5;
const MAX_ERROR = 1e-6;

const column = (values: readonly number[]): HostTensor => hostTensor(Float64Array.from(values), [values.length, 1]);

/** Two sequences of four tokens, five weighted actions and one whose weight is 0. */
function inputFeeds(config: DecoderConfig): Record<string, HostTensor> {
  const group = config.heads / config.kvHeads;
  const mask = new Float32Array(BATCH * group * TIME * TIME);
  for (let i = 0; i < mask.length; i++) mask[i] = i % TIME <= Math.floor(i / TIME) % TIME ? 0 : -1e30;
  const tokenIds = randomIds(BATCH * TIME, config.vocabSize, 'gradients');
  const rows = [0, 1, 2, 4, 5, 6];
  return {
    tokenIds: hostIds(tokenIds, [BATCH, TIME]),
    positions: hostIds([0, 1, 2, 3, 0, 1, 2, 3], [BATCH, TIME]),
    mask: hostTensor(mask, [BATCH, 1, group * TIME, TIME]),
    ...createRopeFeeds(config, TIME),
    logitRows: hostIds(rows),
    targets: hostIds(
      rows.map((row) => tokenIds[row + 1]!),
      [rows.length, 1],
    ),
    inverseTemperatures: column([1, 2, 0.5, 1, 1.25, 1]),
    actions: column([1, 1, 1, 1, 1, 0]),
    weights: column([0.2, 0.3, 0.1, 0.4, 0.25, 0]),
  };
}

async function setUp(config: DecoderConfig, lora: LoraSpec | null, trained: readonly string[], loss: LossKind) {
  const graph = trainingGraph(config, lora, loss, trained);
  const whole = await runtime.compile(graph);
  const forward = await runtime.compile(makeGraph({ loss: graph.outputs.loss! }));
  const known = new Set(makeGraph({ loss: graph.outputs.loss! }).inputs.map(({ name }) => name));
  const lossOf = async (feeds: Feeds): Promise<number> => {
    const used = Object.fromEntries(Object.entries(feeds).filter(([name]) => known.has(name)));
    return Number((await forward.run(used)).loss!.data[0]);
  };
  return { whole, lossOf };
}

/** Sampling logprobs that put the ratios inside the clip range, far above and far below it, away from its kinks. */
async function policyFeeds(config: DecoderConfig, lora: LoraSpec | null, feeds: Feeds, loss: LossKind): Promise<Feeds> {
  const graph = trainingGraph(config, lora, 'logprobs', []);
  const names = new Set(graph.inputs.map(({ name }) => name!));
  const executable = await runtime.compile(graph);
  const { logprobs } = await executable.run(
    Object.fromEntries(Object.entries(feeds).filter(([name]) => names.has(name))),
  );
  const logRatios = [0.05, -0.05, 1, -1, 1, 0];
  const shifted = (by: readonly number[]): HostTensor =>
    column(by.map((value, i) => Number(logprobs!.data[i]) + value));
  const all: Feeds = {
    samplingLogprobs: shifted(logRatios.map((logRatio) => -logRatio)),
    referenceLogprobs: shifted([0.5, -0.5, 0, 1, -1, 2]),
    advantages: column([1, -2, 1, 1, -1, 3]),
    clipLow: hostTensor(Float64Array.of(0.2), []),
    clipHigh: hostTensor(Float64Array.of(0.2), []),
    entropyBonus: hostTensor(Float64Array.of(0.3), []),
    klWeight: hostTensor(Float64Array.of(0.7), []),
  };
  const known = new Set(trainingGraph(config, lora, loss, []).inputs.map(({ name }) => name));
  return Object.fromEntries(Object.entries(all).filter(([name]) => known.has(name)));
}

async function expectGradients(
  config: DecoderConfig,
  lora: LoraSpec | null,
  weights: ReadonlyMap<string, Parameter>,
  trained: readonly string[],
  loss: LossKind,
): Promise<void> {
  const { whole, lossOf } = await setUp(config, lora, trained, loss);
  const feeds: Record<string, HostTensor> = inputFeeds(config);
  for (const [name, { data, shape }] of weights) feeds[name] = hostTensor(Float64Array.from(data), shape);
  Object.assign(feeds, await policyFeeds(config, lora, feeds, loss));
  const results = await whole.run(feeds);
  const numeric = async (name: string, direction: (i: number) => number): Promise<number> => {
    const { data, shape } = feeds[name]!;
    const moved = (step: number): Feeds => {
      const values = Float64Array.from(data as Float64Array, (value, i) => value + step * direction(i));
      return { ...feeds, [name]: hostTensor(values, shape) };
    };
    return ((await lossOf(moved(STEP))) - (await lossOf(moved(-STEP)))) / (2 * STEP);
  };
  for (const name of trained) {
    const analytic = results[`gradient/${name}`]!.data as Float64Array;
    const rng = createRng('gradient-check', name);
    const signs = Array.from(analytic, () => (rng.uniform() < 0.5 ? -1 : 1));
    const along = analytic.reduce((sum, value, i) => sum + value * signs[i]!, 0);
    const norm = Math.sqrt(analytic.reduce((sum, value) => sum + value * value, 0));
    expect(norm, `${name}: gradient`).toBeGreaterThan(1e-4);
    const error = Math.abs((await numeric(name, (i) => signs[i]!)) - along);
    expect(error, `${name} along a direction`).toBeLessThan(MAX_ERROR * Math.max(1, norm));
    // The largest component, and one by chance.
    const largest = analytic.reduce((best, value, i) => (Math.abs(value) > Math.abs(analytic[best]!) ? i : best), 0);
    for (const place of [largest, rng.integer(analytic.length)]) {
      const got = await numeric(name, (i) => (i === place ? 1 : 0));
      expect(Math.abs(got - analytic[place]!), `${name} at ${place}`).toBeLessThan(MAX_ERROR * Math.max(1, norm));
    }
  }
}

test('PPO with entropy bonus: gradients of every LoRA tensor', async () => {
  const config = tinyConfig({ hasAttentionBias: true, vocabSize: 24 });
  const lora = loraSpec({ rank: 2, alpha: 3 }, config);
  const adapter = randomAdapter(config, lora, 1);
  const weights = new Map([...randomParameters(config, 1), ...adapter]);
  expect(adapter.size).toBe(2 * 7 * 2);
  await expectGradients(config, lora, weights, [...adapter.keys()], 'ppo+entropyBonus');
});

test('importance sampling with a KL term: gradients of LoRA tensors before and after attention', async () => {
  const config = tinyConfig({ vocabSize: 24 });
  const lora = loraSpec({ rank: 2, alpha: 3 }, config);
  const adapter = randomAdapter(config, lora, 3);
  const weights = new Map([...randomParameters(config, 3), ...adapter]);
  const trained = [...adapter.keys()].filter((name) => /layers.0.*(k_proj|down_proj)/.test(name));
  expect(trained).toHaveLength(4);
  await expectGradients(config, lora, weights, trained, 'importanceSampling+klWeight');
});

test.each([
  ['PPO, untied, attention bias', 'ppo', { isEmbeddingTied: false, hasAttentionBias: true }],
  ['cross-entropy, tied', 'crossEntropy', {}],
] as const)('%s: gradients of every parameter', async (_name, loss, overrides) => {
  const config = tinyConfig({ vocabSize: 24, ...overrides });
  const parameters = randomParameters(config, 2);
  await expectGradients(config, null, parameters, [...parameters.keys()], loss);
});
