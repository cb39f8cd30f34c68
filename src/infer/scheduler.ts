/**
 * Continuous batching: sequences join and leave at any step. Layer 3.
 * One `step` is one pass: a prefill of sequences with several pending tokens if there are any, otherwise one decode step of all
 * running ones. Of sequences that begin alike, as those of a group, one computes the common part and the others wait for it. A pass serves
 * one policy, since its adapter is fed to the whole batch. Room in the cache is reserved when a sequence is admitted, so that a running
 * one never has to be thrown out again.
 */
import { commonPrefix } from '../core/common-prefix.ts';
import { ArtError, ConfigError, DataError, EngineError, messageOf } from '../core/errors.ts';
import type { BlockTable, KvCache } from './kv-cache.ts';
import type { ModelRunner, PolicyFeeds } from './model-runner.ts';
import type { Chunk } from './prefill-pass.ts';
import type { RowResult } from './row-choice.ts';
import { type Policy, type RankedToken, rankedTokens, type Sequence } from './sequence.ts';

export interface SchedulerOptions {
  readonly maxRunning: number;
  /** Tokens of one prefill pass, padding included. */
  readonly maxPrefillTokens: number;
}

export interface SchedulerCounters {
  sampledTokens: number;
  prefilledTokens: number;
  seconds: number;
}

export interface ScoredToken {
  readonly logprob: number;
  /** Best first. */
  readonly top: readonly RankedToken[];
}

/** Rows of the whole vocabulary that are read at once. */
const MAX_FULL_ROWS = 64;

/** What a step did to one sequence: it has a new token, and may have ended (`sequence.stopCause`, or `sequence.failure`). */
export type StepListener = (sequence: Sequence) => void;

/** `publish` and `score` must not meet a pass in flight; `add` and `abort` may. */
export class Scheduler {
  readonly counters: SchedulerCounters = { sampledTokens: 0, prefilledTokens: 0, seconds: 0 };
  readonly #cache: KvCache;
  readonly #runner: ModelRunner;
  readonly #options: SchedulerOptions;
  readonly #policies = new Map<number, Policy>();
  #publications = 0;
  /** Carried out between passes: a pass in flight still reads the tables of its sequences. */
  readonly #aborted = new Set<number>();
  readonly #scratch_V: Float32Array;
  /** What a waiting sequence waits for, so that thousands that wait are not compared with it before each pass. */
  readonly #awaited = new WeakMap<Sequence, { readonly other: Sequence; readonly shared: number }>();
  #waiting: Sequence[] = [];
  #running: Sequence[] = [];

  constructor(cache: KvCache, runner: ModelRunner, options: SchedulerOptions) {
    this.#cache = cache;
    this.#runner = runner;
    this.#options = options;
    this.#scratch_V = new Float32Array(runner.vocabSize);
  }

  get runningCount(): number {
    return this.#running.length;
  }

  get waitingCount(): number {
    return this.#waiting.length;
  }

  get policySteps(): number[] {
    return [...this.#policies.keys()].sort((a, b) => a - b);
  }

  /** Makes weights servable as `step`; of the others, the newest `keep` − 1 stay. Sequences under way keep the policy they have. */
  publish(step: number, feeds: PolicyFeeds, keep: number): void {
    this.#policies.set(step, { step, identity: ++this.#publications, feeds });
    const others = this.policySteps.filter((known) => known !== step);
    for (const known of others.slice(0, Math.max(0, others.length - keep + 1))) this.#policies.delete(known);
  }

  /** Throws ConfigError if the step is not served. */
  policy(step: number): Policy {
    const policy = this.#policies.get(step);
    if (policy) return policy;
    throw new ConfigError(`policy step: must be one of those served (${this.policySteps.join(', ')}), got ${step}`);
  }

  /** Throws DataError if the sequence could never fit into the cache. */
  add(sequence: Sequence): void {
    if (sequence.reservedTokens > this.#cache.capacityTokens) {
      throw new DataError(
        `sequence: prompt and maxTokens must fit into the KV cache of ${this.#cache.capacityTokens} tokens, got ${sequence.reservedTokens}`,
      );
    }
    this.#waiting.push(sequence);
  }

  /** Drops a sequence wherever it is, before the next pass. */
  abort(id: number): void {
    this.#aborted.add(id);
  }

  /** One pass; false if there was nothing to do. */
  async step(onToken: StepListener): Promise<boolean> {
    const startedAt = performance.now();
    this.#dropAborted();
    this.#admit();
    const batch = this.#choose();
    if (batch.length === 0) return false;
    await (batch[0]!.pendingTokens > 1 ? this.#prefill(batch, onToken) : this.#decode(batch, onToken));
    this.counters.seconds += (performance.now() - startedAt) / 1000;
    return true;
  }

  async #prefill(batch: readonly Sequence[], onToken: StepListener): Promise<void> {
    const chunks = batch.map((sequence) => this.#chunk(sequence));
    const rows = await this.#runner.prefill(chunks, batch[0]!.policy.feeds);
    for (const [i, sequence] of batch.entries()) {
      const { tokenIds, rows: wanted } = chunks[i]!;
      this.counters.prefilledTokens += tokenIds.length;
      this.#advance(sequence, tokenIds.length);
      if (wanted.length > 0) await this.#sample(sequence, rows.shift()!, onToken);
    }
  }

  async #decode(batch: readonly Sequence[], onToken: StepListener): Promise<void> {
    const entries = batch.map((sequence) => ({
      table: sequence.table!,
      length: sequence.computedTokens,
      tokenId: sequence.tokenIds.at(-1)!,
      row: sequence.requestRow(),
    }));
    const rows = await this.#runner.decode(entries, batch[0]!.policy.feeds);
    for (const [i, sequence] of batch.entries()) {
      this.#advance(sequence, 1);
      await this.#sample(sequence, rows[i]!, onToken);
    }
  }

  #advance(sequence: Sequence, tokens: number): void {
    sequence.computedTokens += tokens;
    this.#cache.commit(sequence.table!, sequence.tokenIds, sequence.computedTokens);
  }

