/**
 * What the engine's process will take, before it starts, and a KV cache that fits. Layer 4.
 * Factors were measured as the peak of the process over models of 0.8, 8, 29 and 69 million parameters (up to 50 million
 * graphs hold packed weights of their own), after sampling 64 sequences and training full microbatches; the sum was within 6 %.
 */
import { availableParallelism } from 'node:os';
import { ConfigError } from '../../core/errors.ts';
import type { DecoderConfig } from '../../formats/hf-config.ts';
import { loraShapes, loraSpec } from '../../nn/lora.ts';
import { countValues, parameterShapes } from '../../nn/parameters.ts';
import { defaultActivationBytes, defaultMicrobatchTokens, laneCount } from '../../train/model-sizing.ts';
import { wholeValues } from '../../train/plan.ts';
import type { AvailableMemory } from './available-memory.ts';
import { MAX_BAKED_VALUES } from './baked-weights.ts';
import type { EmbeddedEngineOptions } from './options.ts';

/** Bytes by what they are for. */
export interface MemoryEstimate {
  /** Base weights, in all copies. */
  readonly weights: number;
  /** Adapter, or all weights where those are trained: gradients, moments, served policies. */
  readonly training: number;
  /** KV cache, and what decode passes lay out of it. */
  readonly cache: number;
  /** What one training pass keeps for its backward pass. */
  readonly activations: number;
  /** Node.js and ONNX Runtime. */
  readonly process: number;
  readonly total: number;
}

export const DEFAULT_CACHE_TOKENS = 65_536;
/** Below this hardly a conversation fits: rather say that memory does not suffice. */
const LEAST_CACHE_TOKENS = 4096;

const PROCESS_BYTES = 140e6;
/** Weights outside graphs: sampler and trainer have one copy each, and what passes convert. */
const BASE_COPIES = 2.2;
/** Raw and packed ones inside all sampling graphs, if they are constants there. */
const GRAPH_COPIES = { float32: 4.3, int8: 3.3 };
/** The same of each training lane. */
const LANE_COPIES = 3;
const LANE_PROCESS_BYTES = 30e6;
/** Peak of a pass over what its backward pass reads. */
const PASS_FACTOR = 1.75;
/** Gradients, two moments, and two served policies beside the weights themselves. */
const TRAINED_COPIES = 6;

type Options = Pick<
  EmbeddedEngineOptions,
  'training' | 'cacheTokens' | 'microbatchTokens' | 'trainThreads' | 'rolloutPrecision'
>;

/** For a process that uses its cache to the full and trains. */
export function estimateMemory(config: DecoderConfig, options: Options): MemoryEstimate {
  const { training: kind, cacheTokens = DEFAULT_CACHE_TOKENS, trainThreads = availableParallelism() } = options;
  const values = countValues(parameterShapes(config).values());
  const isBaked = kind.kind === 'lora' && values <= MAX_BAKED_VALUES;
  const lanes = laneCount(values, trainThreads);
  const precision = options.rolloutPrecision ?? 'float32';
  const graphCopies = isBaked || precision === 'int8' ? GRAPH_COPIES[precision] : 0;
  const copies = BASE_COPIES + graphCopies + (isBaked ? LANE_COPIES * lanes : 0);
  const trained = kind.kind === 'lora' ? countValues(loraShapes(config, loraSpec(kind, config)).values()) : values;
  const microbatchTokens = options.microbatchTokens ?? defaultMicrobatchTokens(values);
  // Beyond this microbatches are smaller, or the trainer goes layer by layer; rows have 128 positions or more.
  const pass = Math.min(defaultActivationBytes, 4 * microbatchTokens * wholeValues(config, 128));
  const parts = {
    weights: 4 * copies * values,
    training: 4 * TRAINED_COPIES * trained,
    cache: cacheBytesPerToken(config) * cacheTokens,
    activations: PASS_FACTOR * pass * lanes,
    process: PROCESS_BYTES + LANE_PROCESS_BYTES * (lanes - 1),
  };
  return { ...parts, total: Object.values(parts).reduce((sum, bytes) => sum + bytes, 0) };
}

/**
 * The options with a `cacheTokens` that fits, where none is given: 65,536 or fewer. Throws ConfigError with the numbers if memory does
 * not suffice for what is asked, or for the least cache.
 */
export function fitMemory<T extends Options>(
  config: DecoderConfig,
  options: T,
  available: AvailableMemory,
  what: string,
): T & { readonly cacheTokens: number } {
  const tokens = options.cacheTokens ?? DEFAULT_CACHE_TOKENS;
  const estimate = estimateMemory(config, { ...options, cacheTokens: tokens });
  if (estimate.total <= available.bytes) return { ...options, cacheTokens: tokens };
  const rest = available.bytes - (estimate.total - estimate.cache);
  const fitting = Math.max(0, Math.floor(rest / cacheBytesPerToken(config) / 1024) * 1024);
  if (options.cacheTokens === undefined && fitting >= LEAST_CACHE_TOKENS) return { ...options, cacheTokens: fitting };
  throw notEnough(what, estimate, available, { asked: options.cacheTokens, tokens, fitting });
}

/** Keys and values of a token, in the cache and in what decode passes read. */
function cacheBytesPerToken({ layers, kvHeads, headSize }: DecoderConfig): number {
  return 2 * 2 * 4 * layers * kvHeads * headSize;
}

function notEnough(
  what: string,
  estimate: MemoryEstimate,
  available: AvailableMemory,
  cache: { readonly asked: number | undefined; readonly tokens: number; readonly fitting: number },
): ConfigError {
  const parts = `weights ${gigabytes(estimate.weights)}, training ${gigabytes(estimate.training)}, KV cache of ${cache.tokens} tokens ${gigabytes(
    estimate.cache,
  )}, activations ${gigabytes(estimate.activations)}, the process ${gigabytes(estimate.process)}`;
  const mend =
    cache.fitting >= LEAST_CACHE_TOKENS
      ? `cacheTokens up to ${cache.fitting} would fit`
      : 'take a smaller model, or lower microbatchTokens, cacheTokens or trainThreads';
  return new ConfigError(
    `memory: ${what} needs about ${gigabytes(estimate.total)} (${parts}), got ${gigabytes(available.bytes)}, ${available.limit}; ` +
      `${mend}; isMemoryChecked: false (art serve --no-memory-check) tries it anyway`,
    {
      details: {
        code: 'not_enough_memory',
        param: 'base_model',
        neededBytes: Math.round(estimate.total),
        availableBytes: available.bytes,
        fittingCacheTokens: cache.fitting,
      },
    },
  );
}

function gigabytes(bytes: number): string {
  return `${(bytes / 1e9).toFixed(2)} GB`;
}
