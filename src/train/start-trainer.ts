/** A trainer that uses a computer's cores: by lanes for small models, by threads inside operators for large ones. Layer 3. */
import { createOrtRuntime } from '../graph/runtime-ort.ts';
import { countValues } from '../nn/parameters.ts';
import { Lanes } from './lanes.ts';
import type { ModelParts } from './passes.ts';
import { Trainer, type TrainerOptions } from './trainer.ts';

export interface StartOptions extends Pick<TrainerOptions, 'activationRecomputation' | 'activationBytes'> {
  /** Of all graphs together. */
  readonly threads: number;
  readonly microbatchTokens?: number;
}

/** Every lane has its own packed copies of the weights; larger models would take too much memory. */
const MAX_LANE_VALUES = 50_000_000;
/** Weights of all lanes together: raw, and packed for forward and backward pass, bytes. */
const MAX_LANE_BYTES = 2e9;
const BYTES_PER_VALUE = 12;
/** Tensors of so many tokens stay in the caches of a core. */
const SMALL_MICROBATCH = 512;
const LARGE_MICROBATCH = 2048;

function isSmall({ parameters }: Pick<ModelParts, 'parameters'>): boolean {
  return countParameters(parameters) <= MAX_LANE_VALUES;
}

function countParameters(parameters: ModelParts['parameters']): number {
  return countValues([...parameters.values()].map(({ shape }) => shape));
}

/** What `startTrainer` takes where nothing else is asked for; it depends on the model alone, as the bits of gradients do. */
export function defaultMicrobatchTokens(model: Pick<ModelParts, 'parameters'>): number {
  return isSmall(model) ? SMALL_MICROBATCH : LARGE_MICROBATCH;
}

export async function startTrainer(model: Omit<ModelParts, 'runtime'>, options: StartOptions): Promise<Trainer> {
  const { threads, microbatchTokens, ...rest } = options;
  const { config, lora, parameters, baked, trained } = model;
  const affordable = Math.floor(MAX_LANE_BYTES / (BYTES_PER_VALUE * countParameters(parameters)));
  const count = isSmall(model) ? Math.min(threads, affordable) : 1;
  const laneModel = {
    ...{ config, lora, parameters, baked: [...baked.keys()], threads: Math.floor(threads / count) },
    trained: trained === parameters ? ('parameters' as const) : trained,
  };
  return new Trainer({
    ...model,
    ...rest,
    runtime: await createOrtRuntime({ threads, isKeepingMemory: isSmall(model) }),
    lanes: count > 1 ? await Lanes.start(laneModel, count) : null,
    microbatchTokens: microbatchTokens ?? defaultMicrobatchTokens(model),
  });
}
