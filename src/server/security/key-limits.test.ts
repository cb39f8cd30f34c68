import { expect, test } from 'vitest';
import { ApiError } from '../../core/errors.ts';
import { createKeyLimits } from './key-limits.ts';
import type { StoredKey } from './keys.ts';

const keyOf = (requests_per_minute: number, max_concurrent: number, id = 'a'): StoredKey => ({
  id,
  name: id,
  scopes: ['infer'],
  sha256: '',
  created_at: '',
  expires_at: null,
  revoked_at: null,
  requests_per_minute,
  max_concurrent,
});

function retryAfter(work: () => unknown): string {
  try {
    work();
  } catch (error) {
    if (error instanceof ApiError && error.status === 429) return String(error.details.retryAfter);
    throw error;
  }
  throw new Error('was not refused');
}

test('a burst, then the rate: the refusal says when to come back', () => {
  let now = 0;
  const limits = createKeyLimits(() => now);
  const key = keyOf(60, 100);
  for (let i = 0; i < 10; i++) limits.enter(key)();
  expect(retryAfter(() => limits.enter(key))).toBe('1');
  limits.enter(keyOf(60, 100, 'b'))();
  now = 999;
  expect(retryAfter(() => limits.enter(key))).toBe('1');
  now = 1_000;
  limits.enter(key)();
  expect(retryAfter(() => limits.enter(key))).toBe('1');
  now = 3_600_000;
  for (let i = 0; i < 10; i++) limits.enter(key)();
  expect(retryAfter(() => limits.enter(key))).toBe('1');
  const slow = keyOf(1, 100, 'slow');
  limits.enter(slow)();
  expect(retryAfter(() => limits.enter(slow))).toBe('60');
});

test('places at the same time come back when the answer is complete, each once', () => {
  const limits = createKeyLimits(() => 0);
  const key = keyOf(6_000, 2);
  const leave = limits.enter(key);
  limits.enter(key);
  expect(retryAfter(() => limits.enter(key))).toBe('1');
  leave();
  leave();
  limits.enter(key);
  expect(retryAfter(() => limits.enter(key))).toBe('1');
});
