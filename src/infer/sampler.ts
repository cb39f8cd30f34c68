/**
 * Chooses a token from a row of log-probabilities. Layer 3.
 * The row is already at the sampling temperature, and the recorded logprob is the row's own value: exactly what the trainer computes
 * again. top-k and top-p restrict what may be drawn, not what is recorded.
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
 * Draws one id. Greedy takes the best, the lowest id of equals. Otherwise top-k is applied first, then top-p on what is left: the
 * fewest best tokens whose probability reaches `topP`.
 */
export function chooseToken(logprobs_V: Float32Array, params: SamplerParams, rng: Rng): number {
  const { temperature, topP, topK } = params;
  if (temperature === 0) return rankTokens(logprobs_V, 1)[0]!;
  if (topK === 0 && topP >= 1) return draw(logprobs_V, null, rng);
  const kept = rankTokens(logprobs_V, topK > 0 ? Math.min(topK, logprobs_V.length) : logprobs_V.length);
  if (topP < 1) {
    const total = kept.reduce((sum, id) => sum + Math.exp(logprobs_V[id]!), 0);
    let reached = 0;
    const end = kept.findIndex((id) => {
      reached += Math.exp(logprobs_V[id]!);
      return reached >= topP * total;
    });
    if (end >= 0) kept.length = end + 1;
  }
  return draw(logprobs_V, kept, rng);
}

/** One uniform draw against the cumulative probabilities of `ids` (null = all). Always consumes exactly one number. */
function draw(logprobs_V: Float32Array, ids: readonly number[] | null, rng: Rng): number {
  const count = ids?.length ?? logprobs_V.length;
  const idAt = (i: number): number => (ids ? ids[i]! : i);
  let total = 0;
  for (let i = 0; i < count; i++) total += Math.exp(logprobs_V[idAt(i)]!);
  const target = rng.uniform() * total;
  let reached = 0;
  let last = idAt(0);
  for (let i = 0; i < count; i++) {
    const probability = Math.exp(logprobs_V[idAt(i)]!);
    if (probability === 0) continue;
    last = idAt(i);
    reached += probability;
    if (reached > target) return last;
  }
  return last; // Rounding can leave `reached` a hair under `target`.
}
