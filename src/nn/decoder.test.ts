/** The decoder against a second implementation: plain float64 loops, written from the papers' formulas. */
import { describe, expect, test } from 'vitest';
import { randomAdapter, randomIds, randomParameters, tinyConfig, weightFeeds } from '../../test/tiny-model.ts';
import { expectClose, expectSameBits, tolerances } from '../../test/tolerance.ts';
import type { DecoderConfig } from '../formats/hf-config.ts';
import { input, makeGraph } from '../graph/builder.ts';
import { type Feeds, hostIds, hostTensor, type Runtime } from '../graph/runtime.ts';
import { createOrtRuntime } from '../graph/runtime-ort.ts';
import { createReferenceRuntime } from '../graph/runtime-reference.ts';
import { declareDecoder, declareInputs, decoderHidden, decoderLogprobs, withoutCache } from './decoder.ts';
import { createAdapter, type LoraSpec, loraSpec, loraTensorName } from './lora.ts';
import { linearModules, linearName, linearShape, type Parameter } from './parameters.ts';
import { createRopeFeeds } from './rope-table.ts';

const reference = createReferenceRuntime();
const ort = await createOrtRuntime({ threads: 1 });

type Weights = ReadonlyMap<string, { readonly data: Float32Array | Float64Array }>;
type Vector = Float64Array;

/** Logprobs of every next token of one sequence, row by row. */
function plainLogprobs(config: DecoderConfig, weights: Weights, ids: readonly number[], temperature: number): Vector[] {
  const { width, heads, kvHeads, headSize, ffWidth, vocabSize } = config;
  const weight = (name: string): Float32Array | Float64Array => weights.get(name)!.data;
  const embedding = weight('model.embed_tokens.weight');
  const xs = ids.map((id) => Float64Array.from(embedding.subarray(id * width, (id + 1) * width)));
  for (let layer = 0; layer < config.layers; layer++) {
    const prefix = `model.layers.${layer}`;
    const project = (module: string, x: Vector, size: number): Vector => {
      const bias = weights.get(`${prefix}.${module}.bias`)?.data;
      const y = timesTransposed(x, weight(`${prefix}.${module}.weight`), size);
      return bias ? y.map((value, i) => value + bias[i]!) : y;
    };
    const keys: Vector[][] = [];
    const values: Vector[][] = [];
    for (const [t, x] of xs.entries()) {
      const normed = plainNorm(x, weight(`${prefix}.input_layernorm.weight`), config.normEpsilon);
      const perHead = (module: string, normName: string, count: number): Vector[] =>
        Array.from({ length: count }, (_, head) => {
          const all = project(`self_attn.${module}`, normed, count * headSize);
          const one = all.slice(head * headSize, (head + 1) * headSize);
          const norm = config.hasQkNorm ? weights.get(`${prefix}.self_attn.${normName}.weight`) : undefined;
          return rotated(norm ? plainNorm(one, norm.data, config.normEpsilon) : one, t, config.ropeTheta);
        });
      const queries = perHead('q_proj', 'q_norm', heads);
      keys.push(perHead('k_proj', 'k_norm', kvHeads));
      const value = project('self_attn.v_proj', normed, kvHeads * headSize);
      values.push(Array.from({ length: kvHeads }, (_, k) => value.slice(k * headSize, (k + 1) * headSize)));
      const joined = new Float64Array(heads * headSize);
      for (const [head, query] of queries.entries()) {
        const kvHead = Math.floor(head / (heads / kvHeads));
        const scores = keys.map((key) => dot(query, key[kvHead]!) / Math.sqrt(headSize));
        const highest = Math.max(...scores);
        const total = scores.reduce((sum, score) => sum + Math.exp(score - highest), 0);
        for (const [s, score] of scores.entries()) {
          const probability = Math.exp(score - highest) / total;
          for (let c = 0; c < headSize; c++) joined[head * headSize + c]! += probability * values[s]![kvHead]![c]!;
        }
      }
      addInto(x, project('self_attn.o_proj', joined, width));
    }
    for (const x of xs) {
      const normed = plainNorm(x, weight(`${prefix}.post_attention_layernorm.weight`), config.normEpsilon);
      const gate = project('mlp.gate_proj', normed, ffWidth);
      const up = project('mlp.up_proj', normed, ffWidth);
      const inner = gate.map((value, i) => (value / (1 + Math.exp(-value))) * up[i]!);
      addInto(x, project('mlp.down_proj', inner, width));
    }
  }
  const head = config.isEmbeddingTied ? embedding : weight('lm_head.weight');
  return xs.map((x) => {
    const normed = plainNorm(x, weight('model.norm.weight'), config.normEpsilon);
    const logits = timesTransposed(normed, head, vocabSize).map((logit) => logit * Math.fround(1 / temperature));
    const highest = Math.max(...logits);
    const logTotal = highest + Math.log(logits.reduce((sum, logit) => sum + Math.exp(logit - highest), 0));
    return logits.map((logit) => logit - logTotal);
  });
}

