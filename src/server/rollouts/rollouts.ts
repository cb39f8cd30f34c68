/**
 * The rollouts that a model's server collects: which calls belong together, how each ended, and whether it was trained. Layer 5.
 * An agent needs no SDK for that: it names the rollout in its calls, and whoever judges it posts the reward.
 */
import { hash } from 'node:crypto';
import { ConfigError } from '../../core/errors.ts';
import { refuse } from '../../wire/errors.ts';
import type { RolloutState } from '../../wire/rollouts.ts';
import type { StoredCompletion } from '../inference/served-model.ts';
import type { RolloutOutcome } from './completion-log.ts';

export interface RolloutLimits {
  /** Time without a call after which an open rollout is given up, milliseconds; default an hour. */
  readonly idleMs?: number;
  /** Open rollouts; of more than that those without a call for longest are given up. Default 10,000. */
  readonly maxOpen?: number;
  /** Calls of one rollout; default 4,096. */
  readonly maxCalls?: number;
  /** Rollouts that are remembered at all; the oldest that are trained or given up are forgotten first. Default 100,000. */
  readonly maxKept?: number;
}

/** One sampled turn of a rollout; `segment` of the log that holds it, null where it is in memory alone. */
export interface CallKey {
  readonly completionId: string;
  readonly choiceIndex: number;
  readonly segment: number | null;
}

export interface Rollout {
  readonly id: string;
  readonly state: RolloutState;
  readonly startedAt: number;
  readonly lastCallAt: number;
  readonly calls: readonly CallKey[];
  readonly outcome: RolloutOutcome | null;
  readonly trainedStep: number | null;
}

/** Where the book reads turns and keeps what happens. */
export interface RolloutStorage {
  readonly read: (key: CallKey) => StoredCompletion | undefined;
  /** Resolves when it is on the disk. */
  readonly keepOutcome: (id: string, outcome: RolloutOutcome) => Promise<void>;
  readonly keepTrained: (ids: readonly string[], step: number) => void;
  readonly keepExpired: (id: string) => void;
  readonly keepCaptured: (id: string) => void;
}

type Entry = { -readonly [K in keyof Rollout]: Rollout[K] } & {
  calls: CallKey[];
  /** Seed and ids of the turns, as hashes: what was asked for twice. */
  readonly seen: Set<string>;
  /** A `train` call has it. */
  isReserved: boolean;
  /** An earlier process sampled its first turns, and nothing has asked for them yet. */
  isRecalled: boolean;
};

const sweepMs = 30_000;

export class RolloutBook {
  readonly #limits: Required<RolloutLimits>;
  readonly #storage: RolloutStorage;
  readonly #entries = new Map<string, Entry>();
  #open = 0;
  #expired = 0;
  #sweep: NodeJS.Timeout | null = null;

