import { describe, expect, test } from 'vitest';
import { RowShaper } from './row-shaper.ts';
import type { SequenceParams } from './sampling-params.ts';

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

const never = Number.NEGATIVE_INFINITY;

/** Logits after everything, at temperature 1/`inverseTemperature`; the row that goes in has another normalizer than 0. */
function shape(
  logits: readonly number[],
  settings: Partial<SequenceParams>,
  {
    prompt = [],
    sampled = [],
    mask = null,
    inverseTemperature = 1,
  }: {
    prompt?: readonly number[];
    sampled?: readonly number[];
    mask?: Int32Array | null;
    inverseTemperature?: number;
  } = {},
): number[] {
  const shaper = new RowShaper({ ...params, ...settings }, prompt);
  for (const id of sampled) shaper.push(id);
  const logNormalizer = 8;
  const logprobs_V = Float32Array.from(logits, (logit) => logit * inverseTemperature - logNormalizer);
  const out = shaper.shape({ logprobs_V, logNormalizer, inverseTemperature }, mask, new Float32Array(logits.length));
  return Array.from(out, (value) => (value + logNormalizer) / inverseTemperature);
}

describe('by hand', () => {
  test('frequency and presence penalties: logit − count · frequency − presence, of sampled tokens alone', () => {
    const settings = { frequencyPenalty: 0.5, presencePenalty: 0.25 };
    // Token 1 once, token 2 three times; token 3 stands in the prompt.
    const around = { prompt: [3, 3], sampled: [2, 1, 2, 2] };
    expect(shape([1, 1, 1, 1], settings, around)).toEqual([1, 0.25, -0.75, 1]);
    expect(shape([1, 1, 1, 1], { presencePenalty: -2 }, around)).toEqual([1, 3, 3, 1]);
  });

  test('repetition penalty: positive logits are divided, negative multiplied, of tokens in prompt or reply', () => {
    const around = { prompt: [0], sampled: [1, 1] };
    expect(shape([4, -4, 4, -4], { repetitionPenalty: 2 }, around)).toEqual([2, -8, 4, -4]);
    expect(shape([4, -4, 4, -4], { repetitionPenalty: 0.5 }, around)).toEqual([8, -2, 4, -4]);
  });

  test('bias comes before the repetition penalty, frequency and presence after it', () => {
    const settings = { repetitionPenalty: 2, frequencyPenalty: 1, presencePenalty: 1, logitBias: [[0, 3]] as const };
    // (1 + 3) / 2 − 2 · 1 − 1; another order would give another number.
    expect(shape([1, 2], settings, { sampled: [0, 0] })).toEqual([-1, 2]);
  });

  test('logits are those before the temperature', () => {
    const settings = { repetitionPenalty: 2, frequencyPenalty: 1, logitBias: [[1, -5]] as const };
    for (const inverseTemperature of [0.5, 1, 4]) {
      expect(shape([3, 3, 3], settings, { sampled: [0], inverseTemperature })).toEqual([0.5, -2, 3]);
    }
  });

  test('a mask forbids every token without a bit, at the borders of words too', () => {
    const mask = new Int32Array(3);
    for (const id of [0, 31, 32, 63, 65]) mask[id >> 5]! |= 1 << (id & 31);
    const shaped = shape(new Array(66).fill(2), {}, { mask });
    expect(shaped.flatMap((logit, id) => (logit === never ? [] : [id]))).toEqual([0, 31, 32, 63, 65]);
    expect(shape(new Array(66).fill(2), {}, { mask: Int32Array.of(-1, -1, -1) })).toEqual(new Array(66).fill(2));
    // A bias does not bring back what is forbidden.
    expect(shape([1, 1], { logitBias: [[1, 100]] }, { mask: Int32Array.of(1) })).toEqual([1, never]);
  });

  test('stop tokens are forbidden before the minimum length, unless nothing else is possible', () => {
    const settings = { minTokens: 2, stopTokenIds: [1, 9], logitBias: [[1, 50]] as const };
    expect(shape([1, 1, 1], settings, { sampled: [0] })).toEqual([1, never, 1]);
    expect(shape([1, 1, 1], settings, { sampled: [0, 0] })).toEqual([1, 51, 1]);
    expect(shape([1, 1, 1], settings, { mask: Int32Array.of(2) })).toEqual([never, 51, never]);
  });
});

test('without settings the row stays as it is', () => {
  expect(shape([1, -2, 3], {}, { prompt: [0], sampled: [1, 1] })).toEqual([1, -2, 3]);
});
