/** Options of the embedded engine, shared by the parent and the engine's process. Layer 4. */
import { ConfigError } from '../../core/errors.ts';
import { refuseUnknownKeys } from '../../core/options.ts';
import type { Precision } from '../../graph/onnx.ts';

export interface LoraOptions {
  readonly rank: number;
  readonly alpha: number;
  /** Names of linear layers; default all of a decoder layer. */
  readonly targetModules?: readonly string[];
}

export interface EmbeddedEngineOptions {
  /** Folder in Hugging Face's format, or a .gguf file. */
  readonly modelDirectory: string;
  /** What is trained: a LoRA adapter, or every parameter. */
  readonly training: ({ readonly kind: 'lora' } & LoraOptions) | { readonly kind: 'full' };
  /** Seed of the adapter's initial A matrices. */
  readonly seed: number;
  /** Threads of training together, and of one sampling graph; defaults: number of cores, and 1 up to 2 million parameters, else that number. */
  readonly trainThreads?: number;
  readonly sampleThreads?: number;
  /** Tokens that the KV cache holds; default 65,536, or as many as fit into memory. */
  readonly cacheTokens?: number;
  /** Sequences that decode together; default 256. */
  readonly maxRunningSequences?: number;
  /** Tokens of one training microbatch, padding included; default 512 for small models, else 2,048. */
  readonly microbatchTokens?: number;
  /**
   * Whether the backward pass computes activations again, which takes a third more time and a fraction of the memory: `always`, `never`
   * (then nothing is shared between sequences either), or by need; default `auto`.
   */
  readonly activationRecomputation?: 'auto' | 'always' | 'never';
  /**
   * Of rollouts: `int8` rounds the frozen base weights, and what is multiplied by them, to 8 bits. It is faster, and sampler and trainer
   * no longer agree exactly. It needs training by LoRA. Default `float32`.
   */
  readonly rolloutPrecision?: Precision;
  /** Whether a model that needs more memory than there is left is refused before it is loaded; default true. */
  readonly isMemoryChecked?: boolean;
  /** Time limit of one engine call, and of a pause in sampling (not of a whole sample), milliseconds; default 600,000. */
  readonly callTimeoutMs?: number;
  /**
   * A process that says nothing for so long, though asked, is ended; default 120,000 ms. It cannot answer during one pass of the
   * model, so the limit must be longer than the slowest.
   */
  readonly hangLimitMs?: number;
  /** The newest policies that stay servable by their step, from 2; default 2. Each has the memory of what is trained. */
  readonly servedPolicies?: number;
}

const optionNames: { readonly [K in keyof Required<EmbeddedEngineOptions>]: true } = {
  modelDirectory: true,
  training: true,
  seed: true,
  trainThreads: true,
  sampleThreads: true,
  cacheTokens: true,
  maxRunningSequences: true,
  microbatchTokens: true,
  activationRecomputation: true,
  rolloutPrecision: true,
  isMemoryChecked: true,
  callTimeoutMs: true,
  hangLimitMs: true,
  servedPolicies: true,
};

/** Throws ConfigError naming options that there are not. */
export function checkOptionNames(options: EmbeddedEngineOptions): void {
  refuseUnknownKeys('engine', options, Object.keys(optionNames));
}

/** 2 if none is given. Throws ConfigError on less: a step is proven while the one before is still in use. */
export function checkServedPolicies({ servedPolicies = 2 }: Pick<EmbeddedEngineOptions, 'servedPolicies'>): number {
  if (Number.isSafeInteger(servedPolicies) && servedPolicies >= 2) return servedPolicies;
  throw new ConfigError(`servedPolicies: must be an integer from 2, got ${servedPolicies}`);
}

const precisions: readonly Precision[] = ['float32', 'int8'];

/** `float32` if none is given. Throws ConfigError on another one than those, and on `int8` where weights change that would be rounded. */
export function checkRolloutPrecision(
  options: Pick<EmbeddedEngineOptions, 'rolloutPrecision' | 'training'>,
): Precision {
  const { rolloutPrecision = 'float32', training } = options;
  if (!precisions.includes(rolloutPrecision)) {
    throw new ConfigError(`rolloutPrecision: must be ${precisions.join(' or ')}, got '${rolloutPrecision}'`);
  }
  if (rolloutPrecision === 'int8' && training.kind !== 'lora') {
    throw new ConfigError(`rolloutPrecision: int8 needs training by LoRA, got training '${training.kind}'`);
  }
  return rolloutPrecision;
}
