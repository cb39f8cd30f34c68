/**
 * The tokenizer of a GGUF file as the values of a `tokenizer.json` and a `tokenizer_config.json`. Layer 1.
 * Source: llama.cpp src/llama-vocab.cpp (pre-tokenizers by name) and convert_hf_to_gguf.py (which tokenizer has which name).
 * Two kinds: `gpt2`, byte-level BPE with merges; `llama`, SentencePiece's BPE, whose merges follow from the scores.
 */
import { ConfigError, DataError } from '../core/errors.ts';
import type { GgufMetadata } from './gguf-file.ts';
import { ggufTokenTypes } from './gguf-types.ts';
import { plainBpe } from './tokenizer-json.ts';

type Json = Readonly<Record<string, unknown>>;

export interface GgufTokenizer {
  readonly tokenizerJson: Json;
  readonly tokenizerConfig: Json;
}

const byteLevel = { type: 'ByteLevel', add_prefix_space: false, trim_offsets: true, use_regex: false };
const gpt2Words = { ...byteLevel, use_regex: true };
const splitBy = (regex: string): Json => ({
  type: 'Sequence',
  pretokenizers: [{ type: 'Split', pattern: { Regex: regex }, behavior: 'Isolated', invert: false }, byteLevel],
});
const contractions = "(?i:'s|'t|'re|'ve|'m|'ll|'d)";
const wordsAndDigits = (digits: string): string =>
  `${contractions}|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|${digits}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+`;

interface PreTokenizer {
  readonly preTokenizer: Json;
  readonly normalizer?: Json;
  /** A word that is a token stays whole, even where its merges do not lead to it. */
  readonly isWholeWordKept?: boolean;
  /** Where the file does not say whether a text begins with the begin-of-text token. */
  readonly isBosAdded?: boolean;
}

const llama3Words: PreTokenizer = {
  preTokenizer: splitBy(wordsAndDigits('\\p{N}{1,3}')),
  isWholeWordKept: true,
  isBosAdded: true,
};
const qwenWords: PreTokenizer = { preTokenizer: splitBy(wordsAndDigits('\\p{N}')), normalizer: { type: 'NFC' } };

/** By `tokenizer.ggml.pre`. */
const preTokenizers: Readonly<Record<string, PreTokenizer>> = {
  'gpt-2': { preTokenizer: gpt2Words },
  smollm: {
    preTokenizer: { type: 'Sequence', pretokenizers: [{ type: 'Digits', individual_digits: true }, gpt2Words] },
  },
  'llama-bpe': llama3Words,
  llama3: llama3Words,
  'llama-v3': llama3Words,
  dbrx: { preTokenizer: splitBy(wordsAndDigits('\\p{N}{1,3}')) },
  qwen2: qwenWords,
  'deepseek-r1-qwen': qwenWords,
};

/** `rows` are those of the embedding; `path` names the file in errors. Throws ConfigError on a kind that is not supported, DataError on a field that is missing. */
export function ggufTokenizer(metadata: GgufMetadata, rows: number, path: string): GgufTokenizer {
  const model = metadata.string('tokenizer.ggml.model');
  if (model !== 'gpt2' && model !== 'llama') {
    throw new ConfigError(`${path}: tokenizer.ggml.model must be gpt2 or llama, got ${model ?? 'none'}`);
  }
  const vocabulary = readVocabulary(metadata, path);
  const { length } = vocabulary.tokens;
  if (length > rows) {
    throw new DataError(
      `${path}: tokenizer.ggml.tokens must be at most the ${rows} rows of token_embd.weight, got ${length}`,
    );
  }
  const tokenizerJson =
    model === 'gpt2' ? byteBpe(metadata, vocabulary, path) : sentencePiece(metadata, vocabulary, path);
  return { tokenizerJson, tokenizerConfig: tokenizerConfig(metadata, vocabulary.tokens, tokenizerJson, path) };
}

interface Vocabulary {
  readonly tokens: readonly string[];
  readonly types: readonly number[];
}

