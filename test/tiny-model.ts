/** Seeded tiny decoders for tests: weights large enough that every tensor matters to the outputs. */
import { createRng } from '../src/core/rng.ts';
import { type DecoderConfig, plainDecoder } from '../src/formats/hf-config.ts';
import { type LoraSpec, loraShapes } from '../src/nn/lora.ts';
import { type Parameter, parameterShapes } from '../src/nn/parameters.ts';

/** 2 layers, width 32, vocabulary 64; two kv heads of 16 for four query heads. */
export function tinyConfig(overrides: Partial<DecoderConfig> = {}): DecoderConfig {
  return {
    ...plainDecoder,
    modelType: 'qwen3',
    vocabSize: 64,
    width: 32,
    layers: 2,
    heads: 4,
    kvHeads: 2,
    headSize: 16,
    ffWidth: 48,
    ropeTheta: 10_000,
    normEpsilon: 1e-6,
    maxPositions: 160,
    isEmbeddingTied: true,
    hasQkNorm: true,
    eosTokenId: [],
    bosTokenId: null,
    padTokenId: null,
    ...overrides,
  };
}

/** Matrices of deviation 1/√in, norms around 1, biases of deviation 0.3. */
export function randomParameters(config: DecoderConfig, seed: number): Map<string, Parameter> {
  const parameters = new Map<string, Parameter>();
  for (const [name, shape] of parameterShapes(config)) {
    const isNorm = name.includes('norm');
    const deviation = isNorm ? 0.2 : shape.length === 1 ? 0.3 : 1 / Math.sqrt(shape[1]!);
    parameters.set(name, randomParameter(shape, isNorm ? 1 : 0, deviation, seed, name));
  }
  return parameters;
}

/** An adapter as after training: both matrices are random. */
export function randomAdapter(config: DecoderConfig, spec: LoraSpec, seed: number): Map<string, Parameter> {
  const adapter = new Map<string, Parameter>();
  for (const [name, shape] of loraShapes(config, spec)) {
    adapter.set(name, randomParameter(shape, 0, name.includes('lora_A') ? 1 / Math.sqrt(shape[1]!) : 0.2, seed, name));
  }
  return adapter;
}

function randomParameter(
  shape: readonly number[],
  mean: number,
  deviation: number,
  seed: number,
  name: string,
): Parameter {
  const rng = createRng('tiny-model', seed, name);
  const count = shape.reduce((product, size) => product * size, 1);
  return { shape, data: Float32Array.from({ length: count }, () => mean + deviation * rng.normal()) };
}

export function randomIds(count: number, vocabSize: number, ...seed: readonly (string | number)[]): number[] {
  const rng = createRng('ids', ...seed);
  return Array.from({ length: count }, () => rng.integer(vocabSize));
}

/** The values of a graph's weights, in the shape that runtimes are fed. */
export function weightFeeds(
  ...maps: readonly ReadonlyMap<string, Parameter>[]
): Record<string, { readonly dtype: 'float32'; readonly shape: readonly number[]; readonly data: Float32Array }> {
  const entries = maps.flatMap((map) => [...map]);
  return Object.fromEntries(entries.map(([name, { shape, data }]) => [name, { dtype: 'float32', shape, data }]));
}
