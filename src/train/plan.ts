/**
 * Decides how each part of a batch is computed: as one graph, or layer by layer. Layer 3.
 * The order of what it returns is the order in which gradients add up, so it depends on nothing but the arguments.
 */
import type { DecoderConfig } from '../formats/hf-config.ts';
import { createLayeredBatch, keptValues, type LayeredBatch } from './layered.ts';
import { checkSequences, createMicrobatches, type Microbatch, type TrainingSequence } from './microbatch.ts';
import { newRowLength } from './packing.ts';
import { compareTokens, sharedTokens } from './token-layout.ts';

/** Whether the backward pass computes activations again: always, never, or where memory or shared prefixes ask for it. */
export type ActivationRecomputation = 'auto' | 'always' | 'never';

export interface PlanOptions {
  readonly config: DecoderConfig;
  /** Most tokens of one microbatch computed as one graph, padding included. A single longer row still goes alone. */
  readonly microbatchTokens: number;
  readonly activationRecomputation: ActivationRecomputation;
  /** What activations may take, bytes. */
  readonly activationBytes: number;
}

/** What is computed at once, a microbatch either way. `index` of places counts in the sequences that were planned. */
export type Unit =
  | { readonly kind: 'whole'; readonly microbatch: Microbatch }
  | {
      readonly kind: 'layered';
      readonly batch: LayeredBatch;
      /** Into the sequences that were planned, for each of the batch. */
      readonly indices: readonly number[];
      readonly isKeeping: boolean;
    };

/** Larger batches make products no faster. */
const MAX_LAYERED_TOKENS = 4096;
/** Microbatches without padding and with shared prefixes may be this much larger than whole graphs; still several, for several lanes. */
const LAYERED_MICROBATCHES = 4;
/** Below this a batch that keeps activations would make products slower than computing them again does. */
const MIN_KEEPING_TOKENS = 512;
/** Whole graphs of fewer tokens than this were not measured to be faster than layer by layer (models of 135 million parameters). */
const MIN_WHOLE_TOKENS = 256;
/** Layer by layer is worth its copies if at most this share of the tokens has to be computed. */
const MAX_COMPUTED_SHARE = 0.8;

/** Throws DataError on sequences that do not fit the model. */
export function planUnits(sequences: readonly TrainingSequence[], options: PlanOptions): Unit[] {
  const { config, activationRecomputation: mode } = options;
  const isLayered = mode === 'always' || (mode === 'auto' && prefersLayers(sequences, options));
  if (isLayered) {
    checkSequences(sequences, config);
    return planLayered(sequences, options);
  }
  const { headSize, maxPositions, vocabSize } = config;
  const queriesPerKey = config.heads / config.kvHeads;
  const limits = { maxTokens: wholeTokens(sequences, options), maxPositions, vocabSize };
  return createMicrobatches(sequences, { queriesPerKey, headSize, layers: config, ...limits }).map((microbatch) => ({
    kind: 'whole',
    microbatch,
  }));
}

/** float32 values for each token of a whole graph: what the backward pass reads, and the logits of every second token. */
export function wholeValues(config: DecoderConfig, rowLength: number): number {
  const { layers, width, heads, kvHeads, headSize, ffWidth, vocabSize } = config;
  const perLayer = 6 * width + 2 * (heads + 2 * kvHeads) * headSize + 5 * ffWidth + 3 * heads * rowLength;
  return layers * perLayer + 2 * vocabSize;
}

/** Tokens of a microbatch as one graph, as many as the memory for activations holds: what one row takes, or too few, it may exceed. */
function wholeTokens(sequences: readonly TrainingSequence[], options: PlanOptions): number {
  return Math.min(options.microbatchTokens, Math.max(MIN_WHOLE_TOKENS, fittingTokens(longestOf(sequences), options)));
}

function longestOf(sequences: readonly TrainingSequence[]): number {
  return sequences.reduce((longest, { tokenIds }) => Math.max(longest, tokenIds.length), 1);
}

/** Tokens in rows for sequences of `length` whose activations fit. */
function fittingTokens(length: number, { config, activationBytes }: PlanOptions): number {
  return Math.floor(activationBytes / (4 * wholeValues(config, newRowLength(length))));
}

function prefersLayers(sequences: readonly TrainingSequence[], options: PlanOptions): boolean {
  const longest = longestOf(sequences);
  const tokens = sequences.reduce((sum, { tokenIds }) => sum + tokenIds.length, 0);
  // Few tokens need no more room than they have.
  const least = Math.max(newRowLength(longest), Math.min(MIN_WHOLE_TOKENS, tokens, options.microbatchTokens));
  if (fittingTokens(longest, options) < least) return true;
  return countComputed(sequences) <= MAX_COMPUTED_SHARE * tokens;
}

/** Tokens that are left when every prefix is computed once. */
function countComputed(sequences: readonly TrainingSequence[]): number {
  const sorted = sequences.map(({ tokenIds }) => tokenIds).sort(compareTokens);
  return sorted.reduce(
    (sum, tokens, i) => sum + tokens.length - (i === 0 ? 0 : sharedTokens(sorted[i - 1]!, tokens)),
    0,
  );
}

function planLayered(sequences: readonly TrainingSequence[], options: PlanOptions): Unit[] {
  const { config, activationBytes, activationRecomputation } = options;
  const keepingTokens = Math.floor(activationBytes / (4 * keptValues(config, true)));
  const wantsKeeping = activationRecomputation === 'auto' && keepingTokens >= MIN_KEEPING_TOKENS;
  const most = Math.min(MAX_LAYERED_TOKENS, LAYERED_MICROBATCHES * options.microbatchTokens);
  const limit = wantsKeeping ? Math.min(most, keepingTokens) : most;
  const order = [...sequences.keys()].sort(
    (a, b) => compareTokens(sequences[a]!.tokenIds, sequences[b]!.tokenIds) || a - b,
  );
  const groups: number[][] = [];
  let size = 0;
  for (const [i, index] of order.entries()) {
    const { tokenIds } = sequences[index]!;
    const shared = i === 0 ? 0 : sharedTokens(sequences[order[i - 1]!]!.tokenIds, tokenIds);
    const isFull = size + tokenIds.length - shared > limit;
    // Between groups, so that a prefix is not computed in two microbatches.
    const isBoundary = shared === 0 && size >= limit / 2;
    const isNew = groups.length === 0 || isFull || isBoundary;
    if (isNew) groups.push([]);
    size = isNew ? tokenIds.length : size + tokenIds.length - shared;
    groups.at(-1)!.push(index);
  }
  return groups.map((indices) => {
    const batch = createLayeredBatch(
      indices.map((index) => sequences[index]!),
      true,
    );
    return { kind: 'layered', batch, indices, isKeeping: wantsKeeping && batch.layout.rows <= limit };
  });
}
