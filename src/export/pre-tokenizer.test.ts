import { expect, test } from 'vitest';
import { trainByteBpe } from '../formats/bpe-trainer.ts';
import { choosePreTokenizer } from './pre-tokenizer.ts';

const plain = trainByteBpe(['low lower lowest slow'], { vocabSize: 270, specialTokens: [] });
const byteLevel = (use_regex: boolean) => ({
  type: 'ByteLevel',
  add_prefix_space: false,
  trim_offsets: true,
  use_regex,
});
const split = (regex: string) => ({
  type: 'Sequence',
  pretokenizers: [{ type: 'Split', pattern: { Regex: regex }, behavior: 'Isolated', invert: false }, byteLevel(false)],
});
const words = (digits: string): string =>
  `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|${digits}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+`;

function choose(preTokenizer: unknown, isWholeWordKept = false) {
  const model = { ...(plain.model as object), ignore_merges: isWholeWordKept };
  return choosePreTokenizer({ ...plain, model, pre_tokenizer: preTokenizer });
}

test.each([
  ['qwen2', split(words('\\p{N}')), false],
  ['llama-bpe', split(words('\\p{N}{1,3}')), true],
  ['dbrx', split(words('\\p{N}{1,3}')), false],
  ['gpt-2', byteLevel(true), false],
  [
    'smollm',
    { type: 'Sequence', pretokenizers: [{ type: 'Digits', individual_digits: true }, byteLevel(true)] },
    false,
  ],
] as const)('%s is known by what its tokenizer.json says', (name, preTokenizer, isWholeWordKept) => {
  expect(choose(preTokenizer, isWholeWordKept)).toEqual({ name, warning: null });
});

test('one that llama.cpp lacks gets the closest, and a warning with a text that is split otherwise', () => {
  // Every character alone: no text becomes the token "lo".
  const { warning } = choose(split('[\\s\\S]'));
  expect(warning).toMatch(
    /^llama\.cpp has no pre-tokenizer like this model's; the closest is [\w-]+: \d+ of \d+ probe texts get the same ids, "Hello world" does not$/,
  );
});