/** Padding rows at the end, which no text has and no policy may sample, are left out. */
function readVocabulary(metadata: GgufMetadata, path: string): Vocabulary {
  const tokens = need(metadata.strings('tokenizer.ggml.tokens'), 'tokenizer.ggml.tokens', path);
  const types = metadata.numbers('tokenizer.ggml.token_type') ?? tokens.map(() => ggufTokenTypes.normal);
  if (types.length !== tokens.length) {
    throw new DataError(
      `${path}: tokenizer.ggml.token_type must have one entry per token (${tokens.length}), got ${types.length}`,
    );
  }
  let count = tokens.length;
  while (count > 0 && types[count - 1] === ggufTokenTypes.unused && /^\[PAD\d+\]$/.test(tokens[count - 1]!)) count--;
  const kept = tokens.slice(0, count);
  const seen = new Map<string, number>();
  for (const [id, token] of kept.entries()) {
    const first = seen.get(token);
    if (first !== undefined) {
      const text = JSON.stringify(token);
      throw new DataError(`${path}: tokenizer.ggml.tokens must be different, got ${text} at ${first} and ${id}`);
    }
    seen.set(token, id);
  }
  return { tokens: kept, types: types.slice(0, count) };
}

function byteBpe(metadata: GgufMetadata, vocabulary: Vocabulary, path: string): Json {
  const name = metadata.string('tokenizer.ggml.pre');
  const known = name !== null && Object.hasOwn(preTokenizers, name) ? preTokenizers[name] : undefined;
  if (known === undefined) {
    const supported = Object.keys(preTokenizers).join(', ');
    throw new ConfigError(`${path}: tokenizer.ggml.pre must be one of ${supported}, got ${name ?? 'none'}`);
  }
  const merges = need(metadata.strings('tokenizer.ggml.merges'), 'tokenizer.ggml.merges', path);
  const bos =
    (metadata.boolean('tokenizer.ggml.add_bos_token') ?? known.isBosAdded) ? bosToken(metadata, vocabulary) : null;
  return {
    ...frame(vocabulary),
    normalizer: known.normalizer ?? null,
    pre_tokenizer: known.preTokenizer,
    post_processor: bos === null ? byteLevel : { type: 'Sequence', processors: [byteLevel, prepend(bos)] },
    decoder: gpt2Words,
    model: { ...bpe(vocabulary, merges), ignore_merges: known.isWholeWordKept ?? false },
  };
}

function sentencePiece(metadata: GgufMetadata, vocabulary: Vocabulary, path: string): Json {
  const scores = need(metadata.numbers('tokenizer.ggml.scores'), 'tokenizer.ggml.scores', path);
  const isSpaceAdded = metadata.boolean('tokenizer.ggml.add_space_prefix') ?? true;
  const bos = (metadata.boolean('tokenizer.ggml.add_bos_token') ?? true) ? bosToken(metadata, vocabulary) : null;
  const unknown = vocabulary.types.indexOf(ggufTokenTypes.unknown);
  const toMarks = { type: 'Replace', pattern: { String: ' ' }, content: '▁' };
  const fromMarks = [
    { type: 'Replace', pattern: { String: '▁' }, content: ' ' },
    { type: 'ByteFallback' },
    { type: 'Fuse' },
  ];
  return {
    ...frame(vocabulary),
    normalizer: isSpaceAdded
      ? { type: 'Sequence', normalizers: [{ type: 'Prepend', prepend: '▁' }, toMarks] }
      : toMarks,
    pre_tokenizer: null,
    post_processor: bos === null ? null : prepend(bos),
    decoder: {
      type: 'Sequence',
      decoders: isSpaceAdded ? [...fromMarks, { type: 'Strip', content: ' ', start: 1, stop: 0 }] : fromMarks,
    },
    model: {
      ...bpe(vocabulary, mergesOfScores(vocabulary, scores)),
      unk_token: unknown < 0 ? null : vocabulary.tokens[unknown],
      fuse_unk: true,
      byte_fallback: true,
    },
  };
}

/**
 * SentencePiece joins the neighbours whose joined piece has the best score, so each split of a piece into two pieces is a merge, and
 * pieces rank by score. Equal scores: as transformers converts such files (`generate_merges`), longer left parts first.
 */
