import { expect, test } from 'vitest';
import { ConfigError } from '../core/errors.ts';
import { checkLogitBias, checkSampling, checkTemperature, type SequenceParams } from './sampling-params.ts';

const params: SequenceParams = {
  maxTokens: 8,
  temperature: 1,
  topP: 1,
  topK: 0,
  seed: 1,
  stopTokenIds: [],
  stopStrings: [],
  topLogprobs: 0,
};

test.each([
  [{ maxTokens: 0 }, 'maxTokens: must be a whole number ≥ 1, got 0'],
  [{ maxTokens: 1.5 }, 'maxTokens: must be a whole number ≥ 1, got 1.5'],
  [{ temperature: -1 }, 'temperature: must be 0 or at least 0.000001, got -1'],
  [{ temperature: 1e-40 }, 'temperature: must be 0 or at least 0.000001, got 1e-40'],
  [{ temperature: Number.NaN }, 'temperature: must be 0 or at least 0.000001, got NaN'],
  [{ temperature: Number.POSITIVE_INFINITY }, 'temperature: must be 0 or at least 0.000001, got Infinity'],
  [{ topP: 0 }, 'topP: must be above 0 and at most 1, got 0'],
  [{ topP: Number.NaN }, 'topP: must be above 0 and at most 1, got NaN'],
  [{ topK: -1 }, 'topK: must be a whole number ≥ 0, got -1'],
  [{ seed: 0.5 }, 'seed: must be a whole number, got 0.5'],
  [{ stopStrings: ['a', ''] }, "stopStrings: must be texts of at least one character, got ''"],
  [{ topLogprobs: 21 }, 'topLogprobs: must be a whole number from 0 to 20, got 21'],
  [{ minP: 1.1 }, 'minP: must be from 0 to 1, got 1.1'],
  [{ minP: Number.NaN }, 'minP: must be from 0 to 1, got NaN'],
  [{ frequencyPenalty: 2.5 }, 'frequencyPenalty: must be from −2 to 2, got 2.5'],
  [{ presencePenalty: -3 }, 'presencePenalty: must be from −2 to 2, got -3'],
  [{ repetitionPenalty: 0 }, 'repetitionPenalty: must be a number above 0, got 0'],
  [{ repetitionPenalty: Number.POSITIVE_INFINITY }, 'repetitionPenalty: must be a number above 0, got Infinity'],
  [{ minTokens: 9, maxTokens: 8 }, 'minTokens: must be a whole number from 0 to maxTokens (8), got 9'],
])('refuses %o', (wrong, message) => {
  expect(() => checkSampling({ ...params, ...wrong })).toThrow(new ConfigError(message));
  expect(() => checkSampling(params)).not.toThrow();
  expect(() => checkTemperature(1e-6)).not.toThrow();
});

test('an unknown setting is refused by name', () => {
  expect(() => checkSampling({ ...params, minp: 0.5 } as SequenceParams)).toThrow(/sampling: .* got minp$/);
});

test.each([
  [[[8, 1]], 'logitBias: must be of token ids below 8, got 8'],
  [[[1.5, 1]], 'logitBias: must be of token ids below 8, got 1.5'],
  [
    [
      [3, 1],
      [3, 2],
    ],
    'logitBias: must be one value per token, got a second one for 3',
  ],
  [[[3, 101]], 'logitBias: must be from −100 to 100, got 101 for 3'],
  [[[3, Number.NaN]], 'logitBias: must be from −100 to 100, got NaN for 3'],
] as const)('refuses the bias %o', (wrong, message) => {
  expect(() => checkLogitBias(wrong, 8)).toThrow(new ConfigError(message));
  expect(() =>
    checkLogitBias(
      [
        [7, -100],
        [0, 100],
      ],
      8,
    ),
  ).not.toThrow();
});