  constructor(limits: RolloutLimits, storage: RolloutStorage) {
    this.#limits = { idleMs: 3_600_000, maxOpen: 10_000, maxCalls: 4096, maxKept: 100_000, ...limits };
    for (const [name, value] of Object.entries(this.#limits)) {
      if (!(value > 0)) throw new ConfigError(`rollouts: ${name} must be above 0, got ${value}`);
    }
    this.#storage = storage;
  }

  /** Open rollouts, and those that were given up since the start. */
  get counts(): { readonly open: number; readonly expired: number } {
    return { open: this.#open, expired: this.#expired };
  }

  /** Throws ApiError 409 if the rollout takes no more calls, 429 if it has too many. */
  admit(id: string): void {
    const entry = this.#entries.get(id);
    if (entry === undefined) return;
    if (entry.state !== 'open') {
      const message = `rollout ${id}: must be open to take calls, is ${entry.state}; begin another one`;
      throw refuse(409, `rollout_${entry.state}`, message);
    }
    const { maxCalls } = this.#limits;
    if (entry.calls.length >= maxCalls) {
      throw refuse(429, 'rollout_too_long', `rollout ${id}: must have at most ${maxCalls} calls, got one more`);
    }
  }

  /** Adds a turn. The same turn asked for again, with the same seed, because its answer was lost, counts once. */
  add(id: string, key: CallKey, { record, call }: StoredCompletion, isRecalled: boolean = false): void {
    const at = call?.sampledAt ?? Date.now();
    let entry = this.#entries.get(id);
    if (entry === undefined) {
      const times = { startedAt: at, lastCallAt: at };
      entry = {
        id,
        state: 'open',
        ...times,
        calls: [],
        outcome: null,
        trainedStep: null,
        seen: new Set(),
        isReserved: false,
        isRecalled,
      };
      this.#entries.set(id, entry);
      this.#open += 1;
    }
    const sampled = [
      call?.seed,
      record.choiceIndex,
      record.policyStep,
      record.promptIds.length,
      record.tokenIds,
    ].join();
    const twin = hash('sha256', sampled, 'base64');
    if (entry.seen.has(twin)) return;
    entry.seen.add(twin);
    entry.calls.push(key);
    entry.lastCallAt = at;
    this.#scheduleSweep();
    if (this.#open > this.#limits.maxOpen) this.#expireIdlest(id);
    if (this.#entries.size > this.#limits.maxKept) this.#forgetOldest();
  }

  /** The turns of an open rollout that an earlier process sampled, once: its agent goes on with them. */
  takeRecalled(id: string): readonly StoredCompletion[] {
    const entry = this.#entries.get(id);
    if (entry === undefined || !entry.isRecalled) return [];
    entry.isRecalled = false;
    return this.turns(entry) ?? [];
  }

  /** Null if there is no such rollout. */
  get(id: string): Rollout | null {
    return this.#entries.get(id) ?? null;
  }

  /** Newest first. */
  list(filter: { readonly state?: RolloutState; readonly group?: string } = {}): readonly Rollout[] {
    return [...this.#entries.values()]
      .filter(({ state, outcome }) =>
        filter.state === undefined || filter.state === state
          ? filter.group === undefined || outcome?.group === filter.group
          : false,
      )
      .reverse();
  }

  /** The turns in the order they were sampled; null if not all of them are kept any more. */
  turns({ calls }: Rollout): readonly StoredCompletion[] | null {
    const turns = calls.map((key) => this.#storage.read(key));
    return turns.every((turn) => turn !== undefined) ? turns : null;
  }

  /**
   * Ends a rollout; it is on the disk when this resolves. The same outcome again is fine. Throws ApiError 404 for an unknown one, 409 if it
   * ended with another outcome (unless that is to be replaced, before it is trained) or was given up.
   */
  async finish(
    id: string,
    outcome: Omit<RolloutOutcome, 'finishedAt' | 'calls'>,
    isReplacing: boolean,
  ): Promise<Rollout> {
    const entry = this.#entries.get(id);
    if (entry === undefined) throw unknownRollout(id);
    const { outcome: old } = entry;
    if (old !== null) {
      if (isSame(old, outcome)) {
        await this.#storage.keepOutcome(id, old); // The first answer may have been lost before this was on the disk.
        return entry;
      }
      if (!isReplacing || entry.state !== 'finished' || entry.isReserved) {
        const mend = entry.state === 'trained' ? 'it is trained already' : 'send replace: true to change it';
        throw refuse(
          409,
          'rollout_finished',
          `rollout ${id}: ended with reward ${old.reward}, got another outcome; ${mend}`,
        );
      }
    } else if (entry.state !== 'open') {
      const reason = entry.state === 'captured' ? 'a client has taken its turns' : 'was given up; roll out again';
      throw refuse(409, `rollout_${entry.state}`, `rollout ${id}: must be open to get a reward, ${reason}`);
    }
    const whole = { ...outcome, finishedAt: Date.now(), calls: entry.calls.length };
    this.#end(entry, whole);
    try {
      await this.#storage.keepOutcome(id, whole);
    } catch (error) {
      if (entry.outcome === whole) this.#reopen(entry, old);
      throw error;
    }
    return entry;
  }

  /**
   * Hands the turns to a client, which scores and trains them itself: the rollout takes no more calls and no reward. Again it gives the same.
   * Throws ApiError 404 for an unknown one, 409 if it has ended otherwise or its turns are not all kept.
   */
  capture(id: string): readonly StoredCompletion[] {
    const entry = this.#entries.get(id);
    if (entry === undefined) throw unknownRollout(id);
    if (entry.state !== 'open' && entry.state !== 'captured') {
      throw refuse(409, `rollout_${entry.state}`, `rollout ${id}: must be open to be captured, is ${entry.state}`);
    }
    const turns = this.turns(entry);
    if (turns === null) {
      const message = `rollout ${id}: must be kept whole to be captured, some of its turns are not; roll out again`;
      throw refuse(409, 'rollout_expired', message);
    }
    if (entry.state === 'open') {
      this.#markCaptured(entry);
      this.#storage.keepCaptured(id);
    }
    return turns;
  }

  /** Holds rollouts for one `train` call until `release`. They must be finished and held by nobody. */
  reserve(ids: readonly string[]): void {
    for (const id of ids) this.#entries.get(id)!.isReserved = true;
  }

  isReserved(id: string): boolean {
    return this.#entries.get(id)?.isReserved === true;
  }

  release(ids: readonly string[]): void {
    for (const id of ids) {
      const entry = this.#entries.get(id);
      if (entry !== undefined) entry.isReserved = false;
    }
  }

  /** The step that trained them is committed. */
  markTrained(ids: readonly string[], step: number): void {
    const changed = ids.filter((id) => this.#entries.get(id)?.trainedStep !== step);
    if (changed.length === 0) return;
    this.recallTrained(changed, step);
    this.#storage.keepTrained(changed, step);
  }

  recallOutcome(id: string, outcome: RolloutOutcome): void {
    const entry = this.#entries.get(id);
    if (entry === undefined) return;
    this.#end(entry, outcome);
    if (entry.calls.length !== outcome.calls) entry.state = 'expired'; // The log dropped the rest.
  }

  recallTrained(ids: readonly string[], step: number): void {
    for (const id of ids) {
      const entry = this.#entries.get(id);
      if (entry === undefined) continue;
      if (entry.state === 'open') this.#open -= 1;
      entry.state = 'trained';
      entry.trainedStep = step;
    }
  }

  recallExpired(id: string): void {
    const entry = this.#entries.get(id);
    if (entry?.state === 'open') this.#expire(entry);
  }

  recallCaptured(id: string): void {
    const entry = this.#entries.get(id);
    if (entry?.state === 'open') this.#markCaptured(entry);
  }

  /** Turns of this segment are gone: rollouts that need them for training are given up. */
  forget(segment: number): void {
    for (const [id, entry] of this.#entries) {
      if (!entry.calls.some((call) => call.segment === segment)) continue;
      if (entry.state === 'open') this.#open -= 1;
      if (entry.state === 'open' || entry.state === 'finished') this.#expired += 1;
      this.#entries.delete(id);
    }
  }

  close(): void {
    if (this.#sweep !== null) clearInterval(this.#sweep);
    this.#sweep = null;
  }

  #end(entry: Entry, outcome: RolloutOutcome): void {
    if (entry.state === 'open') this.#open -= 1;
    entry.state = 'finished';
    entry.outcome = outcome;
    entry.seen.clear();
  }

  #reopen(entry: Entry, old: RolloutOutcome | null): void {
    entry.outcome = old;
    if (old !== null) return;
    entry.state = 'open';
    this.#open += 1;
  }

  #expire(entry: Entry): void {
    entry.state = 'expired';
    entry.seen.clear();
    this.#open -= 1;
    this.#expired += 1;
  }

  #markCaptured(entry: Entry): void {
    entry.state = 'captured';
    entry.seen.clear();
    this.#open -= 1;
  }

  #giveUp(entry: Entry): void {
    this.#expire(entry);
    this.#storage.keepExpired(entry.id);
  }

  /** What has been silent for too long, now and then. */
  #scheduleSweep(): void {
    this.#sweep ??= setInterval(() => this.sweep(), Math.min(sweepMs, this.#limits.idleMs)).unref();
  }

  /** Gives up what had no call for longer than allowed. */
  sweep(now: number = Date.now()): void {
    for (const entry of this.#entries.values()) {
      if (entry.state === 'open' && now - entry.lastCallAt > this.#limits.idleMs) this.#giveUp(entry);
    }
  }

  #expireIdlest(keptId: string): void {
    let idlest: Entry | null = null;
    for (const entry of this.#entries.values()) {
      if (entry.state !== 'open' || entry.id === keptId) continue;
      if (idlest === null || entry.lastCallAt < idlest.lastCallAt) idlest = entry;
    }
    if (idlest !== null) this.#giveUp(idlest);
  }

  #forgetOldest(): void {
    for (const [id, { state }] of this.#entries) {
      if (state === 'open' || state === 'finished') continue;
      this.#entries.delete(id);
      return;
    }
  }
}

export function unknownRollout(id: string): Error {
  return refuse(404, 'rollout_not_found', `rollout ${id}: must be one that has at least one call, got none`);
}

function isSame(
  stored: RolloutOutcome,
  { reward, metrics, metadata, group }: Omit<RolloutOutcome, 'finishedAt' | 'calls'>,
): boolean {
  const sorted = (fields: object): string =>
    JSON.stringify(Object.entries(fields).sort(([a], [b]) => (a < b ? -1 : 1)));
  return (
    stored.reward === reward &&
    stored.group === group &&
    sorted(stored.metrics) === sorted(metrics) &&
    sorted(stored.metadata) === sorted(metadata)
  );
}
