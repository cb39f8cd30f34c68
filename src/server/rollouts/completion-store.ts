/**
 * What the policy sampled: the only source of training tokens. Layer 5.
 * The newest turns are in memory; a run also keeps them in a log on disk, so that trajectories can be trained after a restart.
 */
import { ConfigError, messageOf } from '../../core/errors.ts';
import { toStorageError } from '../../formats/atomic-files.ts';
import type {
  CompletionRecord,
  CompletionSource,
  CompletionStore,
  StoredCompletion,
} from '../inference/served-model.ts';
import { createStoragePolicy, type StoragePolicy } from '../security/storage-policy.ts';
import {
  formatCaptured,
  formatCompletion,
  formatExpired,
  formatOutcome,
  formatTrained,
  type LogLine,
  parseCompletion,
  parseLine,
  type RolloutOutcome,
} from './completion-log.ts';
import { type LineAddress, type LineLog, openLineLog } from './line-log.ts';
import { type CallKey, RolloutBook, type RolloutLimits } from './rollouts.ts';

export interface CompletionStoreOptions {
  /** Token ids kept in memory, prompts included; default 16,777,216, at most about 256 MB. The oldest records are dropped first. */
  readonly maxTokens?: number;
  /** Size of the log on disk, bytes; default 268,435,456. The oldest eighth is dropped when it is full. */
  readonly maxLogBytes?: number;
  readonly rollouts?: RolloutLimits;
  /** Which turns may be written to the disk; default all. The others are in memory alone. */
  readonly storagePolicy?: StoragePolicy;
}

const defaultMaxTokens = 2 ** 24;
const defaultMaxLogBytes = 2 ** 28;

/** A store in memory alone. A record larger than the limit is kept until the next one comes. */
export function createCompletionStore(options: CompletionStoreOptions = {}): CompletionStore {
  return new Store(options, () => undefined);
}

/** A store that finds again what earlier processes kept in `directory`. Throws StorageError if nothing can be written there. */
export async function openCompletionStore(
  directory: string,
  options: CompletionStoreOptions,
  onWarning: (message: string) => void,
): Promise<CompletionStore> {
  const store = new Store(options, onWarning);
  const log = await openLineLog(
    {
      directory,
      maxBytes: options.maxLogBytes ?? defaultMaxLogBytes,
      onWarning,
      onDrop: (segment) => store.forget(segment),
    },
    (text, address) => store.recall(parseLine(text), address),
  );
  store.attach(log, directory);
  return store;
}

const noSource: CompletionSource = { readText: () => '', call: null };

class Store implements CompletionStore {
  readonly rollouts: RolloutBook;
  readonly #memory: Memory;
  readonly #policy: StoragePolicy;
  readonly #onWarning: (message: string) => void;
  /** Where each turn of the log is; a segment's turns stand together. */
  readonly #addresses = new Map<string, LineAddress>();
  #log: LineLog | null = null;
  #directory = '';
  #isLogFailing = false;

  constructor(options: CompletionStoreOptions, onWarning: (message: string) => void) {
    const { maxTokens = defaultMaxTokens, storagePolicy = createStoragePolicy() } = options;
    if (!Number.isSafeInteger(maxTokens) || maxTokens < 1) {
      throw new ConfigError(`completion store: maxTokens must be a positive integer, got ${maxTokens}`);
    }
    this.#memory = new Memory(maxTokens);
    this.#policy = storagePolicy;
    this.#onWarning = onWarning;
    this.rollouts = new RolloutBook(options.rollouts ?? {}, {
      read: ({ completionId, choiceIndex }) => this.#find(completionId, choiceIndex),
      keepOutcome: async (id, outcome) => {
        await this.#appendOrFail(formatOutcome(id, this.#storableOutcome(outcome)));
        await this.#log?.sync();
      },
      keepTrained: (ids, step) => this.#append(formatTrained(ids, step)),
      keepExpired: (id) => this.#append(formatExpired(id)),
      keepCaptured: (id) => this.#append(formatCaptured(id)),
    });
  }

  put(record: CompletionRecord, { readText, call }: CompletionSource = noSource): void {
    const stored: StoredCompletion = { record, call };
    if (call !== null) this.rollouts.admit(call.rolloutId);
    // The messages may hold what the template left out of the prompt.
    const readAll = (): string => `${readText()}\n${JSON.stringify([call?.messages, call?.tools, call?.reply])}`;
    const address = this.#policy.mayStoreTokens(readAll) ? this.#append(formatCompletion(stored)) : null;
    const key = keyOf(record.completionId, record.choiceIndex);
    this.#memory.put(key, stored);
    if (address !== null) this.#addresses.set(key, address);
    if (call !== null) this.rollouts.add(call.rolloutId, callKeyOf(stored, address), stored);
  }

