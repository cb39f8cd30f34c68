import { mkdtemp, rename, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { ConfigError } from '../../core/errors.ts';
import type { CompletionRecord, CompletionStore } from '../inference/served-model.ts';
import { createStoragePolicy } from '../security/storage-policy.ts';
import { type CompletionStoreOptions, createCompletionStore, openCompletionStore } from './completion-store.ts';

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

describe('on disk', () => {
  let directory = '';
  let opened: CompletionStore[] = [];
  let warnings: string[] = [];
  beforeEach(async () => {
    directory = await mkdtemp(join(tmpdir(), 'art-completions-'));
    opened = [];
    warnings = [];
  });
  afterEach(async () => {
    for (const store of opened) await store.close();
    await rm(directory, { recursive: true });
  });
  const open = async (options: CompletionStoreOptions = {}): Promise<CompletionStore> => {
    const store = await openCompletionStore(directory, options, (message) => warnings.push(message));
    opened.push(store);
    return store;
  };

  test('what was sampled is found by the next process, exactly: ids, logprobs of any value, temperature', async () => {
    const sampled: CompletionRecord = {
      ...record('a', 3),
      choiceIndex: 2,
      promptIds: [0, 70_000, 2 ** 31 - 1],
      logprobs: [Math.fround(-0.1), -0.1, -1e-40],
      temperature: 0.7,
      policyStep: 12,
      finishReason: 'length',
    };
    const store = await open();
    store.put(sampled);
    store.put({ ...sampled, completionId: 'single', logprobs: [-0.5, Math.fround(-0.1), -0] });
    // No close: the process was killed.
    const again = await open();
    expect(again.get('a', 2)).toEqual(sampled);
    expect(again.get('single', 2)?.logprobs).toEqual([-0.5, Math.fround(-0.1), -0]);
    expect(again.get('a', 0)).toBeUndefined();
  });

  test('what no longer fits into memory is read from the disk; what the log dropped is gone', async () => {
    const store = await open({ maxTokens: 100, maxLogBytes: 20_000 });
    for (let index = 0; index < 100; index++) store.put(record(`c${index}`, 40));
    expect(store.get('c99', 0)).toEqual(record('c99', 40));
    expect(store.get('c70', 0)).toEqual(record('c70', 40));
    expect(store.get('c0', 0)).toBeUndefined();
  });

  test('a log that cannot be written does not stop the sampling, is warned of once, and is used again later', async () => {
    const store = await open({ maxLogBytes: 8000 });
    store.put(record('kept', 4));
    // A segment cannot be made where its folder is gone.
    await rename(directory, `${directory}.away`);
    for (let index = 0; index < 20; index++) store.put(record(`c${index}`, 40));
    expect(store.get('c19', 0)?.tokenIds).toHaveLength(40);
    expect(warnings).toHaveLength(1);
    expect(warnings[0]).toContain('completions: are kept in memory alone until their log can be written again: ENOENT');
    const call = {
      rolloutId: 'r',
      startedAt: 0,
      sampledAt: 0,
      seed: 1,
      promptKey: '',
      messages: [],
      tools: [],
      reply: { role: 'assistant', content: '' },
    } as const;
    store.put(record('turn', 4), { readText: () => '', call });
    const outcome = { reward: 1, metrics: {}, metadata: {}, group: null };
    // A reward is not taken unless it is kept, and can be sent again.
    await expect(store.rollouts.finish('r', outcome, false)).rejects.toThrow('ENOENT');
    expect(store.rollouts.get('r')?.state).toBe('open');
    await rename(`${directory}.away`, directory);
    expect((await store.rollouts.finish('r', outcome, false)).state).toBe('finished');
    store.put(record('later', 4));
    const again = await open({ maxLogBytes: 8000 });
    expect(again.get('later', 0)?.completionId).toBe('later');
  });

  test('text that may not be stored stays in memory', async () => {
    const storagePolicy = createStoragePolicy({ redact: true });
    const store = await open({ storagePolicy });
    store.put(record('mail', 4), { readText: () => 'write to jane@example.org', call: null });
    store.put(record('plain', 4), { readText: () => 'write to her', call: null });
    expect(store.get('mail', 0)).toBeDefined();
    const again = await open({ storagePolicy });
    expect([again.get('mail', 0), again.get('plain', 0)?.completionId]).toEqual([undefined, 'plain']);
  });
});
