/** One scheduler over a tiny model on ONNX Runtime, for tests of what is served beside each other. */
import { expect } from 'vitest';
import type { DecoderConfig } from '../src/formats/hf-config.ts';
import { createOrtRuntime } from '../src/graph/runtime-ort.ts';
import { KvCache } from '../src/infer/kv-cache.ts';
import { ModelRunner, type PolicyFeeds } from '../src/infer/model-runner.ts';
import type { SequenceParams } from '../src/infer/sampling-params.ts';
import { Scheduler, type SchedulerOptions } from '../src/infer/scheduler.ts';
import { Sequence } from '../src/infer/sequence.ts';
import { loraSpec } from '../src/nn/lora.ts';
import { randomAdapter, randomIds, randomParameters, tinyConfig, weightFeeds } from './tiny-model.ts';

const ort = await createOrtRuntime({ threads: 1 });
const lora = loraSpec({ rank: 2, alpha: 4 }, tinyConfig());

export interface Harness {
  readonly scheduler: Scheduler;
  readonly cache: KvCache;
  readonly start: (request: Request) => Sequence;
}

export interface Request {
  readonly promptIds: readonly number[];
  readonly step: number;
  readonly params: SequenceParams;
}

export async function createHarness(
  options: Partial<SchedulerOptions> & { cacheTokens?: number; config?: DecoderConfig; vocabSize?: number } = {},
): Promise<Harness> {
  const { cacheTokens = 2000, config = tinyConfig(), vocabSize = config.vocabSize, ...rest } = options;
  const cache = new KvCache(config, cacheTokens);
  const runner = await ModelRunner.create(config, cache, ort, { lora, baked: randomParameters(config, 1), vocabSize });
  const limits = { maxRunning: 64, maxPrefillTokens: 256, ...rest };
  const scheduler = new Scheduler(cache, runner, limits);
  scheduler.publish(1, adapterFeeds(config, 1), 2);
  scheduler.publish(2, adapterFeeds(config, 2), 2);
  let lastId = 0;
  const decoder = { push: (id: number) => String.fromCharCode(65 + id), flush: () => '' };
  const start = ({ promptIds, step, params }: Request): Sequence => {
    const sequence = new Sequence(++lastId, promptIds, params, scheduler.policy(step), {
      maxPositions: config.maxPositions,
      createDecoder: () => decoder,
    });
    scheduler.add(sequence);
    return sequence;
  };
  return { scheduler, cache, start };
}

export function adapterFeeds(config: DecoderConfig, seed: number): PolicyFeeds {
  return weightFeeds(randomAdapter(config, lora, seed));
}

export const params: SequenceParams = {
  maxTokens: 12,
  temperature: 1,
  topP: 1,
  topK: 0,
  seed: 1,
  stopTokenIds: [],
  stopStrings: [],
  topLogprobs: 0,
};

/** One of each setting that shifts or forbids tokens, and none. */
export const shapings: readonly Partial<SequenceParams>[] = [
  {},
  {},
  { minP: 0.3 },
  { frequencyPenalty: 1.5, presencePenalty: 0.5 },
  { repetitionPenalty: 1.3 },
  {
    logitBias: [
      [3, 4],
      [5, -100],
    ],
  },
  { minTokens: 1 },
];

export function request(overrides: Partial<SequenceParams> = {}, length = 20, step = 1, seed = 'prompt'): Request {
  return { promptIds: randomIds(length, 64, seed), step, params: { ...params, ...overrides } };
}

export async function finish({ scheduler }: Harness): Promise<void> {
  for (let passes = 0; await scheduler.step(() => undefined); passes++) expect(passes).toBeLessThan(2000);
}

/** What a request gives: its tokens and logprobs, exactly. */
export const outcome = ({ tokenIds, logprobs, stopCause }: Sequence) => ({ tokenIds, logprobs, stopCause });

/** As if it were the only request that ever ran: weights are published anew, so that no cache is reused. */
export async function runAlone(harness: Harness, one: Request, config = tinyConfig()): Promise<Sequence> {
  harness.scheduler.publish(one.step, adapterFeeds(config, one.step), 2);
  const sequence = harness.start(one);
  await finish(harness);
  expect(sequence.cachedTokens).toBe(0);
  return sequence;
}