function mergesOfScores({ tokens, types }: Vocabulary, scores: readonly number[]): [string, string][] {
  const isPiece = (id: number): boolean =>
    types[id] === ggufTokenTypes.normal || types[id] === ggufTokenTypes.userDefined;
  const ids = new Map(tokens.map((token, id) => [token, id]));
  const merges: { readonly pair: [string, string]; readonly score: number; readonly id: number }[] = [];
  for (const [id, token] of tokens.entries()) {
    if (types[id] !== ggufTokenTypes.normal) continue;
    for (let at = 1; at < token.length; at++) {
      const [left, right] = [token.slice(0, at), token.slice(at)];
      const [leftId, rightId] = [ids.get(left), ids.get(right)];
      if (leftId === undefined || rightId === undefined || !isPiece(leftId) || !isPiece(rightId)) continue;
      merges.push({ pair: [left, right], score: scores[id] ?? 0, id });
    }
  }
  merges.sort(
    (a, b) =>
      b.score - a.score || b.pair[0].length - a.pair[0].length || b.pair[1].length - a.pair[1].length || a.id - b.id,
  );
  return merges.map(({ pair }) => pair);
}

function frame({ tokens, types }: Vocabulary): Json {
  const isAdded = (type: number): boolean =>
    type === ggufTokenTypes.control || type === ggufTokenTypes.userDefined || type === ggufTokenTypes.unknown;
  const flags = { single_word: false, lstrip: false, rstrip: false, normalized: false };
  const added = tokens.flatMap((content, id) =>
    isAdded(types[id]!) ? [{ id, content, ...flags, special: types[id] !== ggufTokenTypes.userDefined }] : [],
  );
  return { version: '1.0', truncation: null, padding: null, added_tokens: added };
}

function bpe({ tokens }: Vocabulary, merges: readonly (string | readonly string[])[]): Json {
  return plainBpe(Object.fromEntries(tokens.map((token, id) => [token, id])), merges);
}

function bosToken(
  metadata: GgufMetadata,
  { tokens }: Vocabulary,
): { readonly id: number; readonly content: string } | null {
  const id = metadata.number('tokenizer.ggml.bos_token_id');
  const content = id === null ? undefined : tokens[id];
  return id === null || content === undefined ? null : { id, content };
}

function prepend({ id, content }: { readonly id: number; readonly content: string }): Json {
  const special = { SpecialToken: { id: content, type_id: 0 } };
  const sequence = (name: string, typeId: number): Json => ({ Sequence: { id: name, type_id: typeId } });
  return {
    type: 'TemplateProcessing',
    single: [special, sequence('A', 0)],
    pair: [special, sequence('A', 0), special, sequence('B', 1)],
    special_tokens: { [content]: { id: content, ids: [id], tokens: [content] } },
  };
}

function tokenizerConfig(metadata: GgufMetadata, tokens: readonly string[], json: Json, path: string): Json {
  const token = (name: string): Json => {
    const id = metadata.number(
      `tokenizer.ggml.${name === 'pad' ? 'padding' : name === 'unk' ? 'unknown' : name}_token_id`,
    );
    if (id === null) return {};
    const content = tokens[id];
    if (content !== undefined) return { [`${name}_token`]: content };
    throw new DataError(`${path}: tokenizer.ggml.${name}_token_id must be below ${tokens.length}, got ${id}`);
  };
  const template = metadata.string('tokenizer.chat_template');
  const others = (metadata.strings('tokenizer.chat_templates') ?? []).map((name) => ({
    name,
    template: metadata.string(`tokenizer.chat_template.${name}`),
  }));
  const templates = others.length === 0 ? template : [{ name: 'default', template }, ...others];
  return {
    ...token('bos'),
    ...token('eos'),
    ...token('pad'),
    ...token('unk'),
    ...(templates === null ? {} : { chat_template: templates }),
    add_bos_token: JSON.stringify(json.post_processor).includes('TemplateProcessing'),
    clean_up_tokenization_spaces: false,
    tokenizer_class: 'PreTrainedTokenizerFast',
  };
}

function need<T>(value: T | null, key: string, path: string): T {
  if (value === null) throw new DataError(`${path}: must have the field ${key}, got none`);
  return value;
}