  /**
   * Logprobs of given tokens under a served policy, through prefill passes; the first token's entry is 0.
   * Null if the cache has no room at the moment: later it will have. Throws ConfigError on an unknown policy, DataError if the
   * tokens could never fit into the cache.
   */
  async score(tokenIds: readonly number[], inverseTemperature: number, policyStep: number): Promise<number[] | null> {
    const scores = await this.scoreUnder(this.policy(policyStep), tokenIds, inverseTemperature, 0);
    return scores && [0, ...scores.map(({ logprob }) => logprob)];
  }

  /** As `score`, of each token but the first, with its `alternatives` best ones; their rows are read a few at a time. */
  async scoreUnder(
    policy: Policy,
    tokenIds: readonly number[],
    inverseTemperature: number,
    alternatives: number,
  ): Promise<ScoredToken[] | null> {
    const { capacityTokens } = this.#cache;
    if (tokenIds.length > capacityTokens) {
      throw new DataError(`score: must fit into the KV cache of ${capacityTokens} tokens, got ${tokenIds.length}`);
    }
    // An identity that no policy has: nothing cached is reused, and nothing cached here is found by others.
    const allocation = this.#cache.allocate(-1, [], tokenIds.length);
    if (!allocation) return null;
    const { table } = allocation;
    const wantsRow = alternatives > 0;
    const size = Math.min(this.#options.maxPrefillTokens, wantsRow ? MAX_FULL_ROWS : Number.POSITIVE_INFINITY);
    try {
      const scores: ScoredToken[] = [];
      for (let start = 0; start < tokenIds.length; start += size) {
        const ids = tokenIds.slice(start, start + size);
        const wanted = tokenIds.slice(start + 1, start + ids.length + 1);
        const row = { inverseTemperature, draw: 0, wantsRow };
        const rows = wanted.map((targetId, at) => ({ ...row, targetId, at }));
        const results = await this.#runner.prefill([{ table, start, tokenIds: ids, rows }], policy.feeds);
        for (const { targetLogprob, logprobs_V } of results) {
          const known_V = logprobs_V?.subarray(0, this.#runner.vocabSize);
          scores.push({ logprob: targetLogprob, top: known_V ? rankedTokens(known_V, alternatives) : [] });
        }
      }
      return scores;
    } finally {
      this.#cache.release(table);
    }
  }

  #dropAborted(): void {
    if (this.#aborted.size === 0) return;
    for (const sequence of [...this.#waiting, ...this.#running]) {
      if (this.#aborted.has(sequence.id)) this.#remove(sequence);
    }
    this.#aborted.clear();
  }

  /** In order of arrival, except for those that had better wait for what a running one computes. */
  #admit(): void {
    const waiting = this.#waiting;
    this.#waiting = [];
    let hasRoom = true;
    for (const sequence of waiting) {
      hasRoom &&= this.#running.length < this.#options.maxRunning;
      if (hasRoom && !this.#isWorthWaiting(sequence)) {
        const { policy, tokenIds, reservedTokens } = sequence;
        const found = this.#cache.allocate(policy.identity, tokenIds, reservedTokens);
        if (found) {
          this.#start(sequence, found.table, found.cachedTokens);
          continue;
        }
        hasRoom = false;
      }
      this.#waiting.push(sequence);
    }
  }

  #start(sequence: Sequence, table: BlockTable, foundTokens: number): void {
    let computed = foundTokens;
    for (const other of this.#running) {
      // Whole blocks were found; the rest of an equal prompt, but for its last token, is copied.
      const shared = Math.min(other.computedTokens, sharedTokens(sequence, other), sequence.tokenIds.length - 1);
      if (shared <= computed) continue;
      this.#cache.share(other.table!, table, computed, shared);
      computed = shared;
    }
    sequence.table = table;
    sequence.cachedTokens = computed;
    sequence.computedTokens = computed;
    this.#cache.commit(table, sequence.tokenIds, computed);
    this.#running.push(sequence);
  }

  /** True while a running sequence is about to compute a good part of what this one needs, as the first of a group does. */
  #isWorthWaiting(sequence: Sequence): boolean {
    const known = this.#awaited.get(sequence);
    if (known?.other.table && known.shared >= goodPart(sequence, known.other)) return true;
    return this.#running.some((other) => {
      const least = goodPart(sequence, other);
      // A look at one token spares most comparisons.
      if (least === Number.POSITIVE_INFINITY || sequence.tokenIds[least - 1] !== other.tokenIds[least - 1])
        return false;
      const shared = sharedTokens(sequence, other);
      if (shared < least) return false;
      this.#awaited.set(sequence, { other, shared });
      return true;
    });
  }

  /** The next pass: the oldest pending prefill and others like it, or everything that decodes. */
  #choose(): Sequence[] {
    const oldest = this.#running.find((sequence) => sequence.pendingTokens > 1) ?? this.#running[0];
    if (!oldest) return [];
    const samePolicy = this.#running.filter((sequence) => sequence.policy === oldest.policy);
    if (oldest.pendingTokens === 1) return this.#fitting(samePolicy.filter(({ pendingTokens }) => pendingTokens === 1));
    // Similar lengths share a pass, since all are padded to the longest.
    const length = Math.min(oldest.pendingTokens, this.#options.maxPrefillTokens);
    const alike = samePolicy.filter(({ pendingTokens }) => pendingTokens <= length && pendingTokens * 2 > length);
    return [oldest, ...alike.filter((sequence) => sequence !== oldest)].slice(
      0,
      Math.max(1, Math.floor(this.#options.maxPrefillTokens / length)),
    );
  }

  /** As many, the oldest first, as can lie side by side at equal length in the room that the cache itself takes. */
  #fitting(sequences: readonly Sequence[]): Sequence[] {
    let longest = 0;
    const end = sequences.findIndex(({ tokenIds }, i) => {
      longest = Math.max(longest, tokenIds.length);
      return i > 0 && (i + 1) * longest > this.#cache.capacityTokens;
    });
    return sequences.slice(0, end < 0 ? sequences.length : end);
  }

  #chunk(sequence: Sequence): Chunk {
    const start = sequence.computedTokens;
    const tokenIds = sequence.tokenIds.slice(start, start + this.#options.maxPrefillTokens);
    const isLast = start + tokenIds.length === sequence.tokenIds.length;
    const rows = isLast ? [{ ...sequence.requestRow(), at: tokenIds.length - 1 }] : [];
    return { table: sequence.table!, start, tokenIds, rows };
  }

  async #sample(sequence: Sequence, row: RowResult, onToken: StepListener): Promise<void> {
    const known_V = row.logprobs_V?.subarray(0, this.#runner.vocabSize) ?? null;
    const { tokenId, logprob } = sequence.choose(row, this.#scratch_V);
    sequence.append(tokenId, logprob, known_V);
    if (sequence.isConstrained && !sequence.stopCause) await this.#follow(sequence);
    this.counters.sampledTokens++;
    if (sequence.stopCause || sequence.failure) this.#remove(sequence);
    onToken(sequence);
  }

  /** What goes wrong in one sequence's constraint ends that sequence alone. */
  async #follow(sequence: Sequence): Promise<void> {
    try {
      await sequence.follow();
    } catch (cause) {
      sequence.failure =
        cause instanceof ArtError ? cause : new EngineError(`constraint: ${messageOf(cause)}`, { cause });
    }
  }

  #remove(sequence: Sequence): void {
    this.#waiting = this.#waiting.filter((candidate) => candidate !== sequence);
    this.#running = this.#running.filter((candidate) => candidate !== sequence);
    if (sequence.table) this.#cache.release(sequence.table);
    sequence.table = null;
    sequence.dispose();
  }
}

/** Tokens that both begin with, under the same policy. */
function sharedTokens(a: Sequence, b: Sequence): number {
  return a.policy === b.policy ? commonPrefix(a.tokenIds, b.tokenIds) : 0;
}

/** Tokens to begin with in common so that `other` is yet to compute a quarter of what the sequence needs; Infinity if it computes none. */
function goodPart(sequence: Sequence, other: Sequence): number {
  if (other.pendingTokens <= 1) return Number.POSITIVE_INFINITY;
  return other.computedTokens + Math.ceil((sequence.tokenIds.length - other.computedTokens) / 4);
}