function dot(a: Vector, b: Vector): number {
  return a.reduce((sum, value, i) => sum + value * b[i]!, 0);
}

/** W · x for W [size, x.length]. */
function timesTransposed(x: Vector, weights: Float32Array | Float64Array, size: number): Vector {
  const y = new Float64Array(size);
  for (let row = 0; row < size; row++) {
    for (let i = 0; i < x.length; i++) y[row]! += weights[row * x.length + i]! * x[i]!;
  }
  return y;
}

function plainNorm(x: Vector, weights: Float32Array | Float64Array, epsilon: number): Vector {
  const scale = 1 / Math.sqrt(dot(x, x) / x.length + epsilon);
  return x.map((value, i) => value * scale * weights[i]!);
}

/** Pairs (i, i + C/2) turned by position · theta^(−2i/C); frequencies, angles, sine and cosine are float32 in the model. */
function rotated(x: Vector, position: number, theta: number): Vector {
  const half = x.length / 2;
  return x.map((value, i) => {
    const frequency = Math.fround(1 / Math.fround(theta ** Math.fround((2 * (i % half)) / x.length)));
    const angle = Math.fround(position * frequency);
    const [cos, sin] = [Math.fround(Math.cos(angle)), Math.fround(Math.sin(angle))];
    return i < half ? value * cos - x[i + half]! * sin : value * cos + x[i - half]! * sin;
  });
}

function addInto(x: Vector, y: Vector): void {
  for (let i = 0; i < x.length; i++) x[i]! += y[i]!;
}

interface Pass {
  readonly config: DecoderConfig;
  readonly lora: LoraSpec | null;
  readonly sequences_B_T: readonly (readonly number[])[];
  readonly weights: Feeds;
}

/** Logprobs of every place of sequences of equal length, [B·T, V]. */
async function runDecoder(runtime: Runtime, { config, lora, sequences_B_T, weights }: Pass, temperature: number) {
  const model = declareDecoder(config, lora);
  const hidden = decoderHidden(model, declareInputs(config, 'T'), withoutCache);
  const rows = input('rows', ['M'], 'int64');
  const logprobs = decoderLogprobs(model, hidden, rows, input('inverseTemperatures', ['M', 1]));
  const executable = await runtime.compile(makeGraph({ logprobs }));
  const [batch, time] = [sequences_B_T.length, sequences_B_T[0]!.length];
  const group = config.heads / config.kvHeads;
  const mask = new Float32Array(batch * group * time * time);
  for (let i = 0; i < mask.length; i++) mask[i] = i % time <= Math.floor(i / time) % time ? 0 : -1e30;
  const count = batch * time;
  const results = await executable.run({
    ...weights,
    tokenIds: hostIds(sequences_B_T.flat(), [batch, time]),
    positions: hostIds(
      sequences_B_T.flatMap((ids) => ids.map((_, t) => t)),
      [batch, time],
    ),
    mask: hostTensor(mask, [batch, 1, group * time, time]),
    ...createRopeFeeds(config),
    rows: hostIds(Array.from({ length: count }, (_, row) => row)),
    inverseTemperatures: hostTensor(new Float32Array(count).fill(1 / temperature), [count, 1]),
  });
  await executable.dispose();
  return results.logprobs!.data as Float32Array;
}

const sequences_B_T = [randomIds(6, 64, 'a'), randomIds(6, 64, 'b')];

