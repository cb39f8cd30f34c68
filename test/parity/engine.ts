/** Sampler and trainer over one model as the embedded engine puts them together, in this process. */
import type { DecoderConfig } from '../../src/formats/hf-config.ts';
import type { Runtime } from '../../src/graph/runtime.ts';
import { KvCache } from '../../src/infer/kv-cache.ts';
import { ModelRunner } from '../../src/infer/model-runner.ts';
import type { SequenceParams } from '../../src/infer/sampling-params.ts';
import { Scheduler } from '../../src/infer/scheduler.ts';
import { Sequence } from '../../src/infer/sequence.ts';
import type { LoraSpec } from '../../src/nn/lora.ts';
import type { Parameters } from '../../src/nn/parameters.ts';
import { Trainer } from '../../src/train/trainer.ts';
import { weightFeeds } from '../tiny-model.ts';

export interface EngineModel {
  readonly config: DecoderConfig;
  readonly parameters: Parameters;
  readonly adapter: { readonly lora: LoraSpec; readonly parameters: Parameters } | null;
}

export interface Sample {
  readonly promptIds: readonly number[];
  readonly maxTokens: number;
  /** 0 = greedy. */
  readonly temperature: number;
  readonly seed: number;
}

const params: Omit<SequenceParams, 'maxTokens' | 'temperature' | 'seed'> = {
  topP: 1,
  topK: 0,
  stopTokenIds: [],
  stopStrings: [],
  topLogprobs: 0,
};

/** A sampler that serves the model as step 1. */
export class Sampler {
  readonly #scheduler: Scheduler;
  readonly #config: DecoderConfig;
  #lastId = 0;

  private constructor(scheduler: Scheduler, config: DecoderConfig) {
    this.#scheduler = scheduler;
    this.#config = config;
  }

  static async create({ config, parameters, adapter }: EngineModel, runtime: Runtime): Promise<Sampler> {
    const cache = new KvCache(config, 8192);
    const options = { lora: adapter?.lora ?? null, baked: parameters, vocabSize: config.vocabSize };
    const runner = await ModelRunner.create(config, cache, runtime, options);
    const scheduler = new Scheduler(cache, runner, { maxRunning: 16, maxPrefillTokens: 512 });
    scheduler.publish(1, adapter ? weightFeeds(adapter.parameters) : {}, 1);
    return new Sampler(scheduler, config);
  }

  /** All at once, batched as the scheduler likes: new tokens and their logprobs. */
  async sample(samples: readonly Sample[]): Promise<{ tokenIds: number[]; logprobs: number[] }[]> {
    const sequences = samples.map(({ promptIds, ...rest }) => {
      const sequence = new Sequence(++this.#lastId, promptIds, { ...params, ...rest }, this.#scheduler.policy(1), {
        maxPositions: this.#config.maxPositions,
        createDecoder: () => ({ push: () => '', flush: () => '' }),
      });
      this.#scheduler.add(sequence);
      return sequence;
    });
    while (await this.#scheduler.step(() => undefined));
    return sequences.map(({ tokenIds, promptLength, logprobs }) => ({
      tokenIds: tokenIds.slice(promptLength),
      logprobs: [...logprobs],
    }));
  }

  /** Logprobs of given tokens by prefill; 0 for the first. */
  async score(tokenIds: readonly number[], inverseTemperature: number): Promise<number[]> {
    return (await this.#scheduler.score(tokenIds, inverseTemperature, 1))!;
  }
}

export function createTrainer(
  { config, parameters, adapter }: EngineModel,
  runtime: Runtime,
  activationRecomputation: 'always' | 'never',
): Trainer {
  return new Trainer({
    config,
    lora: adapter?.lora ?? null,
    parameters,
    trained: adapter?.parameters ?? parameters,
    baked: adapter ? parameters : new Map(),
    runtime,
    microbatchTokens: 2048,
    activationRecomputation,
  });
}
