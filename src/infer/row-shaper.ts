/**
 * What shifts or forbids tokens before one is drawn. Layer 3.
 * Order as in vLLM (v1/sample/sampler.py, grammar masks before it in gpu_model_runner.py): constraint, minimum length, bias, repetition
 * penalty, frequency and presence penalties; then temperature, and what `sampler.ts` does. Frequency and presence penalties count
 * sampled tokens, as OpenAI's reference says (logit − count · frequency − presence); the repetition penalty is of tokens in prompt or reply.
 * Only a copy of the row changes: what is recorded, and trained on, is the policy's own distribution.
 */
import type { SequenceParams } from './sampling-params.ts';

/** A row of log-probabilities at a temperature, and what leads back to its logits: (logprob + logNormalizer) / inverseTemperature. */
export interface ShapedRow {
  readonly logprobs_V: Float32Array;
  readonly logNormalizer: number;
  readonly inverseTemperature: number;
}

/** Bit id % 32 of word id / 32 is set on tokens that may be drawn. */
export type TokenMask = Int32Array;

/** Of one sequence: counts what was sampled. */
export class RowShaper {
  readonly #params: SequenceParams;
  readonly #bias: ReadonlyMap<number, number>;
  /** How often each token was sampled; 0 of prompt tokens. */
  readonly #counts = new Map<number, number>();
  #sampled = 0;

  constructor(params: SequenceParams, promptIds: readonly number[]) {
    this.#params = params;
    this.#bias = new Map(params.logitBias ?? []);
    if ((params.repetitionPenalty ?? 1) !== 1) for (const id of promptIds) this.#counts.set(id, 0);
  }

  /** Tells of a sampled token. */
  push(tokenId: number): void {
    this.#counts.set(tokenId, (this.#counts.get(tokenId) ?? 0) + 1);
    this.#sampled++;
  }

  /** The row to draw from: `out`, overwritten, whose length is that of the row. At least one token stays possible if `mask` has one. */
  shape(row: ShapedRow, mask: TokenMask | null, out: Float32Array): Float32Array {
    if (mask) copyAllowed(row.logprobs_V, mask, out);
    else out.set(row.logprobs_V);
    this.#forbidEarlyStop(row, out);
    for (const id of this.#bias.keys()) this.#shift(row, id, out);
    if (this.#hasPenalty) for (const id of this.#counts.keys()) if (!this.#bias.has(id)) this.#shift(row, id, out);
    return out;
  }

  get #hasPenalty(): boolean {
    const { frequencyPenalty = 0, presencePenalty = 0, repetitionPenalty = 1 } = this.#params;
    return frequencyPenalty !== 0 || presencePenalty !== 0 || repetitionPenalty !== 1;
  }

  #forbidEarlyStop(row: ShapedRow, out: Float32Array): void {
    const { minTokens = 0, stopTokenIds } = this.#params;
    if (this.#sampled >= minTokens) return;
    for (const id of stopTokenIds) if (id < out.length) out[id] = Number.NEGATIVE_INFINITY;
    // A text that must end here ends, however short it is.
    if (out.some((value) => value !== Number.NEGATIVE_INFINITY)) return;
    for (const id of stopTokenIds) if (id < out.length) out[id] = row.logprobs_V[id]!;
  }

  #shift({ logprobs_V, logNormalizer, inverseTemperature }: ShapedRow, id: number, out: Float32Array): void {
    if (out[id] === Number.NEGATIVE_INFINITY) return;
    const { frequencyPenalty = 0, presencePenalty = 0, repetitionPenalty = 1 } = this.#params;
    let logit = (logprobs_V[id]! + logNormalizer) / inverseTemperature + (this.#bias.get(id) ?? 0);
    const count = this.#counts.get(id);
    if (count !== undefined) logit = logit > 0 ? logit / repetitionPenalty : logit * repetitionPenalty;
    if (count !== undefined && count > 0) logit -= count * frequencyPenalty + presencePenalty;
    out[id] = logit * inverseTemperature - logNormalizer;
  }
}

/** Whether any setting shifts or forbids tokens. */
export function needsShaping(params: SequenceParams): boolean {
  const { frequencyPenalty = 0, presencePenalty = 0, repetitionPenalty = 1, minTokens = 0 } = params;
  const isPenalized = frequencyPenalty !== 0 || presencePenalty !== 0 || repetitionPenalty !== 1;
  return isPenalized || minTokens > 0 || (params.logitBias?.length ?? 0) > 0 || params.constraint !== undefined;
}

/** Words without a bit are skipped: a constraint mostly allows few tokens. */
function copyAllowed(row_V: Float32Array, mask: TokenMask, out: Float32Array): void {
  out.fill(Number.NEGATIVE_INFINITY);
  const words = Math.min(mask.length, Math.ceil(row_V.length / 32));
  for (let word = 0; word < words; word++) {
    const bits = mask[word]!;
    if (bits === 0) continue;
    const start = word * 32;
    if (bits === -1 && start + 32 <= row_V.length) {
      for (let id = start; id < start + 32; id++) out[id] = row_V[id]!;
      continue;
    }
    const end = Math.min(start + 32, row_V.length);
    for (let id = start; id < end; id++) if ((bits >>> (id - start)) & 1) out[id] = row_V[id]!;
  }
}
