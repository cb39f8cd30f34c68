import { readdirSync, readFileSync } from 'node:fs';
import { describe, expect, test } from 'vitest';
import { createTokenizer, type Tokenizer } from './tokenizer.ts';
import { createPreTokenizer } from './tokenizer-text.ts';
import { toNfc } from './tokenizer-unicode.ts';

interface Case {
  readonly ids: readonly number[];
  /** Left out where it is the ids, the text, the text again. */
  readonly added?: readonly number[];
  readonly text?: string;
  readonly skipped?: string;
}

interface Expected {
  readonly texts: readonly string[];
  readonly families: Readonly<
    Record<
      string,
      { readonly cases: readonly Case[]; readonly decodings: readonly Required<Pick<Case, 'ids' | 'text'>>[] }
    >
  >;
}

const folder = new URL('../../test/fixtures/tokenizers/', import.meta.url);
const readJson = (name: string): unknown => JSON.parse(readFileSync(new URL(name, folder), 'utf8'));
const expected = readJson('expected.json') as Expected;
const names = readdirSync(folder)
  .map((file) => file.replace('.json', ''))
  .filter((name) => !['expected', 'real', 'unicode'].includes(name));

const stream = (tokenizer: Tokenizer, ids: readonly number[], skipSpecial = false): readonly string[] => {
  const decoder = tokenizer.createStreamDecoder({ skipSpecial });
  return [...ids.map((id) => decoder.push(id)), decoder.flush()];
};

describe.each(names)('%s, as Rust encodes and decodes', (name) => {
  const tokenizer = createTokenizer(readJson(`${name}.json`));
  const { cases, decodings } = expected.families[name] as Expected['families'][string];

  test('ids, without and with what the post-processor adds', () => {
    expect(cases.length).toBe(expected.texts.length);
    for (const [index, text] of expected.texts.entries()) {
      const { ids, added = ids } = cases[index] as Case;
      expect(tokenizer.encode(text), JSON.stringify(text)).toEqual(ids);
      expect(tokenizer.encode(text, { isTemplateAdded: true }), JSON.stringify(text)).toEqual(added);
    }
  });

  test('text of ids, with and without special tokens, whole and as a stream', () => {
    for (const [index, text] of expected.texts.entries()) {
      const { ids, added = ids, text: decoded = text, skipped = decoded } = cases[index] as Case;
      expect(tokenizer.decode(ids)).toBe(decoded);
      expect(tokenizer.decode(added, { skipSpecial: true })).toBe(skipped);
      expect(stream(tokenizer, ids).join('')).toBe(decoded);
      expect(stream(tokenizer, added, true).join('')).toBe(skipped);
      for (const delta of stream(tokenizer, ids)) expect(delta).not.toMatch(/\p{Surrogate}/u);
    }
  });

  test('text of ids that no text has', () => {
    for (const { ids, text } of decodings) expect(tokenizer.decode(ids), ids.join()).toBe(text);
  });

  test('bytes of tokens join to the UTF-8 of the text', () => {
    for (const text of ['The quick brown fox', '你好 😀\n\tx']) {
      const ids = tokenizer.encode(text);
      const bytes = ids.flatMap((id) => [...tokenizer.tokenBytes(id)]);
      // A tokenizer that prepends a space has it in its first token.
      expect(Buffer.from(bytes).toString().replace(/^ /, '')).toBe(tokenizer.decode(ids));
    }
  });

  test('half of a surrogate pair is encoded as U+FFFD', () => {
    expect(tokenizer.encode('a\ud800b\udc00')).toEqual(tokenizer.encode('a\ufffdb\ufffd'));
  });
});

// One whose words are short, and two that read a whole text as one word.
describe.each(['llama3', 'llama2', 'gemma3'])('%s, long texts', (name) => {
  const tokenizer = createTokenizer(readJson(`${name}.json`));

  // Quadratic work would take longer than a test may.
  test.each([
    ['spaces', ' '.repeat(60_000)],
    ['a word', 'ab'.repeat(30_000)],
    ['newlines', '\n'.repeat(60_000)],
    ['characters without a token', '\u{10400}'.repeat(20_000)],
    ['tokens', '</s><|im_end|>'.repeat(5_000)],
  ])('long text of %s', (_what, text) => {
    expect(tokenizer.decode(tokenizer.encode(text)).length).toBeGreaterThan(1000);
  });
});