  get(completionId: string, choiceIndex: number): CompletionRecord | undefined {
    return this.#find(completionId, choiceIndex)?.record;
  }

  async close(): Promise<void> {
    this.rollouts.close();
    await this.#log?.close();
    this.#log = null;
  }

  attach(log: LineLog, directory: string): void {
    this.#log = log;
    this.#directory = directory;
  }

  /** A line of an earlier process. */
  recall(line: LogLine, address: LineAddress): void {
    switch (line.kind) {
      case 'completion': {
        const { completionId, choiceIndex, rolloutId } = line;
        this.#addresses.set(keyOf(completionId, choiceIndex), address);
        if (rolloutId === null) return;
        const stored = parseCompletion(line);
        this.rollouts.add(rolloutId, callKeyOf(stored, address), stored, true);
        return;
      }
      case 'finished':
        this.rollouts.recallOutcome(line.rolloutId, line.outcome);
        return;
      case 'trained':
        this.rollouts.recallTrained(line.rolloutIds, line.step);
        return;
      case 'expired':
        this.rollouts.recallExpired(line.rolloutId);
        return;
      case 'captured':
        this.rollouts.recallCaptured(line.rolloutId);
    }
  }

  /** The log dropped its oldest segment. */
  forget(segment: number): void {
    for (const [key, address] of this.#addresses) if (address.segment === segment) this.#addresses.delete(key);
    this.rollouts.forget(segment);
  }

  #find(completionId: string, choiceIndex: number): StoredCompletion | undefined {
    const key = keyOf(completionId, choiceIndex);
    const inMemory = this.#memory.get(key);
    if (inMemory !== undefined) return inMemory;
    const address = this.#addresses.get(key);
    const text = address === undefined ? null : (this.#log?.read(address) ?? null);
    if (text === null) return undefined;
    const line = parseLine(text);
    if (line.kind !== 'completion') return undefined;
    const stored = parseCompletion(line);
    this.#memory.put(key, stored);
    return stored;
  }

  /** Metadata is text; what was sampled is kept or not as a whole. */
  #storableOutcome(outcome: RolloutOutcome): RolloutOutcome {
    return { ...outcome, metadata: this.#policy.isTextStored ? this.#policy.redact(outcome.metadata) : {} };
  }

  /** For what must not be answered before it is kept. Throws StorageError. */
  async #appendOrFail(text: string): Promise<void> {
    try {
      this.#log?.append(text);
    } catch (error) {
      throw await toStorageError(this.#directory, error);
    }
  }

  /** A log that cannot be written must not stop the sampling: what is in memory can still be trained. It is said once. */
  #append(text: string): LineAddress | null {
    if (this.#log === null) return null;
    try {
      const address = this.#log.append(text);
      this.#isLogFailing = false;
      return address;
    } catch (error) {
      const message = `completions: are kept in memory alone until their log can be written again: ${messageOf(error)}`;
      if (!this.#isLogFailing) this.#onWarning(message);
      this.#isLogFailing = true;
      return null;
    }
  }
}

/** The newest turns, as many as have so many token ids. */
class Memory {
  readonly #maxTokens: number;
  readonly #stored = new Map<string, StoredCompletion>();
  #tokens = 0;

  constructor(maxTokens: number) {
    this.#maxTokens = maxTokens;
  }

  get(key: string): StoredCompletion | undefined {
    return this.#stored.get(key);
  }

  put(key: string, stored: StoredCompletion): void {
    this.#remove(key);
    this.#stored.set(key, stored);
    this.#tokens += sizeOf(stored);
    for (const oldest of this.#stored.keys()) {
      if (this.#tokens <= this.#maxTokens || oldest === key) break;
      this.#remove(oldest);
    }
  }

  #remove(key: string): void {
    const stored = this.#stored.get(key);
    if (stored === undefined) return;
    this.#tokens -= sizeOf(stored);
    this.#stored.delete(key);
  }
}

function callKeyOf({ record }: StoredCompletion, address: LineAddress | null): CallKey {
  const { completionId, choiceIndex } = record;
  return { completionId, choiceIndex, segment: address?.segment ?? null };
}

function keyOf(completionId: string, choiceIndex: number): string {
  return `${choiceIndex}/${completionId}`;
}

function sizeOf({ record }: StoredCompletion): number {
  return record.promptIds.length + record.tokenIds.length;
}
