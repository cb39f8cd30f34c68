/**
 * Chooses a token from a row of log-probabilities. Layer 3.
 * The row is already at the sampling temperature; `row-shaper.ts` may have shifted it. Nothing here touches what is recorded.
 * Order as in vLLM (v1/sample/sampler.py): min-p, top-k, top-p.
 */
import type { Rng } from '../core/rng.ts';

export interface SamplerParams {
  /** 0 = greedy. */
  readonly temperature: number;
  /** 1 = off. */
  readonly topP: number;
  /** 0 = off. */
  readonly topK: number;
  /** 0 = off, the default. */
  readonly minP?: number;
  /** Default 0. */
  readonly frequencyPenalty?: number;
  /** Default 0. */
  readonly presencePenalty?: number;
  /** Default 1. */
  readonly repetitionPenalty?: number;
  readonly logitBias?: readonly (readonly [tokenId: number, bias: number])[];
}

/** Best first; equal logprobs by lower id. */
export function rankTokens(logprobs_V: Float32Array, count: number): number[] {
  const isBetter = (a: number, b: number): boolean =>
    logprobs_V[a]! > logprobs_V[b]! || (logprobs_V[a]! === logprobs_V[b]! && a < b);
  if (count > 32) {
    return Array.from(logprobs_V.keys())
      .sort((a, b) => (isBetter(a, b) ? -1 : 1))
      .slice(0, count);
  }
  const best: number[] = [];
  for (let id = 0; id < logprobs_V.length; id++) {
    if (best.length === count && !isBetter(id, best[count - 1]!)) continue;
    let at = best.length;
    while (at > 0 && isBetter(id, best[at - 1]!)) at--;
    best.splice(at, 0, id);
    if (best.length > count) best.pop();
  }
  return best;
}

/**
 * Draws one id. Greedy takes the best, the lowest id of equals. Otherwise min-p is applied first, the tokens at least `minP` times as
 * likely as the likeliest; then top-k; then top-p on what is left, the fewest best tokens whose probability reaches `topP`.
 */
export function chooseToken(logprobs_V: Float32Array, params: SamplerParams, rng: Rng): number {
  const { temperature, topP, topK, minP = 0 } = params;
  const best = bestToken(logprobs_V);
  if (temperature === 0) return best;
  const highest = logprobs_V[best]!;
  if (topK === 0 && topP >= 1 && minP === 0) return draw(logprobs_V, null, highest, rng);
  let kept: readonly number[] | null = minP === 0 ? null : idsFrom(logprobs_V, highest + Math.log(minP));
  if (topK > 0) kept = kept === null ? rankTokens(logprobs_V, topK) : sorted(kept, logprobs_V).slice(0, topK);
  if (topP < 1) kept = reachTopP(logprobs_V, kept, topP, highest);
  return draw(logprobs_V, kept, highest, rng);
}

function bestToken(logprobs_V: Float32Array): number {
  let best = 0;
  for (let id = 1; id < logprobs_V.length; id++) if (logprobs_V[id]! > logprobs_V[best]!) best = id;
  return best;
}

/** Ids, ascending, whose value is at least `threshold`. */
function idsFrom(logprobs_V: Float32Array, threshold: number): number[] {
  const ids: number[] = [];
  for (let id = 0; id < logprobs_V.length; id++) if (logprobs_V[id]! >= threshold) ids.push(id);
  return ids;
}

/** Best first; equals by lower id. */
function sorted(ids: readonly number[], logprobs_V: Float32Array): number[] {
  return [...ids].sort((a, b) => logprobs_V[b]! - logprobs_V[a]! || a - b);
}

/** The fewest best of `ids` (null = all) whose share of their probability reaches `topP`. */
function reachTopP(
  logprobs_V: Float32Array,
  ids: readonly number[] | null,
  topP: number,
  highest: number,
): readonly number[] {
  const weight = (id: number): number => Math.exp(logprobs_V[id]! - highest);
  let total = 0;
  if (ids === null) for (let id = 0; id < logprobs_V.length; id++) total += weight(id);
  else for (const id of ids) total += weight(id);
  // All tokens below half of this share together have less than 1 − topP, so none of them is needed: sorting few is fast.
  const count = ids?.length ?? logprobs_V.length;
  const threshold = highest + Math.log(((1 - topP) * total) / (2 * count));
  const ranked = sorted(
    ids?.filter((id) => logprobs_V[id]! >= threshold) ?? idsFrom(logprobs_V, threshold),
    logprobs_V,
  );
  let reached = 0;
  const end = ranked.findIndex((id) => {
    reached += weight(id);
    return reached >= topP * total;
  });
  return end < 0 ? ranked : ranked.slice(0, end + 1);
}

/** One uniform draw against the cumulative probabilities of `ids` (null = all). Always consumes exactly one number. */
function draw(logprobs_V: Float32Array, ids: readonly number[] | null, highest: number, rng: Rng): number {
  const count = ids?.length ?? logprobs_V.length;
  const idAt = (i: number): number => (ids ? ids[i]! : i);
  // Relative to the highest: of a row that is shifted or forbids much, all values could be 0 otherwise.
  const weight = (i: number): number => Math.exp(logprobs_V[idAt(i)]! - highest);
  let total = 0;
  for (let i = 0; i < count; i++) total += weight(i);
  const target = rng.uniform() * total;
  let reached = 0;
  let last = idAt(0);
  for (let i = 0; i < count; i++) {
    const probability = weight(i);
    if (probability === 0) continue;
    last = idAt(i);
    reached += probability;
    if (reached > target) return last;
  }
  return last; // Rounding can leave `reached` a hair under `target`.
}
