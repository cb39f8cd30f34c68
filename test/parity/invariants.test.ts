/**
 * What must hold of every family: greedy tokens are transformers', cached decode equals full prefill, sampler and trainer agree bit for
 * bit whatever is batched or packed beside, and tokens that nothing may read change nothing.
 */
import { describe, expect, test } from 'vitest';
import type { DecoderConfig } from '../../src/formats/hf-config.ts';
import { createOrtRuntime } from '../../src/graph/runtime-ort.ts';
import { layerKinds } from '../../src/nn/attention-masks.ts';
import { loraSpec } from '../../src/nn/lora.ts';
import type { TrainingSequence } from '../../src/train/microbatch.ts';
import { randomAdapter, randomIds, randomParameters } from '../tiny-model.ts';
import { createTrainer, type EngineModel, Sampler } from './engine.ts';
import { type FamilyFixture, families } from './families.ts';

const runtime = await createOrtRuntime({ threads: 1 });

/** The fixture's weights with room for long sequences, whose windows end in the middle of blocks, and an adapter on every module. */
function longModel({ config, parameters }: FamilyFixture): EngineModel {
  const window = config.slidingWindow === null ? {} : { slidingWindow: 45 };
  const long: DecoderConfig = { ...config, ...window, maxPositions: 512 };
  const lora = loraSpec({ rank: 3, alpha: 6 }, long);
  return { config: long, parameters, adapter: { lora, parameters: randomAdapter(long, lora, 1) } };
}

/** Head sizes of real models that the fixtures do not have: Phi 3, Gemma 3 with its scale and with one that is no power of 2. */
const wideModels: readonly (readonly [string, EngineModel])[] = (
  [
    ['phi3', { headSize: 96, heads: 2, kvHeads: 2 }],
    ['gemma3', { headSize: 256, queryScale: 1 / 16 }],
    ['gemma3', { headSize: 256, queryScale: 1 / Math.sqrt(168) }],
  ] as const
).map(([name, sizes]) => {
  const fixture = families.find((family) => family.name === name)!;
  const config = { ...longModel(fixture).config, ...sizes };
  const lora = loraSpec({ rank: 3, alpha: 6 }, config);
  const adapter = { lora, parameters: randomAdapter(config, lora, 1) };
  return [`${name}, head size ${sizes.headSize}`, { config, parameters: randomParameters(config, 1), adapter }];
});

/** Everything but the first token is an action. */
function toSequence(tokenIds: readonly number[], temperature = 1): TrainingSequence {
  const zeros = tokenIds.map(() => 0);
  return {
    tokenIds,
    actionMask: tokenIds.map((_, t) => Number(t > 0)),
    samplingLogprobs: zeros,
    advantages: zeros,
    temperatures: tokenIds.map(() => temperature),
  };
}

async function trainerLogprobs(
  model: EngineModel,
  sequences: readonly TrainingSequence[],
  way: 'always' | 'never' = 'never',
): Promise<readonly (readonly number[])[]> {
  const trainer = createTrainer(model, runtime, way);
  return (await trainer.forwardBackward(sequences, { name: 'crossEntropy' }, 1)).trainingLogprobs;
}

describe.each(families.map((fixture) => [fixture.name, fixture] as const))('%s', (_name, fixture) => {
  test("greedy tokens are those of transformers' generate", async () => {
    const { config, parameters, expected } = fixture;
    const sampler = await Sampler.create({ config, parameters, adapter: null }, runtime);
    const { promptIds, tokenIds } = expected.greedy;
    const [sample] = await sampler.sample([{ promptIds, maxTokens: tokenIds.length, temperature: 0, seed: 1 }]);
    expect(sample!.tokenIds).toEqual(tokenIds);
  });

  test('a token that no later query sees changes no later logprob', async () => {
    const model = longModel(fixture);
    const { config } = model;
    const tokenIds = randomIds(200, 64, 'left alone');
    const changed = tokenIds.map((id, t) => (t === 3 ? (id + 1) % 64 : id));
    const [before, after] = await trainerLogprobs(model, [toSequence(tokenIds), toSequence(changed)]);
    // The query before a token predicts it, and through each layer it reaches back by one window.
    const reach = layerKinds(config).includes('full')
      ? Number.POSITIVE_INFINITY
      : config.layers * (config.slidingWindow! - 1);
    const differs = before!.map((logprob, t) => logprob !== after![t]);
    expect(differs.slice(0, 3)).toEqual([false, false, false]);
    expect(differs.slice(3, 10)).toContain(true);
    const isUnreached = (t: number): boolean => t - 1 > 3 + reach;
    expect(differs.some((differ, t) => isUnreached(t) && differ)).toBe(false);
    expect(differs.lastIndexOf(true)).toBe(Math.min(199, 4 + reach));
  });
});

describe.each([...families.map((fixture) => [fixture.name, longModel(fixture)] as const), ...wideModels])(
  '%s',
  (_name, model) => {
    // Two share a prompt.
    const prompts = [9, 70, 33, 70].map((length) => randomIds(length, 64, 'prompt', length));

    test('cached decode in a batch = full prefill = packed training = training alone, bit for bit', async () => {
      const temperature = 0.7;
      const requests = prompts.map((promptIds, seed) => ({ promptIds, maxTokens: 60 + 40 * seed, temperature, seed }));
      const sampler = await Sampler.create(model, runtime);
      const samples = await sampler.sample(requests);
      const whole = samples.map(({ tokenIds }, i) => [...prompts[i]!, ...tokenIds]);
      const sequences = whole.map((tokenIds) => toSequence(tokenIds, temperature));
      const packed = await trainerLogprobs(model, sequences);
      const inLayers = await trainerLogprobs(model, sequences, 'always');
      for (const [i, { logprobs, tokenIds }] of samples.entries()) {
        const start = prompts[i]!.length;
        const scored = await sampler.score(whole[i]!, 1 / temperature);
        expect(scored.slice(start), `prefill of sequence ${i}`).toEqual(logprobs);
        expect(packed[i], `trainer, sequence ${i}`).toEqual(scored);
        expect(inLayers[i], `trainer layer by layer, sequence ${i}`).toEqual(scored);
        expect((await trainerLogprobs(model, [sequences[i]!]))[0], `trainer, sequence ${i} alone`).toEqual(scored);
        const alone = await (await Sampler.create(model, runtime)).sample([requests[i]!]);
        expect(alone, `sequence ${i} alone`).toEqual([{ tokenIds, logprobs }]);
      }
    });
  },
);
