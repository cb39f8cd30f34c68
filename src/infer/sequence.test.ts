import { describe, expect, test } from 'vitest';
import { createRng } from '../core/rng.ts';
import type { StreamDecoder } from '../formats/tokenizer.ts';
import type { SequenceParams } from './sampling-params.ts';
import { Sequence } from './sequence.ts';

const params: SequenceParams = {
  maxTokens: 10,
  temperature: 1,
  topP: 1,
  topK: 0,
  seed: 3,
  stopTokenIds: [],
  stopStrings: [],
  topLogprobs: 0,
};
const policy = { step: 0, identity: 1, feeds: {} };

/** Token texts; 'é' is cut into its two bytes. */
const pieces: readonly (string | readonly number[])[] = [
  'E',
  'ND',
  'x',
  'EN',
  'D',
  [0xc3],
  [0xa9],
  '\n\n',
  '\n',
  'aEND',
];

function createDecoder(): StreamDecoder {
  const decoder = new TextDecoder();
  const push = (id: number): string => {
    const piece = pieces[id] ?? '';
    const bytes = typeof piece === 'string' ? new TextEncoder().encode(piece) : Uint8Array.from(piece);
    return decoder.decode(bytes, { stream: true });
  };
  return { push, flush: () => decoder.decode() };
}

function sequence(
  overrides: Partial<SequenceParams>,
  prompt: readonly number[] = [2, 2],
  maxPositions = 100,
): Sequence {
  return new Sequence(1, prompt, { ...params, ...overrides }, policy, { maxPositions, createDecoder });
}

const row = Float32Array.from({ length: pieces.length }, (_, id) => -id - 0.5);

/** Appends until the sequence ends; how many tokens it took and why. */
function run(of: Sequence, ids: readonly number[]): readonly [number, string | null] {
  for (const [i, id] of ids.entries()) {
    of.append(id, row[id]!, row);
    if (of.stopCause) return [i + 1, of.stopCause];
  }
  return [ids.length, null];
}

describe('a sequence ends', () => {
  test('at a stop token, which stays part of it', () => {
    const of = sequence({ stopTokenIds: [7, 4] });
    expect(run(of, [2, 3, 4, 2])).toEqual([3, 'stop']);
    expect(of.tokenIds).toEqual([2, 2, 2, 3, 4]);
    expect(of.logprobs).toEqual([-2.5, -3.5, -4.5]);
    // A stop token in the prompt does not count.
    expect(run(sequence({ stopTokenIds: [2], maxTokens: 2 }), [3, 3])).toEqual([2, 'length']);
  });

  test.each([
    ['inside one token', [2, 9, 2], 2],
    ['across two tokens', [2, 3, 4, 2], 3],
    ['across two other tokens', [0, 1], 2],
    ['after a false start', [3, 0, 1, 2], 3],
    ['a repeated start', [0, 0, 3, 4], 4],
  ])('at a stop string %s', (_name, ids, count) => {
    expect(run(sequence({ stopStrings: ['zzz', 'END'] }), ids)).toEqual([count, 'stop']);
  });

  test('at a stop string whose last character was cut in two, and across line breaks', () => {
    expect(run(sequence({ stopStrings: ['xé'] }), [2, 5, 2])).toEqual([3, null]); // the first byte alone is no é
    expect(run(sequence({ stopStrings: ['xé'] }), [2, 5, 6, 2])).toEqual([3, 'stop']);
    expect(run(sequence({ stopStrings: ['\n\n\n'] }), [7, 2, 8, 7])).toEqual([4, 'stop']);
  });

  test('not at text that the prompt began', () => {
    expect(run(sequence({ stopStrings: ['END'], maxTokens: 2 }, [3]), [4, 2])).toEqual([2, 'length']);
  });

  test('at maxTokens, and at the context of the model', () => {
    expect(run(sequence({ maxTokens: 3 }), [2, 2, 2, 2])).toEqual([3, 'length']);
    expect(run(sequence({ maxTokens: 50 }, [1, 1, 1], 5), [2, 2, 2, 2])).toEqual([2, 'length']);
    // A stop token as the last possible token is a stop.
    expect(run(sequence({ maxTokens: 2, stopTokenIds: [4] }), [2, 4])).toEqual([2, 'stop']);
  });
});

test('room that it may need: the last token is never read again', () => {
  expect(sequence({ maxTokens: 10 }, [1, 1, 1]).reservedTokens).toBe(12);
  expect(sequence({ maxTokens: 1 }, [1, 1, 1]).reservedTokens).toBe(3);
  expect(sequence({ maxTokens: 10 }, [1, 1, 1], 8).reservedTokens).toBe(7);
});

test('temperature 0 reports logprobs at temperature 1', () => {
  expect(sequence({ temperature: 0 }).inverseTemperature).toBe(1);
  expect(sequence({ temperature: 0.5 }).inverseTemperature).toBe(2);
});

test('alternatives are the best tokens with their logprobs', () => {
  const of = sequence({ topLogprobs: 2 });
  of.append(4, row[4]!, row);
  expect(of.topLogprobs).toEqual([
    [
      { tokenId: 0, logprob: -0.5 },
      { tokenId: 1, logprob: -1.5 },
    ],
  ]);
});

test('the stream of random numbers depends on the seed alone', () => {
  const first = sequence({ seed: 5 }).rng.uniform();
  expect(sequence({ seed: 5 }, [9, 9, 9]).rng.uniform()).toBe(first);
  expect(sequence({ seed: 6 }).rng.uniform()).not.toBe(first);
  expect(createRng(5, 'sample').uniform()).toBe(first);
});
