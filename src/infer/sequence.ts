/** State of one sampling request inside the engine. Layer 3. */
import type { ArtError } from '../core/errors.ts';
import { createRng, type Rng } from '../core/rng.ts';
import type { StreamDecoder } from '../formats/tokenizer.ts';
import type { BlockTable } from './kv-cache.ts';
import type { PolicyFeeds } from './model-runner.ts';
import type { RowRequest, RowResult } from './row-choice.ts';
import { needsShaping, RowShaper } from './row-shaper.ts';
import { chooseToken, rankTokens } from './sampler.ts';
import type { SequenceParams } from './sampling-params.ts';
import type { TokenMatcher } from './token-matcher.ts';

/** Weights that are served under a step number. A step may be published again, so `identity` is what counts. */
export interface Policy {
  readonly step: number;
  /** Unique per publication. */
  readonly identity: number;
  readonly feeds: PolicyFeeds;
}

export interface RankedToken {
  readonly tokenId: number;
  readonly logprob: number;
}

export type StopCause = 'stop' | 'length';

/** Owned by the scheduler, which sets `table`, `computedTokens` and `cachedTokens`. */
export class Sequence {
  readonly id: number;
  /** Kept to the end, whatever is published meanwhile. */
  readonly policy: Policy;
  readonly params: SequenceParams;
  /** Prompt, then what was sampled. */
  readonly tokenIds: number[];
  readonly promptLength: number;
  readonly logprobs: number[] = [];
  readonly topLogprobs: RankedToken[][] = [];
  readonly rng: Rng;
  /** Tokens whose keys and values stand in the cache. */
  computedTokens = 0;
  cachedTokens = 0;
  table: BlockTable | null = null;
  stopCause: StopCause | null = null;
  /** Why it cannot go on, which ends it without stop cause. */
  failure: ArtError | null = null;
  readonly #matcher: TokenMatcher | null;
  readonly #shaper: RowShaper | null;
  readonly #maxLength: number;
  readonly #decoder: StreamDecoder | null;
  #text = '';

  constructor(
    id: number,
    promptIds: readonly number[],
    params: SequenceParams,
    policy: Policy,
    limits: { readonly maxPositions: number; readonly createDecoder: () => StreamDecoder },
    matcher: TokenMatcher | null = null,
  ) {
    this.id = id;
    this.policy = policy;
    this.params = params;
    this.tokenIds = [...promptIds];
    this.promptLength = promptIds.length;
    this.rng = createRng(params.seed, 'sample');
    this.#maxLength = Math.min(limits.maxPositions, promptIds.length + params.maxTokens);
    this.#decoder = params.stopStrings.length > 0 ? limits.createDecoder() : null;
    this.#matcher = matcher;
    this.#shaper = needsShaping(params) ? new RowShaper(params, promptIds) : null;
  }

  /** Most tokens whose keys and values may be wanted: the last sampled token is never read again. */
  get reservedTokens(): number {
    return Math.max(this.promptLength, this.#maxLength - 1);
  }

  get pendingTokens(): number {
    return this.tokenIds.length - this.computedTokens;
  }

  /** What logits are multiplied by; greedy reports logprobs at temperature 1. */
  get inverseTemperature(): number {
    return this.params.temperature === 0 ? 1 : 1 / this.params.temperature;
  }

  /** True if a token is drawn from the whole distribution; otherwise the row decides. */
  get isPlainDraw(): boolean {
    const { temperature, topK, topP, minP = 0 } = this.params;
    return temperature > 0 && topK === 0 && topP >= 1 && minP === 0 && this.#shaper === null;
  }

  /** What the next token needs of its row. Takes the next random number of a plain draw. */
  requestRow(): RowRequest {
    return {
      inverseTemperature: this.inverseTemperature,
      draw: this.isPlainDraw ? this.rng.uniform() : 0,
      targetId: 0,
      wantsRow: !this.isPlainDraw || this.params.topLogprobs > 0,
    };
  }

  /** The next token of its row, and its logprob under the policy. `scratch` has the length of the vocabulary and is overwritten. */
  choose(row: RowResult, scratch: Float32Array): RankedToken {
    if (this.isPlainDraw) return row;
    const logprobs_V = row.logprobs_V!.subarray(0, scratch.length);
    const { logNormalizer } = row;
    const shaped = this.#shaper
      ? this.#shaper.shape(
          { logprobs_V, logNormalizer, inverseTemperature: this.inverseTemperature },
          this.#matcher?.mask ?? null,
          scratch,
        )
      : logprobs_V;
    const tokenId = chooseToken(shaped, this.params, this.rng);
    return { tokenId, logprob: logprobs_V[tokenId]! };
  }

  /** Adds a sampled token and decides whether the sequence ends. `logprobs_V` is read if alternatives are wanted. */
  append(tokenId: number, logprob: number, logprobs_V: Float32Array | null): void {
    this.tokenIds.push(tokenId);
    this.logprobs.push(logprob);
    this.#shaper?.push(tokenId);
    if (this.params.topLogprobs > 0) this.topLogprobs.push(rankedTokens(logprobs_V!, this.params.topLogprobs));
    if (this.params.stopTokenIds.includes(tokenId) || this.#endsInStopString(tokenId)) this.stopCause = 'stop';
    else if (this.tokenIds.length >= this.#maxLength) this.stopCause = 'length';
  }

  /** Whether `follow` must be called after each token that does not end the sequence. */
  get isConstrained(): boolean {
    return this.#matcher !== null;
  }

  /** Moves the constraint on by the token that was added last; a text that is complete ends. Throws EngineError. */
  async follow(): Promise<void> {
    await this.#matcher!.accept(this.tokenIds.at(-1)!);
    if (this.#matcher!.isComplete) this.stopCause = 'stop';
  }

  /** Frees what the constraint holds. */
  dispose(): void {
    this.#matcher?.dispose();
  }

  #endsInStopString(tokenId: number): boolean {
    if (!this.#decoder) return false;
    const longest = Math.max(...this.params.stopStrings.map((stop) => stop.length));
    const delta = this.#decoder.push(tokenId);
    // Only text that this token completed can hold a new match.
    const window = this.#text.slice(-longest) + delta;
    // What comes before the minimum length is not looked at.
    const isEarly = this.logprobs.length < (this.params.minTokens ?? 0);
    this.#text = isEarly ? '' : window;
    if (isEarly) return false;
    return this.params.stopStrings.some((stop) => window.includes(stop));
  }
}

/** The `count` best tokens of a row, best first. */
export function rankedTokens(logprobs_V: Float32Array, count: number): RankedToken[] {
  return rankTokens(logprobs_V, count).map((tokenId) => ({ tokenId, logprob: logprobs_V[tokenId]! }));
}
