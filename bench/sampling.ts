/** Sampling: sequences that start together, through the scheduler, in the process that measures. */
import { createRng } from '../src/core/rng.ts';
import { bakedWeights } from '../src/engines/embedded/baked-weights.ts';
import type { Precision } from '../src/graph/onnx.ts';
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

export interface BenchSampler {
  readonly scheduler: Scheduler;
  readonly add: (prompt: readonly number[], newTokens: number) => void;
  /** Until nothing is left to do. */
  readonly drain: () => Promise<void>;
}

/** A scheduler that serves an untrained adapter, with room for `cacheTokens`. */
export async function createBenchSampler(
  { config, parameters }: BenchModel,
  runtime: Runtime,
  cacheTokens: number,
  precision: Precision = 'float32',
): Promise<BenchSampler> {
  const { vocabSize, maxPositions } = config;
  const cache = new KvCache(config, cacheTokens);
  // Only constants become int8.
  const baked = precision === 'int8' ? parameters : bakedWeights(parameters, true);
  const runner = await ModelRunner.create(config, cache, runtime, { lora, baked, vocabSize, precision });
  const scheduler = new Scheduler(cache, runner, { maxRunning: 256, maxPrefillTokens: 512 });
  const adapter = toFeeds(createAdapter(config, lora, 1));
  const base = baked.size > 0 ? {} : toFeeds(parameters);
  scheduler.publish(0, { ...base, ...adapter }, 1);
  const fixed = { temperature: 1, topP: 1, topK: 0, stopTokenIds: [], stopStrings: [], topLogprobs: 0 };
  const createDecoder = (): never => {
    throw new Error('sampling bench: stop strings are not used');
  };
  let lastId = 0;
  return {
    scheduler,
    add: (prompt, maxTokens) => {
      const id = ++lastId;
      const params = { ...fixed, maxTokens, seed: id };
      scheduler.add(new Sequence(id, [...prompt], params, scheduler.policy(0), { maxPositions, createDecoder }));
    },
    drain: async () => {
      while (await scheduler.step(() => undefined));
    },
  };
}

/** One run samples `newTokens` tokens for each of `sequences` prompts that were never seen before. */
export async function createSampling(
  model: BenchModel,
  runtime: Runtime,
  newTokens: number,
  precision: Precision = 'float32',
  sequences: number = sequenceCount,
): Promise<Workload> {
  const { vocabSize } = model.config;
  const sampler = await createBenchSampler(model, runtime, sequences * (promptTokens + newTokens) * 2, precision);
  const rng = createRng('bench', 'prompts');
  return {
    tokens: sequences * newTokens,
    run: async () => {
      for (let i = 0; i < sequences; i++) {
        sampler.add(
          Array.from({ length: promptTokens }, () => rng.integer(vocabSize)),
          newTokens,
        );
      }
      await sampler.drain();
    },
  };
}

function toFeeds(parameters: Parameters): PolicyFeeds {
  return Object.fromEntries([...parameters].map(([name, { data, shape }]) => [name, hostTensor(data, shape)]));
}
