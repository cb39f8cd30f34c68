import { expect, test } from 'vitest';
import { AbortedError, ConfigError } from '../core/errors.ts';
import { limitConcurrency } from './limit-concurrency.ts';
import { type RetryOptions, retry } from './retry.ts';

const sleep = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms));

function failTimes(
  count: number,
  error: unknown = new Error('busy'),
): { work: (x: number) => number; calls: () => number } {
  let calls = 0;
  const work = (x: number): number => {
    if (calls++ < count) throw error;
    return x * 2;
  };
  return { work, calls: () => calls };
}

test('calls again with the same arguments, with longer waits each time', async () => {
  const { work, calls } = failTimes(3);
  const attempts: number[] = [];
  const startedAt = performance.now();
  const options = { maxAttempts: 4, delayMs: 10, onRetry: (_: unknown, attempt: number) => attempts.push(attempt) };
  expect(await retry(work, options)(21)).toBe(42);
  expect(calls()).toBe(4);
  expect(attempts).toEqual([1, 2, 3]);
  expect(performance.now() - startedAt).toBeGreaterThan(60);
});

test('the last failure is thrown as it is, and what is not worth a retry at once', async () => {
  const error = new TypeError('broken');
  const always = failTimes(9, error);
  await expect(retry(always.work, { maxAttempts: 2, delayMs: 0 })(1)).rejects.toBe(error);
  expect(always.calls()).toBe(2);
  const once = failTimes(9, error);
  await expect(retry(once.work, { retryOn: (failure) => !(failure instanceof TypeError) })(1)).rejects.toBe(error);
  expect(once.calls()).toBe(1);
  const aborted = failTimes(9, new AbortedError('told to stop'));
  await expect(retry(aborted.work)(1)).rejects.toThrow('told to stop');
  expect(aborted.calls()).toBe(1);
});

test('the signal ends the wait between two attempts', async () => {
  const controller = new AbortController();
  const { work, calls } = failTimes(9);
  setTimeout(() => controller.abort(), 10);
  const error = await retry(work, { delayMs: 60_000, maxDelayMs: 60_000, signal: controller.signal })(1).catch(
    (e: unknown) => e,
  );
  expect(error).toBeInstanceOf(AbortedError);
  expect(error).toMatchObject({ cause: { message: 'busy' } });
  expect(calls()).toBe(1);
});

test('senseless options are refused', () => {
  expect(() => retry(() => 1, { maxAttempts: 0 })).toThrow(ConfigError);
  expect(() => retry(() => 1, { delayMs: -1 })).toThrow(ConfigError);
  expect(() => retry(() => 1, { attempts: 3 } as RetryOptions)).toThrow(/got attempts$/);
  expect(() => limitConcurrency(() => 1, 0)).toThrow(ConfigError);
});

test('a limit holds over all callers, for each key on its own', async () => {
  const running = new Map<string, number>();
  const most = new Map<string, number>();
  const work = limitConcurrency(
    async (key: string, fails: boolean) => {
      const now = (running.get(key) ?? 0) + 1;
      running.set(key, now);
      most.set(key, Math.max(now, most.get(key) ?? 0));
      await sleep(2);
      running.set(key, now - 1);
      if (fails) throw new Error(key);
      return key;
    },
    2,
    { deriveKey: (key) => key },
  );
  const calls = Array.from({ length: 12 }, (_, i) => work(i % 3 === 0 ? 'a' : 'b', i === 5).catch(() => 'failed'));
  expect((await Promise.all(calls)).filter((result) => result === 'failed')).toHaveLength(1);
  expect([...most.values()]).toEqual([2, 2]);
});
