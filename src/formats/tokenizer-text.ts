/**
 * From a text to the words that byte-pair encoding reads: normalizers and pre-tokenizers of a `tokenizer.json`. Layer 1.
 * Source: huggingface/tokenizers normalizers/ and pre_tokenizers/; patterns of Oniguruma are translated by
 * `@huggingface/tokenizers`, whose own pre-tokenizers differ from Rust (digits, white space, merged delimiters).
 */
import * as library from '@huggingface/tokenizers';
import { ConfigError, messageOf } from '../core/errors.ts';
import { symbolOfByte } from './tokenizer-bytes.ts';
import type { NormalizerPiece, Pattern, PreTokenizerPiece } from './tokenizer-json.ts';
import { toNfc, toUnicode16 } from './tokenizer-unicode.ts';

/** Whether a piece of text stands at the start of the whole text: some pre-tokenizers prepend a space only there. */
export interface TextPiece {
  readonly text: string;
  readonly isStart: boolean;
}

/** Null if the tokenizer has none. Throws ConfigError if a pattern cannot be translated. */
export function createNormalizer(
  pieces: readonly NormalizerPiece[],
  source: string,
): ((text: string) => string) | null {
  if (pieces.length === 0) return null;
  const steps = pieces.map((piece): ((text: string) => string) => {
    if (piece.type === 'NFC') return toNfc;
    if (piece.type === 'Prepend') return (text) => (text === '' ? '' : piece.prepend + text);
    const find = createFinder(piece.pattern, source);
    return (text) => {
      let replaced = '';
      for (const [start, end, isMatch] of find(text)) replaced += isMatch ? piece.content : text.slice(start, end);
      return replaced;
    };
  });
  return (text) => steps.reduce((value, step) => step(value), text);
}

/** The words of a piece of text, in the symbols of bytes where the tokenizer works on bytes. Throws ConfigError. */
export function createPreTokenizer(
  pieces: readonly PreTokenizerPiece[],
  source: string,
): (piece: TextPiece) => readonly string[] {
  const isLast = (index: number): boolean => index === pieces.length - 1;
  if (pieces.some((piece, index) => piece.type === 'ByteLevel' && !isLast(index))) {
    const got = pieces.map(({ type }) => type).join(', ');
    throw new ConfigError(`${source}: pre_tokenizer ByteLevel must be the last of its sequence, got ${got}`);
  }
  const steps = pieces.map((piece) => createStep(piece, source));
  const isByteLevel = pieces.at(-1)?.type === 'ByteLevel';
  return (piece) => {
    let split: readonly TextPiece[] = [piece];
    for (const step of steps) split = split.flatMap(step);
    const words = split.filter(({ text }) => text !== '');
    return isByteLevel ? words.map(({ text }) => toSymbols(text)) : words.map(({ text }) => text);
  };
}

type Step = (piece: TextPiece) => readonly TextPiece[];
type Behavior = Extract<PreTokenizerPiece, { type: 'Split' }>['behavior'];

function createStep(piece: PreTokenizerPiece, source: string): Step {
  switch (piece.type) {
    case 'ByteLevel': {
      const split = piece.use_regex ? createSplit({ Regex: gpt2Pattern }, 'Isolated', false, source) : null;
      return ({ text, isStart }) => {
        const spaced = { text: piece.add_prefix_space && !text.startsWith(' ') ? ` ${text}` : text, isStart };
        return split === null ? [spaced] : split(spaced);
      };
    }
    case 'Digits':
      // Not a pattern of Oniguruma in Rust: its own table of numbers, which is as new as that of JavaScript.
      return splitBy(/\p{N}/gu, piece.individual_digits ? 'Isolated' : 'Contiguous');
    case 'Metaspace': {
      const { replacement, prepend_scheme: scheme } = piece;
      const split = createSplit({ String: replacement }, 'MergedWithNext', false, source);
      return ({ text, isStart }) => {
        const replaced = text.replaceAll(' ', () => replacement);
        const isPrepended = scheme === 'always' || (scheme === 'first' && isStart);
        const spaced = isPrepended && !replaced.startsWith(replacement) ? replacement + replaced : replaced;
        return piece.split ? split({ text: spaced, isStart }) : [{ text: spaced, isStart }];
      };
    }
    case 'Split':
      return createSplit(piece.pattern, piece.behavior, piece.invert, source);
  }
}

/** Source: openai/gpt-2 encoder.py. */
const gpt2Pattern = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

