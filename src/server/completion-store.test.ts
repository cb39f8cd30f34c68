import { expect, test } from 'vitest';
import { ConfigError } from '../core/errors.ts';
import { createCompletionStore } from './completion-store.ts';
import type { CompletionRecord } from './served-model.ts';

function record(completionId: string, tokens: number): CompletionRecord {
  const tokenIds = Array.from({ length: tokens }, (_, index) => index);
  return {
    completionId,
    choiceIndex: 0,
    policyStep: 0,
    promptIds: [],
    tokenIds,
    logprobs: tokenIds,
    temperature: 1,
    finishReason: 'stop',
  };
}

test('the oldest records are dropped when the limit is passed, never the newest', () => {
  const store = createCompletionStore({ maxTokens: 10 });
  for (const id of ['a', 'b', 'c']) store.put(record(id, 4));
  expect(['a', 'b', 'c'].map((id) => store.get(id, 0)?.completionId)).toEqual([undefined, 'b', 'c']);
  store.put(record('large', 100));
  expect(store.get('c', 0)).toBeUndefined();
  expect(store.get('large', 0)?.tokenIds.length).toBe(100);
});

test('a record put again replaces the first', () => {
  const store = createCompletionStore({ maxTokens: 10 });
  for (let i = 0; i < 5; i++) store.put(record('a', 4));
  store.put(record('b', 6));
  expect(store.get('a', 0)?.tokenIds.length).toBe(4);
});

test('the limit must be a positive integer', () => {
  expect(() => createCompletionStore({ maxTokens: 0 })).toThrow(ConfigError);
});
