/** Bounded memory of what the policy sampled: the only source of training tokens. Layer 5. */
import { ConfigError } from '../core/errors.ts';
import type { CompletionRecord, CompletionStore } from './served-model.ts';

export interface CompletionStoreOptions {
  /** Token ids kept, prompts included; default 16,777,216, at most about 256 MB. The oldest records are dropped first. */
  readonly maxTokens?: number;
}

/** An in-memory store. A record larger than the limit is kept until the next one comes. */
export function createCompletionStore(options: CompletionStoreOptions = {}): CompletionStore {
  const maxTokens = options.maxTokens ?? 2 ** 24;
  if (!Number.isSafeInteger(maxTokens) || maxTokens < 1) {
    throw new ConfigError(`completion store: maxTokens must be a positive integer, got ${maxTokens}`);
  }
  const records = new Map<string, CompletionRecord>();
  let tokens = 0;
  const remove = (key: string): void => {
    const record = records.get(key);
    if (record === undefined) return;
    tokens -= sizeOf(record);
    records.delete(key);
  };
  return {
    put: (record) => {
      const key = keyOf(record.completionId, record.choiceIndex);
      remove(key);
      records.set(key, record);
      tokens += sizeOf(record);
      for (const oldest of records.keys()) {
        if (tokens <= maxTokens || oldest === key) break;
        remove(oldest);
      }
    },
    get: (completionId, choiceIndex) => records.get(keyOf(completionId, choiceIndex)),
  };
}

function keyOf(completionId: string, choiceIndex: number): string {
  return `${choiceIndex}/${completionId}`;
}

function sizeOf(record: CompletionRecord): number {
  return record.promptIds.length + record.tokenIds.length;
}
