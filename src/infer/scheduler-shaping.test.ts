/** Settings that shift or forbid tokens, through scheduler and model. */
import { beforeAll, expect, test } from 'vitest';
import { createHarness, type Harness, request, runAlone, shapings } from '../../test/scheduler-harness.ts';
import type { Sequence } from './sequence.ts';

let solo: Harness;
beforeAll(async () => {
  solo = await createHarness();
});

test('what shifts or forbids tokens changes what is drawn, not the distribution whose logprobs are recorded', async () => {
  const plain = await runAlone(solo, request({ maxTokens: 40 }));
  for (const shaping of shapings.filter((settings) => Object.keys(settings).length > 0 && !settings.minTokens)) {
    const { tokenIds, logprobs } = await runAlone(solo, request({ maxTokens: 40, ...shaping }));
    expect(tokenIds).not.toEqual(plain.tokenIds);
    expect((await solo.scheduler.score(tokenIds, 1, 1))!.slice(20)).toEqual(logprobs);
  }
  const banned = await runAlone(
    solo,
    request({ temperature: 0, maxTokens: 40, frequencyPenalty: 2, presencePenalty: 2 }),
  );
  const greedy = await runAlone(solo, request({ temperature: 0, maxTokens: 40 }));
  const distinct = ({ tokenIds }: Sequence): number => new Set(tokenIds.slice(20)).size;
  expect(distinct(banned)).toBeGreaterThan(2 * distinct(greedy));
});

test('neither stop token nor stop string ends a sequence before its minimum length', async () => {
  const every = Array.from({ length: 64 }, (_, id) => id);
  const stops = {
    stopTokenIds: every.slice(0, 32),
    stopStrings: every.slice(32).map((id) => String.fromCharCode(65 + id)),
  };
  const early = await runAlone(solo, request(stops));
  expect([early.logprobs.length, early.stopCause]).toEqual([1, 'stop']);
  const late = await runAlone(solo, request({ ...stops, minTokens: 6 }));
  expect([late.logprobs.length, late.stopCause]).toEqual([6, 'stop']);
  // Only tokens of stop strings are left before.
  expect(late.tokenIds.slice(20, 25).every((id) => id >= 32)).toBe(true);
});