describe.each([
  ['Qwen3: q/k norm, tied, grouped queries', tinyConfig()],
  ['Qwen3 untied', tinyConfig({ isEmbeddingTied: false })],
  [
    'Qwen2: attention bias, no q/k norm',
    tinyConfig({ modelType: 'qwen2', hasQkNorm: false, hasAttentionBias: true, ropeTheta: 1_000_000 }),
  ],
  [
    'Llama: untied, one query head a kv head, H·C = D',
    tinyConfig({
      modelType: 'llama',
      hasQkNorm: false,
      isEmbeddingTied: false,
      heads: 2,
      kvHeads: 2,
      normEpsilon: 1e-5,
    }),
  ],
  ['all options at once, one kv head', tinyConfig({ kvHeads: 1, hasAttentionBias: true, isEmbeddingTied: false })],
])('%s', (_name, config) => {
  const parameters = randomParameters(config, 1);
  const pass: Pass = { config, lora: null, sequences_B_T, weights: weightFeeds(parameters) };
  const temperature = 0.7;
  const expected = sequences_B_T
    .flatMap((ids) => plainLogprobs(config, parameters, ids, temperature))
    .flatMap((row) => [...row]);

  test('reference runtime equals the plain loops in float64', async () => {
    expectClose(await runDecoder(reference, pass, temperature), expected, tolerances.reference);
  });

  test('ONNX Runtime equals them at the tolerance of logits', async () => {
    expectClose(await runDecoder(ort, pass, temperature), expected, tolerances.logits);
  });
});

describe('LoRA', () => {
  const config = tinyConfig({ hasAttentionBias: true });
  const parameters = randomParameters(config, 2);
  const base: Pass = { config, lora: null, sequences_B_T, weights: weightFeeds(parameters) };

  test('with B = 0 equals the base bit for bit', async () => {
    const lora = loraSpec({ rank: 3, alpha: 16 }, config);
    const weights = weightFeeds(parameters, createAdapter(config, lora, 7));
    expectSameBits(await runDecoder(ort, { ...base, lora, weights }, 1), await runDecoder(ort, base, 1));
  });

  test.each([
    ['all modules', linearModules(config)],
    ['two modules', ['q_proj', 'down_proj']],
  ])('unmerged equals W + alpha/rank · B · A: %s', async (_name, targetModules) => {
    const lora = loraSpec({ rank: 3, alpha: 4.5, targetModules }, config);
    const adapter = randomAdapter(config, lora, 3);
    const merged = mergedWeights(config, parameters, lora, adapter);
    const expected = sequences_B_T.flatMap((ids) => plainLogprobs(config, merged, ids, 1)).flatMap((row) => [...row]);
    const unmerged = { ...base, lora, weights: weightFeeds(parameters, adapter) };
    expectClose(await runDecoder(reference, unmerged, 1), expected, tolerances.reference, 'reference');
    expectClose(await runDecoder(ort, unmerged, 1), expected, tolerances.logits, 'ONNX Runtime');
    const rounded = new Map(
      [...parameters].map(([name, { shape }]) => [name, { shape, data: Float32Array.from(merged.get(name)!.data) }]),
    );
    const inOrt = await runDecoder(ort, { ...base, weights: weightFeeds(rounded) }, 1);
    expectClose(inOrt, expected, tolerances.logits, 'merged in ONNX Runtime');
    // The adapter does something: otherwise the test would pass without it.
    const plain = sequences_B_T.flatMap((ids) => plainLogprobs(config, parameters, ids, 1)).flatMap((row) => [...row]);
    expect(Math.max(...plain.map((value, i) => Math.abs(value - expected[i]!)))).toBeGreaterThan(0.1);
  });
});

function mergedWeights(
  config: DecoderConfig,
  parameters: ReadonlyMap<string, Parameter>,
  lora: LoraSpec,
  adapter: ReadonlyMap<string, Parameter>,
): Weights {
  const merged = new Map([...parameters].map(([name, { data }]) => [name, { data: Float64Array.from(data) }]));
  for (let layer = 0; layer < config.layers; layer++) {
    for (const module of lora.targetModules) {
      const [outSize, inSize] = linearShape(config, module);
      const a = adapter.get(loraTensorName(layer, module, 'A'))!.data;
      const b = adapter.get(loraTensorName(layer, module, 'B'))!.data;
      const target = merged.get(`${linearName(layer, module)}.weight`)!.data;
      for (let out = 0; out < outSize; out++) {
        for (let column = 0; column < inSize; column++) {
          for (let r = 0; r < lora.rank; r++) {
            target[out * inSize + column]! +=
              (lora.alpha / lora.rank) * b[out * lora.rank + r]! * a[r * inSize + column]!;
          }
        }
      }
    }
  }
  return merged;
}
