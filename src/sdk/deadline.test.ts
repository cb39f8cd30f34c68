import { expect, test } from 'vitest';
import { AbortedError } from '../core/errors.ts';
import { withDeadline } from './deadline.ts';

const never = new Promise<never>(() => {});

test('a wait past its limit throws AbortedError that names what was waited for, even when the work ignores its signal', async () => {
  const wait = withDeadline({ what: 'start of the engine', timeoutMs: 10 }, () => never);
  await expect(wait).rejects.toThrow(AbortedError);
  await expect(wait).rejects.toMatchObject({
    message: 'start of the engine: nothing within 10 ms',
    details: { isDeadline: true },
  });
});

test("the caller's signal ends the wait with its reason as cause", async () => {
  const controller = new AbortController();
  const wait = withDeadline({ what: 'x', timeoutMs: 0, signal: controller.signal }, () => never);
  controller.abort('stop');
  await expect(wait).rejects.toMatchObject({ message: 'x: aborted by the caller', cause: 'stop' });
});

test('work does not start on a signal that has already fired', async () => {
  let isStarted = false;
  const wait = withDeadline({ what: 'x', timeoutMs: 0, signal: AbortSignal.abort() }, async () => {
    isStarted = true;
  });
  await expect(wait).rejects.toThrow(AbortedError);
  expect(isStarted).toBe(false);
});

test('restart sets the clock back', async () => {
  const sleep = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms));
  const wait = withDeadline({ what: 'x', timeoutMs: 200 }, async (_signal, restart) => {
    for (let i = 0; i < 5; i++) {
      await sleep(60);
      restart();
    }
    return 'done';
  });
  await expect(wait).resolves.toBe('done');
});
