import { describe, expect, test } from 'vitest';
import { ConfigError, DataError } from '../core/errors.ts';
import { createTokenizer } from './tokenizer.ts';

const model = { type: 'BPE', vocab: { a: 0, b: 1, ab: 2 }, merges: ['a b'] };
const json = { model, decoder: { type: 'Fuse' }, added_tokens: [] };
const create = (changes: object) => () => createTokenizer({ ...json, ...changes });
const createModel = (changes: object) => create({ model: { ...model, ...changes } });

describe('what a tokenizer.json holds', () => {
  test('merges as text and as pairs are the same; a model without a type is BPE if it has merges', () => {
    expect(createTokenizer(json).encode('aab')).toEqual([0, 2]);
    expect(createModel({ merges: [['a', 'b']], type: undefined })().encode('aab')).toEqual([0, 2]);
  });

  test.each([
    ['model', { model: { type: 'Unigram' } }, 'model must be BPE, got "Unigram"'],
    [
      'normalizer',
      { normalizer: { type: 'NFKC' } },
      'normalizer must be one of NFC, Prepend, Replace, Sequence, got "NFKC"',
    ],
    [
      'pre-tokenizer inside a sequence',
      { pre_tokenizer: { type: 'Sequence', pretokenizers: [{ type: 'Whitespace' }] } },
      'pre_tokenizer must be one of ByteLevel, Digits, Metaspace, Sequence, Split, got "Whitespace"',
    ],
    ['post-processor', { post_processor: { type: 'BertProcessing' } }, 'post_processor must be one of ByteLevel, Seq'],
    ['decoder', { decoder: { type: 'WordPiece' } }, 'decoder must be one of ByteFallback, ByteLevel, Fuse, Metaspace,'],
    ['no decoder', { decoder: null }, 'decoder must be ByteLevel, Metaspace or a sequence of Replace, ByteFallback,'],
    [
      'order of decoders',
      { decoder: { type: 'Sequence', decoders: [{ type: 'Fuse' }, { type: 'ByteFallback' }] } },
      'got Fuse, ByteFallback',
    ],
    [
      'stripping the end',
      { decoder: { type: 'Strip', content: ' ', start: 0, stop: 1 } },
      'must be 0: a stream cannot take back what it gave',
    ],
    [
      'ByteLevel before another',
      {
        pre_tokenizer: {
          type: 'Sequence',
          pretokenizers: [
            { type: 'ByteLevel', add_prefix_space: false },
            { type: 'Digits', individual_digits: true },
          ],
        },
      },
      'pre_tokenizer ByteLevel must be the last of its sequence',
    ],
    [
      'pattern',
      { pre_tokenizer: { type: 'Split', pattern: { Regex: '(?<!a*)b(' }, behavior: 'Isolated', invert: false } },
      'pattern must be one that can be translated to JavaScript',
    ],
    [
      'template without its token',
      {
        post_processor: {
          type: 'TemplateProcessing',
          single: [{ SpecialToken: { id: '<s>' } }, { Sequence: { id: 'A' } }],
          special_tokens: {},
        },
      },
      'post_processor.special_tokens must hold "<s>"',
    ],
    ['dropout', { model: { ...model, dropout: 0.1 } }, 'dropout'],
    ['word suffix', { model: { ...model, end_of_word_suffix: '</w>' } }, 'end_of_word_suffix'],
  ])('refused by name: %s', (_name, changes, message) => {
    expect(create(changes)).toThrow(ConfigError);
    expect(create(changes)).toThrow(message);
  });

  test('damaged files are refused', () => {
    expect(() => createTokenizer(null)).toThrow('tokenizer.json: must be a JSON object, got null');
    for (const merges of [['a c'], ['a'], [['a', 'b', 'c']], [7], ['a b ']]) {
      expect(createModel({ merges })).toThrow(DataError);
      expect(createModel({ merges })).toThrow('merge 0 must join two tokens of the vocabulary into a third');
    }
    for (const id of [-1, 1.5, '7', null, 2 ** 30]) {
      expect(createModel({ vocab: { ...model.vocab, c: id } })).toThrow(
        'token ids must be integers from 0 to 16777215',
      );
    }
    expect(createModel({ unk_token: '<unk>' })).toThrow('unk_token must be in the vocabulary, got "<unk>"');
  });

  test('holes in the vocabulary stay unknown ids', () => {
    const holes = create({ added_tokens: [{ id: 9, content: '<x>', special: true }] })();
    expect([holes.vocabSize, ...holes.encode('a<x>b')]).toEqual([10, 0, 9, 1]);
    expect(() => holes.decode([5])).toThrow('token id must be one of the vocabulary, got 5');
  });

  test('a token with two ids, and an id with two tokens, are refused', () => {
    expect(createModel({ vocab: { ...model.vocab, c: 1 } })).toThrow(
      'an id must have one token, got 1 for "b" and "c"',
    );
    expect(create({ added_tokens: [{ id: 9, content: 'ab' }] })).toThrow(
      'a token must have one id, got 2 and 9 for "ab"',
    );
    expect(create({ added_tokens: [{ id: 2, content: '<x>' }] })).toThrow('an id must have one token');
  });

  test('tokens that only tokenizer_config.json lists are added', () => {
    const config = {
      added_tokens_decoder: { 2: { content: 'ab' }, 3: { content: '<e>', special: true } },
      eos_token: '<e>',
    };
    const tokenizer = createTokenizer(json, config);
    expect(tokenizer.encode('b<e>ab')).toEqual([1, 3, 2]);
    expect([tokenizer.eosId, ...tokenizer.specialIds]).toEqual([3, 3]);
  });
});
