/** Sampling: 32 sequences that start together, through the scheduler, in the process that measures. */
import { createRng } from '../src/core/rng.ts';
import { bakedWeights } from '../src/engines/embedded/baked-weights.ts';
import { hostTensor, type Runtime } from '../src/graph/runtime.ts';
import { KvCache } from '../src/infer/kv-cache.ts';
import { ModelRunner, type PolicyFeeds } from '../src/infer/model-runner.ts';
import { Scheduler } from '../src/infer/scheduler.ts';
import { Sequence } from '../src/infer/sequence.ts';
import { createAdapter } from '../src/nn/lora.ts';
import type { Parameters } from '../src/nn/parameters.ts';
import { type BenchModel, lora } from './models.ts';
import type { Workload } from './training.ts';

export const sequenceCount = 32;
export const promptTokens = 128;

/** One run samples `newTokens` tokens for each of 32 prompts that were never seen before. */
export async function createSampling(model: BenchModel, runtime: Runtime, newTokens: number): Promise<Workload> {
  const { config, parameters } = model;
  const { vocabSize, maxPositions } = config;
  const cache = new KvCache(config, sequenceCount * (promptTokens + newTokens) * 2);
  const baked = bakedWeights(parameters, true);
  const runner = await ModelRunner.create(config, cache, runtime, { lora, baked, vocabSize });
  const scheduler = new Scheduler(cache, runner, { maxRunning: 256, maxPrefillTokens: 2048 });
  const adapter = toFeeds(createAdapter(config, lora, 1));
  const base = baked.size > 0 ? {} : toFeeds(parameters);
  scheduler.publish(0, { ...base, ...adapter }, 1);
  const params = {
    maxTokens: newTokens,
    temperature: 1,
    topP: 1,
    topK: 0,
    stopTokenIds: [],
    stopStrings: [],
    topLogprobs: 0,
  };
  const createDecoder = (): never => {
    throw new Error('sampling bench: stop strings are not used');
  };
  const rng = createRng('bench', 'prompts');
  let lastId = 0;
  return {
    tokens: sequenceCount * newTokens,
    run: async () => {
      for (let i = 0; i < sequenceCount; i++) {
        const prompt = Array.from({ length: promptTokens }, () => rng.integer(vocabSize));
        const id = ++lastId;
        scheduler.add(
          new Sequence(id, prompt, { ...params, seed: id }, scheduler.policy(0), { maxPositions, createDecoder }),
        );
      }
      while (await scheduler.step(() => undefined));
    },
  };
}

function toFeeds(parameters: Parameters): PolicyFeeds {
  return Object.fromEntries([...parameters].map(([name, { data, shape }]) => [name, hostTensor(data, shape)]));
}
