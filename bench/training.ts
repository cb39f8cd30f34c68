/** Training: forward, backward and AdamW update of a LoRA adapter, in the process that measures. */
import { createRng } from '../src/core/rng.ts';
import { bakedWeights } from '../src/engines/embedded/baked-weights.ts';
import type { Runtime } from '../src/graph/runtime.ts';
import { createAdapter } from '../src/nn/lora.ts';
import type { TrainingSequence } from '../src/train/microbatch.ts';
import { Trainer } from '../src/train/trainer.ts';
import { type BenchModel, lora } from './models.ts';

/** Sequences fill their rows, so no token is padding. */
const sequenceTokens = 256;
export const promptTokens = 128;
/** The engine's default. */
const defaultMicrobatchTokens = 2048;

export interface Workload {
  readonly run: () => Promise<void>;
  /** Of one run. */
  readonly tokens: number;
}

/** One run is one optimizer step over `sequenceCount` sequences of 128 prompt and 128 action tokens. */
export function createTraining(
  model: BenchModel,
  runtime: Runtime,
  sequenceCount: number,
  microbatchTokens: number = defaultMicrobatchTokens,
): Workload {
  const { config, parameters } = model;
  const trainer = new Trainer({
    config,
    lora,
    parameters,
    trained: createAdapter(config, lora, 1),
    baked: bakedWeights(parameters, true),
    runtime,
    microbatchTokens,
  });
  const sequences = Array.from({ length: sequenceCount }, (_, index) => createSequence(config.vocabSize, index));
  const scale = 1 / (sequenceCount * (sequenceTokens - promptTokens));
  return {
    tokens: sequenceCount * sequenceTokens,
    run: async () => {
      await trainer.forwardBackward(sequences, { name: 'cispo', clipLow: 0, clipHigh: 5 }, scale);
      trainer.update({ learningRate: 1e-5, beta1: 0.9, beta2: 0.99, epsilon: 1e-8, weightDecay: 0, maxGradNorm: 1 });
    },
  };
}

export function createSequence(vocabSize: number, index: number): TrainingSequence {
  const rng = createRng('bench', index);
  const places = Array.from({ length: sequenceTokens }, (_, t) => t);
  const isAction = (t: number): boolean => t >= promptTokens;
  return {
    tokenIds: places.map(() => rng.integer(vocabSize)),
    actionMask: places.map((t) => Number(isAction(t))),
    samplingLogprobs: places.map((t) => (isAction(t) ? -Math.log(vocabSize) : 0)),
    advantages: places.map(() => (index % 2 === 0 ? 1 : -1)),
    temperatures: places.map(() => 1),
  };
}
