/** Training: forward, backward and AdamW update of a LoRA adapter, in the process that measures. */
import { availableParallelism } from 'node:os';
import { createRng } from '../src/core/rng.ts';
import { bakedWeights } from '../src/engines/embedded/baked-weights.ts';
import type { Runtime } from '../src/graph/runtime.ts';
import { createAdapter } from '../src/nn/lora.ts';
import { countParameters } from '../src/nn/parameters.ts';
import type { TrainingSequence } from '../src/train/microbatch.ts';
import { defaultMicrobatchTokens } from '../src/train/model-sizing.ts';
import type { ModelParts } from '../src/train/passes.ts';
import { startTrainer } from '../src/train/start-trainer.ts';
import { Trainer } from '../src/train/trainer.ts';
import { type BenchModel, lora } from './models.ts';

/** Sequences fill their rows, so no token is padding. */
const sequenceTokens = 256;
export const promptTokens = 128;
export interface Workload {
  readonly run: () => Promise<void>;
  /** The same work in this thread on the runtime that was given, where `run` uses others: its operations can be counted. */
  readonly countable?: () => Promise<void>;
  /** Of one run. */
  readonly tokens: number;
}

/** One run is one optimizer step over `sequenceCount` sequences of 128 prompt and 128 action tokens, as the engine computes it. */
export async function createTraining(
  { config, parameters }: BenchModel,
  runtime: Runtime,
  sequenceCount: number,
  microbatchTokens: number = defaultMicrobatchTokens(countParameters(parameters)),
  threads: number = availableParallelism(),
): Promise<Workload> {
  const model = (): Omit<ModelParts, 'runtime'> => ({
    ...{ config, lora, parameters, baked: bakedWeights(parameters, true) },
    trained: createAdapter(config, lora, 1),
  });
  const trainer = await startTrainer(model(), { threads, microbatchTokens });
  const sequences = Array.from({ length: sequenceCount }, (_, index) => createSequence(config.vocabSize, index));
  const scale = 1 / (sequenceCount * (sequenceTokens - promptTokens));
  const step = async (by: Trainer): Promise<void> => {
    await by.forwardBackward(sequences, { name: 'cispo', clipLow: 0, clipHigh: 5 }, scale);
    by.update({ learningRate: 1e-5, beta1: 0.9, beta2: 0.99, epsilon: 1e-8, weightDecay: 0, maxGradNorm: 1 });
  };
  return {
    tokens: sequenceCount * sequenceTokens,
    run: () => step(trainer),
    countable: () => step(new Trainer({ ...model(), runtime, microbatchTokens })),
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
