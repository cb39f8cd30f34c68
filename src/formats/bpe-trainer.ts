/**
 * Trainer of small byte-level BPE tokenizers, as the value of a Hugging Face `tokenizer.json`. Layer 1.
 * Source: Sennrich et al. 2016, algorithm 1; file layout of Qwen2. Counts are recomputed for every merge: meant for
 * corpora of a few thousand different words.
 *
 * Only words merge. A word is a capital followed by small letters, or two or more small letters, with the space before
 * it; everything else (digits, further capitals, punctuation, line ends) is one token a character. So each cell of a
 * board such as "X23\n4O6\nXXO" is one token, whatever the corpus.
 */
import { ConfigError } from '../core/errors.ts';
import { symbolOfByte } from './tokenizer-bytes.ts';
import { plainBpe } from './tokenizer-json.ts';

export interface BpeTrainerOptions {
  /** Upper limit on ids: 256 bytes, merges, special tokens; fewer when the corpus has no pair left that occurs twice. */
  readonly vocabSize: number;
  /** Take the last ids, in this order. */
  readonly specialTokens: readonly string[];
}

/** The value of a `tokenizer.json`; also loaded by Python's tokenizers. */
export type TokenizerJson = Readonly<Record<string, unknown>>;

const smallLetter = '[\\p{Ll}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]';

/** Valid for both JavaScript and Oniguruma (Python's tokenizers). */
const wordPattern = ` ?(?:\\p{Lu}${smallLetter}+|${smallLetter}{2,})|[\\s\\S]`;

interface Word {
  symbols: readonly string[];
  readonly count: number;
}

interface Pair {
  readonly left: string;
  readonly right: string;
  count: number;
}

/**
 * Learns merges from `corpus`. Id b < 256 is byte b, then the merges in order, then the special tokens. Deterministic:
 * the most frequent pair merges first, among equals the one whose parts come first by UTF-16 code units.
 * Throws ConfigError if `vocabSize` is too small or a special token is empty or repeated.
 */
export function trainByteBpe(corpus: readonly string[], options: BpeTrainerOptions): TokenizerJson {
  const { vocabSize, specialTokens } = options;
  const smallest = 256 + specialTokens.length;
  if (!Number.isSafeInteger(vocabSize) || vocabSize < smallest) {
    throw new ConfigError(`vocabSize: must be an integer ≥ 256 bytes + special tokens = ${smallest}, got ${vocabSize}`);
  }
  if (new Set(specialTokens).size !== specialTokens.length || specialTokens.includes('')) {
    throw new ConfigError(`specialTokens: must be different and not empty, got ${JSON.stringify(specialTokens)}`);
  }
  const words = countWords(corpus, specialTokens);
  const vocab = new Map(symbolOfByte.map((symbol, byte) => [symbol, byte]));
  const merges: (readonly [string, string])[] = [];
  while (vocab.size < vocabSize - specialTokens.length) {
    const pair = findBestPair(words);
    if (pair === null) break;
    merges.push([pair.left, pair.right]);
    vocab.set(pair.left + pair.right, vocab.size);
    for (const word of words) word.symbols = mergePair(word.symbols, pair);
  }
  return tokenizerJson(vocab, merges, specialTokens);
}

function countWords(corpus: readonly string[], specialTokens: readonly string[]): Word[] {
  const counts = new Map<string, number>();
  for (const text of corpus) {
    const plain = specialTokens.reduce((parts, token) => parts.flatMap((part) => part.split(token)), [text]);
    for (const [word] of plain.flatMap((part) => [...part.matchAll(new RegExp(wordPattern, 'gu'))])) {
      counts.set(word, (counts.get(word) ?? 0) + 1);
    }
  }
  return [...counts].map(([word, count]) => ({
    symbols: Array.from(new TextEncoder().encode(word), (byte) => symbolOfByte[byte] as string),
    count,
  }));
}

/** Null when no pair occurs at least twice. */
function findBestPair(words: readonly Word[]): Pair | null {
  const pairs = new Map<string, Pair>();
  for (const { symbols, count } of words) {
    for (let i = 1; i < symbols.length; i++) {
      const left = symbols[i - 1] as string;
      const right = symbols[i] as string;
      // A space is never a symbol (byte 32 is written Ġ), so the key is unambiguous.
      const key = `${left} ${right}`;
      const pair = pairs.get(key);
      if (pair === undefined) pairs.set(key, { left, right, count });
      else pair.count += count;
    }
  }
  let best: Pair | null = null;
  for (const pair of pairs.values()) {
    if (pair.count >= 2 && (best === null || isBefore(pair, best))) best = pair;
  }
  return best;
}

function isBefore(a: Pair, b: Pair): boolean {
  if (a.count !== b.count) return a.count > b.count;
  if (a.left !== b.left) return a.left < b.left;
  return a.right < b.right;
}

function mergePair(symbols: readonly string[], { left, right }: Pair): readonly string[] {
  const merged: string[] = [];
  for (let i = 0; i < symbols.length; i++) {
    const symbol = symbols[i] as string;
    const isPair = symbol === left && symbols[i + 1] === right;
    merged.push(isPair ? left + right : symbol);
    if (isPair) i++;
  }
  return merged.length === symbols.length ? symbols : merged;
}

function tokenizerJson(
  vocab: ReadonlyMap<string, number>,
  merges: readonly (readonly [string, string])[],
  specialTokens: readonly string[],
): TokenizerJson {
  const byteLevel = { type: 'ByteLevel', add_prefix_space: false, trim_offsets: false, use_regex: false };
  const flags = { single_word: false, lstrip: false, rstrip: false, normalized: false, special: true };
  return {
    version: '1.0',
    truncation: null,
    padding: null,
    added_tokens: specialTokens.map((content, index) => ({ id: vocab.size + index, content, ...flags })),
    normalizer: null,
    pre_tokenizer: {
      type: 'Sequence',
      pretokenizers: [
        { type: 'Split', pattern: { Regex: wordPattern }, behavior: 'Isolated', invert: false },
        byteLevel,
      ],
    },
    post_processor: byteLevel,
    decoder: byteLevel,
    model: plainBpe(Object.fromEntries(vocab), merges),
  };
}
