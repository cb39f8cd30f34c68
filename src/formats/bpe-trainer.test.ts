import fc from 'fast-check';
import { expect, test } from 'vitest';
import { ConfigError } from '../core/errors.ts';
import { trainByteBpe } from './bpe-trainer.ts';
import { createTokenizer } from './tokenizer.ts';

const specialTokens = ['<|im_end|>'];
const train = (corpus: readonly string[], vocabSize = 400) => trainByteBpe(corpus, { vocabSize, specialTokens });

test('every character of a board is one token, even where the corpus is full of boards', () => {
  const boards = Array.from({ length: 50 }, () => 'X23\n4O6\n789 XXO\nOOX X | O, You are X');
  const tokenizer = createTokenizer(train(boards));
  for (const board of ['X23\n4O6\n789', 'XXO\nOXO\nXOX', 'X | O | 3\n12, -7', '\n\n  \t']) {
    expect(tokenizer.encode(board)).toEqual([...Buffer.from(board)]);
  }
  expect(tokenizer.encode('You are')).toHaveLength(2);
});

test('the most frequent pair merges first; ties go to the smaller left, then the smaller right part', () => {
  const { merges } = train(['abcabc abd', 'zyzy']).model as { readonly merges: unknown };
  // 'ab' occurs three times; then 'ab c' and 'z y' twice each, and no other pair more than once.
  expect(merges).toEqual([
    ['a', 'b'],
    ['ab', 'c'],
    ['z', 'y'],
  ]);
});

test('ids: bytes, merges, special tokens', () => {
  const tokenizer = createTokenizer(train(['the the the'], 300));
  expect(tokenizer.tokenId('t')).toBe(116);
  expect(tokenizer.tokenText(256)).toBe('he');
  expect(tokenizer.tokenId('<|im_end|>')).toBe(tokenizer.vocabSize - 1);
});

test('the vocabulary keeps its limit, and special tokens in the corpus are not words', () => {
  const corpus = ['several different words words words<|im_end|>several different<|im_end|>'];
  expect(createTokenizer(train(corpus, 260)).vocabSize).toBe(260);
  expect(JSON.stringify(train(corpus).model)).not.toContain('"im');
});

test('the order of the corpus does not matter', () => {
  fc.assert(
    fc.property(fc.array(fc.string({ unit: fc.constantFrom('a', 'b', 'B', ' ', 'é', '1') })), (corpus) => {
      expect(train([...corpus].reverse())).toEqual(train(corpus));
    }),
    { numRuns: 50 },
  );
});

test('refuses sizes and special tokens that cannot be', () => {
  expect(() => train([], 256)).toThrow('vocabSize: must be an integer ≥ 256 bytes + special tokens = 257, got 256');
  expect(() => trainByteBpe([], { vocabSize: 300, specialTokens: ['a', 'a'] })).toThrow(ConfigError);
});
