import { expect, test } from 'vitest';
import { tinyConfig } from '../../test/tiny-model.ts';
import { DataError } from '../core/errors.ts';
import type { HostTensor } from '../graph/runtime.ts';
import { createMicrobatches, type MicrobatchOptions, type TrainingSequence } from './microbatch.ts';

const options: MicrobatchOptions = {
  queriesPerKey: 2,
  layers: tinyConfig(),
  headSize: 16,
  maxTokens: 256,
  maxPositions: 200,
  vocabSize: 64,
};

const a: TrainingSequence = {
  tokenIds: [11, 12, 13, 14],
  actionMask: [0, 0, 1, 1],
  samplingLogprobs: [0, 0, -1, -2],
  advantages: [9, 9, 0.5, 0.25],
  temperatures: [1, 1, 0.5, 2],
};
const b: TrainingSequence = {
  tokenIds: [21, 22, 23],
  actionMask: [0, 1, 0],
  samplingLogprobs: [0, -3, 0],
  advantages: [0, -1, 0],
  temperatures: [1, 4, 1],
};

const numbers = (tensor: HostTensor | undefined): number[] => Array.from(tensor!.data as ArrayLike<number>, Number);

test('two sequences in one row: positions, logit rows, targets and the columns of the loss', () => {
  const [microbatch, ...others] = createMicrobatches([b, a], options);
  expect(others).toEqual([]);
  const { feeds, ...rest } = microbatch!;
  // The longer one, index 1, stands first; the other at the next multiple of 8.
  expect(rest).toEqual({
    places: [
      { index: 1, position: 2 },
      { index: 1, position: 3 },
      { index: 0, position: 1 },
    ],
    rows: 1,
    tokens: 7,
    paddingTokens: 121,
  });
  expect(feeds.tokenIds!.shape).toEqual([1, 128]);
  expect(numbers(feeds.tokenIds).slice(0, 12)).toEqual([11, 12, 13, 14, 0, 0, 0, 0, 21, 22, 23, 0]);
  expect(numbers(feeds.positions).slice(0, 12)).toEqual([0, 1, 2, 3, 0, 0, 0, 0, 0, 1, 2, 0]);
  // The place before a token predicts it.
  expect(numbers(feeds.logitRows)).toEqual([1, 2, 8]);
  expect(numbers(feeds.targets)).toEqual([13, 14, 22]);
  expect(numbers(feeds.inverseTemperatures)).toEqual([2, 0.5, 0.25]);
  expect(numbers(feeds.actions)).toEqual([1, 1, 1]);
  expect(numbers(feeds.samplingLogprobs)).toEqual([-1, -2, -3]);
  expect(numbers(feeds.advantages)).toEqual([0.5, 0.25, -1]);
  expect(numbers(feeds.tokenWeights)).toEqual([1, 1, 1]);
  expect(feeds.targets!.shape).toEqual([3, 1]);
});

test('token weights are those of the actions, 1 where a sequence has none', () => {
  const { feeds } = createMicrobatches([{ ...b, tokenWeights: [9, 0.25, 9] }, a], options)[0]!;
  expect(numbers(feeds.tokenWeights)).toEqual([1, 1, 0.25]);
});

test('the mask opens exactly the keys of the own sequence up to the query, once per query head', () => {
  const { feeds } = createMicrobatches([a, b], options)[0]!;
  const mask = feeds.mask!;
  expect(mask.shape).toEqual([1, 1, 256, 128]);
  const open = (query: number): number[] =>
    numbers(mask)
      .slice(query * 128, (query + 1) * 128)
      .flatMap((value, key) => (value === 0 ? [key] : []));
  for (const head of [0, 128]) {
    expect(open(head + 0)).toEqual([0]);
    expect(open(head + 3)).toEqual([0, 1, 2, 3]);
    expect(open(head + 5)).toEqual([5]); // padding sees itself
    expect(open(head + 8)).toEqual([8]);
    expect(open(head + 10)).toEqual([8, 9, 10]);
    expect(open(head + 127)).toEqual([127]);
  }
  expect(numbers(mask).every((value) => value === 0 || value === Math.fround(-1e30))).toBe(true);
});

