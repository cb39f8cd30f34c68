import { expect, test } from 'vitest';
import { ConfigError } from './errors.ts';
import { defaultTrainConfig, lossDefaults, resolveLoss, type TrainConfig } from './train-config.ts';
import { checkTrainConfig, learningRateAt } from './train-config-rules.ts';

const check = (init: Partial<TrainConfig>) => () => checkTrainConfig({ ...defaultTrainConfig, ...init });

test('losses stand for what their papers say', () => {
  expect(resolveLoss(defaultTrainConfig)).toEqual({
    surrogate: 'cispo',
    clip: { low: 0, high: 5 },
    advantage: 'groupStd',
    lengthNormalization: 'part',
  });
  expect(lossDefaults.dapo).toMatchObject({
    surrogate: 'ppo',
    clip: { low: 0.2, high: 0.28 },
    lengthNormalization: 'token',
  });
  expect(lossDefaults.grpo).toMatchObject({
    surrogate: 'ppo',
    advantage: 'groupStd',
    lengthNormalization: 'trajectory',
  });
  expect(lossDefaults.drGrpo).toMatchObject({ advantage: 'groupCenter', lengthNormalization: 'constant' });
  expect(lossDefaults.gspo).toMatchObject({ surrogate: 'gspo', clip: { low: 3e-4, high: 4e-4 } });
  const own = { loss: 'dapo', clipHigh: 0.5, advantage: 'leaveOneOut', lengthNormalization: 'trajectory' } as const;
  expect(resolveLoss({ ...defaultTrainConfig, ...own })).toEqual({
    surrogate: 'ppo',
    clip: { low: 0.2, high: 0.5 },
    advantage: 'leaveOneOut',
    lengthNormalization: 'trajectory',
  });
});

test('every loss is usable with what it needs, and the default configuration as it is', () => {
  expect(check({})).not.toThrow();
  for (const loss of Object.keys(lossDefaults) as (keyof typeof lossDefaults)[]) {
    expect(check({ loss, maxCompletionTokens: loss === 'drGrpo' ? 100 : null })).not.toThrow();
  }
});

test.each<[string, Partial<TrainConfig>, RegExp]>([
  ['constant without its divisor', { loss: 'drGrpo' }, /maxCompletionTokens: lengthNormalization 'constant' needs it/],
  ['a divisor that nothing reads', { maxCompletionTokens: 9 }, /maxCompletionTokens: is read by .* alone, got 9/],
  ['a buffer without an end', { overlong: { mask: false, bufferTokens: 4 } }, /overlong.bufferTokens needs it/],
  [
    'a buffer beyond the end',
    { overlong: { mask: false, bufferTokens: 4 }, maxCompletionTokens: 3 },
    /must be at most maxCompletionTokens, got 4 of 3/,
  ],
  ['overlong that does nothing', { overlong: { mask: false, bufferTokens: 0 } }, /overlong: must mask or/],
  ['a clip of what is not clipped', { loss: 'importanceSampling', clipHigh: 1 }, /importanceSampling clips nothing/],
  ['a clip range upside down', { clipLow: 6 }, /clipLow: must be at most clipHigh with loss cispo, got 6 and 5/],
  ['a mask upside down', { sequenceMask: [2, 1] }, /sequenceMask: must be \[smallest, largest\], got \[2, 1\]/],
  [
    'a decay without an end',
    { learningRateSchedule: { decay: 'cosine', warmupSteps: 0, totalSteps: null } },
    /totalSteps: must be the policy steps of the whole run/,
  ],
  [
    'a warm-up longer than the run',
    { learningRateSchedule: { decay: 'linear', warmupSteps: 9, totalSteps: 4 } },
    /warmupSteps: must be at most totalSteps, got 9 of 4/,
  ],
])('refused: %s', (_, init, message) => {
  expect(check(init)).toThrow(ConfigError);
  expect(check(init)).toThrow(message);
});

test('the rate follows from the step alone, and a schedule that has ended is refused', () => {
  const schedule = { decay: 'linear', warmupSteps: 1, totalSteps: 5 } as const;
  const rateAt = (step: number): number => learningRateAt({ learningRate: 4, learningRateSchedule: schedule }, step);
  expect([0, 1, 2, 3, 4].map(rateAt)).toEqual([2, 4, 3, 2, 1]);
  expect(() => rateAt(5)).toThrow(/the run is at step 5, where a schedule of 5 steps has come to rate 0/);
  expect(learningRateAt({ learningRate: 4, learningRateSchedule: null }, 99)).toBe(4);
  const still = { decay: 'constant', warmupSteps: 3, totalSteps: null } as const;
  expect([0, 3, 99].map((step) => learningRateAt({ learningRate: 4, learningRateSchedule: still }, step))).toEqual([
    1, 4, 4,
  ]);
});