/** Start, end, and whether the pattern matched; the spans cover the text, without empty ones. */
type Span = readonly [start: number, end: number, isMatch: boolean];

function createSplit(pattern: Pattern, behavior: Behavior, isInverted: boolean, source: string): Step {
  return join(createFinder(pattern, source), behavior, isInverted);
}

function splitBy(pattern: RegExp, behavior: Behavior): Step {
  return join((text) => matchSpans(text, pattern), behavior, false);
}

function join(find: (text: string) => readonly Span[], behavior: Behavior, isInverted: boolean): Step {
  return ({ text, isStart }) =>
    applyBehavior(find(text), behavior, isInverted).map(([start, end]) => ({
      text: text.slice(start, end),
      isStart: isStart && start === 0,
    }));
}

function createFinder(pattern: Pattern, source: string): (text: string) => readonly Span[] {
  if ('String' in pattern) return (text) => literalSpans(text, pattern.String);
  const expression = translate(pattern.Regex, source);
  return (text) => matchSpans(toUnicode16(text), expression);
}

function literalSpans(text: string, literal: string): readonly Span[] {
  const spans: Span[] = [];
  let end = 0;
  for (let start = text.indexOf(literal); start !== -1; start = text.indexOf(literal, end)) {
    if (start > end) spans.push([end, start, false]);
    end = start + literal.length;
    spans.push([start, end, true]);
  }
  if (end < text.length) spans.push([end, text.length, false]);
  return spans;
}

function matchSpans(text: string, expression: RegExp): readonly Span[] {
  const spans: Span[] = [];
  let end = 0;
  for (const { 0: found, index } of text.matchAll(expression)) {
    if (found === '') continue;
    if (index > end) spans.push([end, index, false]);
    end = index + found.length;
    spans.push([index, end, true]);
  }
  if (end < text.length) spans.push([end, text.length, false]);
  return spans;
}

/** Source: tokenizers tokenizer/normalizer.rs, NormalizedString::split. */
function applyBehavior(spans: readonly Span[], behavior: Behavior, isInverted: boolean): readonly Span[] {
  const isMatch = (span: Span): boolean => span[2] !== isInverted;
  switch (behavior) {
    case 'Isolated':
      return spans;
    case 'Removed':
      return spans.filter((span) => !isMatch(span));
    case 'Contiguous':
      return joinSpans(spans, (left, right) => isMatch(left) === isMatch(right));
    case 'MergedWithPrevious':
      return joinSpans(spans, (left, right) => !isMatch(left) && isMatch(right));
    case 'MergedWithNext':
      return joinSpans(spans, (left, right) => isMatch(left) && !isMatch(right));
  }
}

/** Joins neighbours for which `isJoined` holds; it sees them as they were before joining. */
function joinSpans(spans: readonly Span[], isJoined: (left: Span, right: Span) => boolean): readonly Span[] {
  const joined: Span[] = [];
  for (const [index, span] of spans.entries()) {
    const before = spans[index - 1];
    const [start] = before !== undefined && isJoined(before, span) ? (joined.pop() as Span) : span;
    joined.push([start, span[1], span[2]]);
  }
  return joined;
}

// The types of the library leave out what it exports besides its Tokenizer.
const { SplitPreTokenizer } = library as unknown as {
  readonly SplitPreTokenizer: new (config: object) => { readonly pattern: RegExp | null };
};

/** An expression of Oniguruma in JavaScript. */
function translate(regex: string, source: string): RegExp {
  // Oniguruma folds case by Unicode: ſ (U+017F) is an s and K (U+212A) a k. The library folds ASCII alone.
  const folded = regex.replaceAll(/\(\?i:[^()[\]\\]*\)/g, (group) =>
    group.replaceAll(/[sS]/g, '[s\u017f]').replaceAll(/[kK]/g, '[k\u212a]'),
  );
  try {
    const { pattern } = new SplitPreTokenizer({ type: 'Split', pattern: { Regex: folded }, invert: false });
    if (pattern !== null) return pattern;
  } catch (cause) {
    throw new ConfigError(
      `${source}: pattern must be one that can be translated to JavaScript, got ${messageOf(cause)}`,
      { cause },
    );
  }
  throw new ConfigError(`${source}: pattern must be one that can be translated to JavaScript, got ${regex}`);
}

function toSymbols(text: string): string {
  let symbols = '';
  for (const byte of Buffer.from(text)) symbols += symbolOfByte[byte];
  return symbols;
}