test('rows are cut into microbatches of at most maxTokens; a longer row goes alone', () => {
  const long = (length: number): TrainingSequence => ({
    tokenIds: new Array<number>(length).fill(1),
    actionMask: new Array<number>(length).fill(0).fill(1, 1),
    samplingLogprobs: new Array<number>(length).fill(0),
    advantages: new Array<number>(length).fill(0),
    temperatures: new Array<number>(length).fill(1),
  });
  const sequences = [long(120), long(150), long(121), long(122), long(151)];
  const cut = (maxTokens: number): (readonly [number, number[]])[] =>
    createMicrobatches(sequences, { ...options, maxTokens }).map(({ rows, places }) => [
      rows,
      [...new Set(places.map(({ index }) => index))],
    ]);
  expect(cut(256)).toEqual([
    [2, [3, 2]],
    [1, [0]],
    [1, [4]],
    [1, [1]],
  ]);
  expect(cut(1)).toHaveLength(5);
  expect(cut(512)).toEqual([
    [3, [3, 2, 0]],
    [2, [4, 1]],
  ]);
});

test('a single action is padded to two logit rows, whose padding counts nothing', () => {
  const { feeds, places } = createMicrobatches([b], options)[0]!;
  expect(places).toEqual([{ index: 0, position: 1 }]);
  expect(numbers(feeds.logitRows)).toEqual([0, 0]);
  expect(numbers(feeds.actions)).toEqual([1, 0]);
  expect(numbers(feeds.inverseTemperatures)).toEqual([0.25, 1]);
});

test.each([
  [{ advantages: [1] }, 'datum 1: advantages must have one entry per token (3), got 1'],
  [{ actionMask: [0, 1, 0, 0] }, 'datum 1: actionMask must have one entry per token (3), got 4'],
  [{ samplingLogprobs: [] }, 'datum 1: samplingLogprobs must have one entry per token (3), got 0'],
  [{ tokenWeights: [1, 1] }, 'datum 1: tokenWeights must have one entry per token (3), got 2'],
  [{ tokenWeights: [1, Number.NaN, 1] }, 'datum 1: tokenWeights must be finite, got NaN at 1'],
  [{ temperatures: [1, 1] }, 'datum 1: temperatures must have one entry per token (3), got 2'],
  [{ tokenIds: [21, 64, 23] }, 'datum 1: token ids must be below 64, got 64 at 1'],
  [{ tokenIds: [21, 22, -1] }, 'datum 1: token ids must be below 64, got -1 at 2'],
  [{ tokenIds: [21, 2.5, 23] }, 'datum 1: token ids must be below 64, got 2.5 at 1'],
  [{ actionMask: [1, 1, 0] }, 'datum 1: actionMask must be 0 or 1, and 0 on the first token, got 1 at 0'],
  [{ actionMask: [0, 0.5, 0] }, 'datum 1: actionMask must be 0 or 1, and 0 on the first token, got 0.5 at 1'],
  [{ samplingLogprobs: [0, Number.NaN, 0] }, 'temperature positive, got NaN, -1 and 4 at 1'],
  [{ advantages: [0, Number.POSITIVE_INFINITY, 0] }, 'temperature positive, got -3, Infinity and 4 at 1'],
  [{ temperatures: [1, 0, 1] }, 'temperature positive, got -3, -1 and 0 at 1'],
  [{ temperatures: [1, Number.NaN, 1] }, 'temperature positive, got -3, -1 and NaN at 1'],
  // Its inverse is 0: every token would be equally likely.
  [{ temperatures: [1, Number.POSITIVE_INFINITY, 1] }, 'temperature positive, got -3, -1 and Infinity at 1'],
])('refuses %o', (wrong, message) => {
  const run = () => createMicrobatches([a, { ...b, ...wrong }], options);
  expect(run).toThrow(DataError);
  expect(run).toThrow(message);
});

test('refuses sequences without tokens or longer than the model', () => {
  const empty = { tokenIds: [], actionMask: [], samplingLogprobs: [], advantages: [], temperatures: [] };
  expect(() => createMicrobatches([empty], options)).toThrow('packing: a sequence must have at least 1 token, got 0');
  expect(() => createMicrobatches([a], { ...options, maxPositions: 3 })).toThrow(
    'datum 0: must have at most 3 tokens, got 4',
  );
});

test('values where the mask is 0 are not looked at', () => {
  const noisy = { ...b, samplingLogprobs: [Number.NaN, -3, Number.NaN], temperatures: [0, 4, -1] };
  expect(createMicrobatches([noisy], options)).toEqual(createMicrobatches([b], options));
});
