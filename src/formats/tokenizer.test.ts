import { Tokenizer as HfTokenizer } from '@huggingface/tokenizers';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { DataError } from '../core/errors.ts';
import { trainByteBpe } from './bpe-trainer.ts';
import { createTokenizer, loadTokenizer } from './tokenizer.ts';
import { symbolOfByte } from './tokenizer-bytes.ts';

const corpus = [
  'You play tic-tac-toe. You are X. Reply with the number of a free cell.',
  'You are playing. The cell is free. Answer in naïve Ünïcode words, please. free cell number',
];
const specialTokens = ['<|endoftext|>', '<|im_start|>', '<|im_end|>'];
const json = trainByteBpe(corpus, { vocabSize: 320, specialTokens });
const config = { eos_token: '<|im_end|>', pad_token: { content: '<|endoftext|>' }, bos_token: null };
const tokenizer = createTokenizer(json, config);
const { eosId } = tokenizer;

describe('tokenizer', () => {
  test('special tokens in a text are recognised and kept, or skipped on request', () => {
    const ids = tokenizer.encode('<|im_start|>hé<|im_end|>\n');
    expect(ids[0]).toBe(tokenizer.tokenId('<|im_start|>'));
    expect(ids.at(-2)).toBe(eosId);
    expect(tokenizer.decode(ids)).toBe('<|im_start|>hé<|im_end|>\n');
    expect(tokenizer.decode(ids, { skipSpecial: true })).toBe('hé\n');
    expect(tokenizer.specialIds).toEqual(new Set(specialTokens.map((token) => tokenizer.tokenId(token))));
  });

  test('named ids come from the configuration, and null means none', () => {
    const { vocabSize, bosId, padId } = tokenizer;
    expect([eosId, padId, bosId]).toEqual([vocabSize - 1, vocabSize - 3, null]);
    expect(tokenizer.tokenId('no such token')).toBeNull();
  });

  test('what the post-processor adds is added only when asked', () => {
    const postProcessor = {
      type: 'TemplateProcessing',
      single: [{ SpecialToken: { id: '<|endoftext|>', type_id: 0 } }, { Sequence: { id: 'A', type_id: 0 } }],
      pair: [],
      special_tokens: { '<|endoftext|>': { id: '<|endoftext|>', ids: [tokenizer.padId], tokens: ['<|endoftext|>'] } },
    };
    const withBos = createTokenizer({ ...json, post_processor: postProcessor }, config);
    expect(withBos.encode('X')).toEqual([88]);
    expect(withBos.encode('X', { isTemplateAdded: true })).toEqual([withBos.padId, 88]);
  });

  test('any text survives encode and decode, as the library decodes it', () => {
    const library = new HfTokenizer(json, {});
    const text = fc.oneof(fc.string({ unit: 'grapheme' }), fc.string({ unit: 'binary' }));
    fc.assert(
      fc.property(text, fc.constantFrom('', ...specialTokens), text, (left, special, right) => {
        const ids = tokenizer.encode(left + special + right);
        expect(tokenizer.decode(ids)).toBe(left + special + right);
        if (ids.length > 0)
          expect(library.decode(ids, { clean_up_tokenization_spaces: false })).toBe(left + special + right);
      }),
    );
  });

  test('bytes of tokens join to the UTF-8 of the text', () => {
    const text = 'You ☃ 😀<|im_end|>';
    const bytes = tokenizer.encode(text).flatMap((id) => [...tokenizer.tokenBytes(id)]);
    expect(Buffer.from(bytes).toString()).toBe(text);
    expect(tokenizer.tokenText(0xe2)).toBe('\ufffd');
    expect(tokenizer.tokenText(eosId ?? -1)).toBe('<|im_end|>');
  });

  test('spaces before punctuation are not cleaned up, and a byte order mark stays', () => {
    expect(tokenizer.decode(tokenizer.encode('\ufeffa . b ?'))).toBe('\ufeffa . b ?');
  });

  test('an unknown id is an error', () => {
    expect(() => tokenizer.decode([tokenizer.vocabSize])).toThrow(DataError);
    expect(() => tokenizer.tokenBytes(-1)).toThrow('token id must be one of the vocabulary, got -1');
  });

  test('a byte without a token is an error, not a silent gap', () => {
    const model = json.model as { readonly vocab: Readonly<Record<string, number>> };
    const { '!': _removed, ...vocab } = model.vocab;
    const partial = createTokenizer({ ...json, model: { ...model, vocab } });
    expect(partial.encode('a')).toEqual([97]);
    expect(() => partial.encode('a!')).toThrow('text must hold only bytes with a token, got byte 33');
    expect(() => partial.decode([33])).toThrow(DataError);
  });

  test('a missing file is an error that names it', async () => {
    await expect(loadTokenizer('/no/such/folder')).rejects.toThrow('/no/such/folder/tokenizer.json: file is missing');
  });

  test('stand-ins of bytes are 256 different printable characters', () => {
    expect(new Set(symbolOfByte).size).toBe(256);
    expect([symbolOfByte[0x20], symbolOfByte[0x0a], symbolOfByte[0xad], symbolOfByte[0x7f]]).toEqual([
      'Ġ',
      'Ċ',
      'Ń',
      'ġ',
    ]);
  });
});

describe('stream decoder', () => {
  test('holds back an incomplete character', () => {
    const decoder = tokenizer.createStreamDecoder();
    expect([...Buffer.from('a☃')].map((byte) => decoder.push(byte))).toEqual(['a', '', '', '☃']);
    expect(decoder.flush()).toBe('');
  });

  test('flush gives what was held back as U+FFFD, and the decoder starts afresh', () => {
    const decoder = tokenizer.createStreamDecoder();
    expect([decoder.push(0xf0), decoder.push(0x9f), decoder.flush(), decoder.push(97)]).toEqual([
      '',
      '',
      '\ufffd',
      'a',
    ]);
  });

  test('a special token after an incomplete character is not swallowed', () => {
    const decoder = tokenizer.createStreamDecoder();
    expect([decoder.push(0xe2), decoder.push(eosId ?? -1)]).toEqual(['', '\ufffd<|im_end|>']);
  });

  test('deltas of any ids join to decode, and no delta holds half of a surrogate pair', () => {
    const id = fc.integer({ min: 0, max: tokenizer.vocabSize - 1 });
    fc.assert(
      fc.property(fc.array(id), fc.string({ unit: 'binary' }), fc.boolean(), (noise, text, skipSpecial) => {
        const ids = [...noise, ...tokenizer.encode(text)];
        const decoder = tokenizer.createStreamDecoder({ skipSpecial });
        const deltas = [...ids.map((next) => decoder.push(next)), decoder.flush()];
        expect(deltas.join('')).toBe(tokenizer.decode(ids, { skipSpecial }));
        for (const delta of deltas) expect(delta).not.toMatch(/\p{Surrogate}/u);
      }),
    );
  });
});
