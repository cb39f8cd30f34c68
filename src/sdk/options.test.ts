import { expect, test } from 'vitest';
import { advantageKinds } from '../core/advantage.ts';
import { ConfigError } from '../core/errors.ts';
import { defaultTrainConfig, lossDefaults, type TrainConfig } from '../core/train-config.ts';
import { trainOptions } from '../wire/training.ts';
import { toTrainConfig } from '../wire/training-names.ts';
import { encodeTrainOptions, type TrainOptions } from './options.ts';

/** What the server makes of the options. */
const arrive = (options: TrainOptions): TrainConfig =>
  toTrainConfig(trainOptions.parse(JSON.parse(JSON.stringify(encodeTrainOptions(options)))), defaultTrainConfig);

test('every option of the configuration has a place on the wire, and nothing else has', () => {
  const wire = Object.keys(trainOptions.shape).map((key) =>
    key.replace(/_([a-z])/g, (_, c: string) => c.toUpperCase()),
  );
  expect(wire.sort()).toEqual(Object.keys(defaultTrainConfig).sort());
});

test('options arrive at the server as they were meant, nested ones with their defaults', () => {
  expect(arrive({})).toEqual(defaultTrainConfig);
  const whole: TrainOptions = {
    learningRate: 2e-5,
    learningRateSchedule: { decay: 'cosine', warmupSteps: 3, totalSteps: 30 },
    loss: 'drGrpo',
    clipLow: 0.1,
    clipHigh: 0.3,
    importanceCap: 3,
    importanceMask: [0.5, 2],
    sequenceMask: [0.99, 1.01],
    advantage: 'leaveOneOut',
    maxAdvantage: 4,
    lengthNormalization: 'constant',
    maxCompletionTokens: 512,
    overlong: { mask: true, bufferTokens: 64 },
    klPenalty: { weight: 0.01, reference: { stepsBack: 5 }, form: 'advantage' },
    entropyBonus: 0.001,
    turnDiscount: 0.9,
    gradientSteps: 2,
    epochs: 3,
    maxGradNorm: 0.5,
    adam: { beta1: 0.8, beta2: 0.95, epsilon: 1e-6, weightDecay: 0.01 },
    seed: 7,
  };
  expect(arrive(whole)).toEqual(whole);
  expect(arrive({ klPenalty: { weight: 0.1 } }).klPenalty).toEqual({ weight: 0.1, reference: 'base', form: 'loss' });
  expect(arrive({ klPenalty: { weight: 0.1, reference: { step: 4 } } }).klPenalty?.reference).toEqual({ step: 4 });
  expect(arrive({ overlong: { mask: true } }).overlong).toEqual({ mask: true, bufferTokens: 0 });
  expect(arrive({ learningRateSchedule: { decay: 'constant' } }).learningRateSchedule).toEqual({
    decay: 'constant',
    warmupSteps: 0,
    totalSteps: null,
  });
});

test('every loss and every kind of advantage arrives under its name; other names are refused', () => {
  for (const loss of Object.keys(lossDefaults) as TrainConfig['loss'][]) {
    expect(arrive({ loss, ...(loss === 'drGrpo' && { maxCompletionTokens: 9 }) }).loss).toBe(loss);
  }
  for (const advantage of advantageKinds) expect(arrive({ advantage }).advantage).toBe(advantage);
  for (const options of [{ loss: 'dr_grpo' }, { loss: 'grpo2' }, { advantage: 'group_std' }] as object[]) {
    expect(() => encodeTrainOptions(options)).toThrow(ConfigError);
  }
  expect(() => encodeTrainOptions({ loss: 'grpo2' } as unknown as TrainOptions)).toThrow(
    'train options.loss: must be one of cispo, ppo, grpo, dapo, drGrpo, bnpo, gspo, importanceSampling, got "grpo2"',
  );
});

test('options that do not go together are refused before anything is sent', () => {
  expect(() => encodeTrainOptions({ loss: 'drGrpo' })).toThrow(/^train options.maxCompletionTokens: /);
  expect(() => encodeTrainOptions({ klPenalty: { weight: 0 } })).toThrow(/^train options.klPenalty.weight: /);
});
