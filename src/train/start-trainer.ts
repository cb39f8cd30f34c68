/** A trainer that uses a computer's cores: by lanes for small models, by threads inside operators for large ones. Layer 3. */
import { createOrtRuntime } from '../graph/runtime-ort.ts';
import { countParameters } from '../nn/parameters.ts';
import { Lanes } from './lanes.ts';
import { defaultMicrobatchTokens, isSmallModel, laneCount } from './model-sizing.ts';
import type { ModelParts } from './passes.ts';
import { Trainer, type TrainerOptions } from './trainer.ts';

export interface StartOptions extends Pick<TrainerOptions, 'activationRecomputation' | 'activationBytes'> {
  /** Of all graphs together. */
  readonly threads: number;
  readonly microbatchTokens?: number;
}

export async function startTrainer(model: Omit<ModelParts, 'runtime'>, options: StartOptions): Promise<Trainer> {
  const { threads, microbatchTokens, ...rest } = options;
  const { config, lora, parameters, baked, trained } = model;
  const parameterCount = countParameters(parameters);
  const count = laneCount(parameterCount, threads);
  const laneModel = {
    ...{ config, lora, parameters, baked: [...baked.keys()], threads: Math.floor(threads / count) },
    trained: trained === parameters ? ('parameters' as const) : trained,
  };
  return new Trainer({
    ...model,
    ...rest,
    runtime: await createOrtRuntime({ threads, isKeepingMemory: isSmallModel(parameterCount) }),
    lanes: count > 1 ? await Lanes.start(laneModel, count) : null,
    microbatchTokens: microbatchTokens ?? defaultMicrobatchTokens(parameterCount),
  });
}