describe('byte tokens', () => {
  const tokenizer = createTokenizer(readJson('llama2.json'));
  const byte = (value: number): number =>
    tokenizer.tokenId(`<0x${value.toString(16).toUpperCase().padStart(2, '0')}>`) as number;

  test('a stream gives a character when its last byte comes', () => {
    expect(stream(tokenizer, [...Buffer.from('a☃')].map(byte))).toEqual(['a', '', '', '☃', '']);
    expect(tokenizer.tokenBytes(byte(0xe2))).toEqual(Uint8Array.of(0xe2));
  });

  test('bytes that are no UTF-8 are U+FFFD each; in a whole text all of their run is', () => {
    const ids = [byte(0x41), byte(0xe2), byte(0x98), tokenizer.tokenId('T') as number];
    expect(tokenizer.decode(ids)).toBe('\ufffd\ufffd\ufffdT');
    expect(stream(tokenizer, ids)).toEqual(['A', '', '', '\ufffd\ufffdT', '']);
    expect(stream(tokenizer, [byte(0xff), byte(0x41)]).join('')).toBe('\ufffd\ufffd');
  });

  test('one space is stripped at the start of the text, and after flush again', () => {
    const word = tokenizer.tokenId('▁a') as number;
    const decoder = tokenizer.createStreamDecoder();
    expect([decoder.push(word), decoder.push(word), decoder.flush(), decoder.push(word)]).toEqual(['a', ' a', '', 'a']);
    expect(tokenizer.tokenText(word)).toBe(' a');
  });
});

describe('Unicode of Rust, every code point', () => {
  const { members } = readJson('unicode.json') as { readonly members: Readonly<Record<string, string>> };
  const codes = Array.from({ length: 0x110000 }, (_, code) => code).filter((code) => code < 0xd800 || code > 0xdfff);
  // Beyond are no digits, and nothing that NFC changes.
  const lowCodes = codes.filter((code) => code < 0x30000);
  const parse = (text: string): ReadonlySet<number> => {
    const all = new Set<number>();
    for (const span of text.split(' ')) {
      const [low = 0, high = low] = span.split('-').map((digits) => Number.parseInt(digits, 16));
      for (let code = low; code <= high; code++) all.add(code);
    }
    return all;
  };
  const differences = (name: string, all: readonly number[], isMember: (character: string) => boolean): string[] => {
    const rust = parse(members[name] as string);
    return all
      .filter((code) => rust.has(code) !== isMember(String.fromCodePoint(code)))
      .map((code) => code.toString(16));
  };

  test.each(Object.keys(members).filter((name) => name.startsWith('\\')))('%s', (Regex) => {
    const split = createPreTokenizer([{ type: 'Split', pattern: { Regex }, behavior: 'Removed', invert: false }], '');
    const kept = new Set<string>();
    for (let start = 0; start < codes.length; start += 4096) {
      const text = String.fromCodePoint(...codes.slice(start, start + 4096));
      for (const word of split({ text, isStart: true })) for (const character of word) kept.add(character);
    }
    expect(differences(Regex, codes, (character) => !kept.has(character))).toEqual([]);
  });

  test('digits', () => {
    const split = createPreTokenizer([{ type: 'Digits', individual_digits: false }], '');
    const isDigit = (character: string): boolean => split({ text: `a${character}a`, isStart: true }).length > 1;
    expect(differences('digits', lowCodes, isDigit)).toEqual([]);
  });

  test('NFC', () => {
    expect(differences('changed by NFC', lowCodes, (character) => toNfc(character) !== character)).toEqual([]);
    const isMoved = (character: string): boolean => toNfc(`a${character}\u0334`) !== `a${character}\u0334`;
    expect(differences('moved by NFC', lowCodes, isMoved)).toEqual([]);
  });
});
