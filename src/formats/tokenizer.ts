/**
 * Text to token ids and back, bit-exact with Hugging Face's Rust tokenizers. Layer 1.
 * Added tokens (`tokenizer-added.ts`), words (`tokenizer-text.ts`), merges (`tokenizer-bpe.ts`), text (`tokenizer-decode.ts`).
 * Left out: models other than BPE, and pieces that decoder models do not use; they are refused by name. Decoding never
 * "cleans up" spaces.
 */
import { join } from 'node:path';
import { ConfigError, DataError } from '../core/errors.ts';
import { readJsonFile, readTextFile } from './atomic-files.ts';
import { createAddedSplit, type SplitAdded } from './tokenizer-added.ts';
import { createBpe } from './tokenizer-bpe.ts';
import { createTokenDecoder } from './tokenizer-decode.ts';
import {
  type AddedToken,
  type PostProcessorPiece,
  parseAddedTokens,
  parseTokenizerJson,
  type TokenizerJson,
} from './tokenizer-json.ts';
import { createNormalizer, createPreTokenizer } from './tokenizer-text.ts';

/** The value of a `tokenizer_config.json`, with `chat_template` filled in from `chat_template.jinja` where that exists. */
export type TokenizerConfig = Readonly<Record<string, unknown>>;

export interface EncodeOptions {
  /** Adds what the post-processor of the tokenizer adds, such as a begin-of-text token. Default false. */
  readonly isTemplateAdded?: boolean;
  /**
   * A special token that stands before the text and is not repeated in the ids. A text that continues one is encoded otherwise than one
   * that starts: Phi 3's tokens swallow the white space behind them, Mistral's put a space only at the start.
   */
  readonly afterId?: number | undefined;
}

export interface DecodeOptions {
  /** Leaves out the ids of `specialIds`. Default false. */
  readonly skipSpecial?: boolean;
}

export interface Tokenizer {
  /** Ids of a text; added and special tokens written in it are recognised. Throws DataError if a byte has no token. */
  readonly encode: (text: string, options?: EncodeOptions) => number[];
  /** Text of ids; bytes that are not UTF-8 become U+FFFD. Throws DataError if an id is unknown. */
  readonly decode: (ids: readonly number[], options?: DecodeOptions) => string;
  /** Text of one token alone; a part of a character becomes U+FFFD. Throws DataError if the id is unknown. */
  readonly tokenText: (id: number) => string;
  /** Bytes of one token; those of consecutive tokens join to the UTF-8 of the text. Do not write to them. */
  readonly tokenBytes: (id: number) => Uint8Array;
  /** Id of a token by its exact content, e.g. `<|im_end|>`; null if there is none. */
  readonly tokenId: (content: string) => number | null;
  readonly createStreamDecoder: (options?: DecodeOptions) => StreamDecoder;
  /** One more than the highest id. The embedding of the model may have more rows, which must never be sampled. */
  readonly vocabSize: number;
  readonly specialIds: ReadonlySet<number>;
  /** What `tokenizer_config.json` names as its tokens; null where it names none. */
  readonly eosId: number | null;
  readonly bosId: number | null;
  readonly padId: number | null;
  readonly config: TokenizerConfig;
}

export interface StreamDecoder {
  /** Text that this id completes; '' while a character is incomplete. All deltas and `flush` join to `decode(ids)`. */
  readonly push: (id: number) => string;
  /** What is held back, as U+FFFD; the decoder is then as new. */
  readonly flush: () => string;
}

/** The tokenizer of a model folder: `tokenizer.json`, and `tokenizer_config.json` if present. Throws DataError, ConfigError. */
export async function loadTokenizer(directory: string): Promise<Tokenizer> {
  const path = join(directory, 'tokenizer.json');
  return createTokenizer(await readJsonFile(path), await readTokenizerConfig(directory), path);
}

/** Throws DataError if the file is not JSON; {} if it is missing. */
export async function readTokenizerConfig(directory: string): Promise<TokenizerConfig> {
  const path = join(directory, 'tokenizer_config.json');
  const config = (await readTextFile(path)) === null ? {} : await readJsonFile(path);
  if (typeof config !== 'object' || config === null || Array.isArray(config)) {
    throw new DataError(`${path}: must be a JSON object, got ${JSON.stringify(config).slice(0, 80)}`);
  }
  const template = await readTextFile(join(directory, 'chat_template.jinja'));
  return template === null ? { ...config } : { ...config, chat_template: template };
}

/** A tokenizer from the value of a `tokenizer.json`. `source` names it in errors. Throws DataError, ConfigError. */
export function createTokenizer(json: unknown, config: TokenizerConfig = {}, source = 'tokenizer.json'): Tokenizer {
  const parsed = parseTokenizerJson(json, source);
  const words = readVocabulary(parsed.model.vocab, source);
  const added = addedTokens(parsed, config, source);
  const ids = addTokens(words, added, source);
  const normalize = createNormalizer(parsed.normalizers, source);
  const tokens = writtenTokens(invert(ids, source), added, normalize);
  const specialIds = new Set(added.filter((token) => token.isSpecial).map((token) => token.id));
  const tokenId = (content: string): number | null => ids.get(content) ?? null;
  const decoder = createTokenDecoder(parsed.decoders, source);
  const tokenOf = (id: number): string => {
    const token = tokens[id];
    if (token === undefined) throw new DataError(`${source}: token id must be one of the vocabulary, got ${id}`);
    return token;
  };
  const encode = createEncode(parsed, words, createAddedSplit(added, normalize), source);
  const bytes: (Uint8Array | undefined)[] = [];
  const tokenBytes = (id: number): Uint8Array => {
    bytes[id] ??= decoder.bytesOf(tokenOf(id));
    return bytes[id];
  };
  const createStream = (mode: 'stream' | 'whole', options: DecodeOptions = {}): StreamDecoder => {
    const reader = decoder.createReader(mode);
    return {
      push: (id) => {
        const token = tokenOf(id);
        return options.skipSpecial && specialIds.has(id) ? '' : reader.push(token);
      },
      flush: reader.flush,
    };
  };
  return {
    encode: (text, { isTemplateAdded = false, afterId } = {}) => {
      if (afterId === undefined) return encode(text, isTemplateAdded);
      const ids = encode(tokenOf(afterId) + text, isTemplateAdded);
      return ids[0] === afterId ? ids.slice(1) : encode(text, isTemplateAdded);
    },
    decode: (idsToDecode, options) => {
      const stream = createStream('whole', options);
      let text = '';
      for (const id of idsToDecode) text += stream.push(id);
      return text + stream.flush();
    },
    tokenText: (id) => new TextDecoder('utf-8', { ignoreBOM: true }).decode(tokenBytes(id)),
    tokenBytes,
    tokenId,
    createStreamDecoder: (options) => createStream('stream', options),
    vocabSize: tokens.length,
    specialIds,
    eosId: namedId(config, 'eos_token', tokenId),
    bosId: namedId(config, 'bos_token', tokenId),
    padId: namedId(config, 'pad_token', tokenId),
    config,
  };
}

/** Content of a token that `tokenizer_config.json` names, written as a string or as an AddedToken object. */
export function namedToken(config: TokenizerConfig, key: string): string | null {
  const value = config[key];
  if (typeof value === 'string') return value;
  const content = (value as { content?: unknown } | null | undefined)?.content;
  return typeof content === 'string' ? content : null;
}

function namedId(config: TokenizerConfig, key: string, tokenId: (content: string) => number | null): number | null {
  const content = namedToken(config, key);
  return content === null ? null : tokenId(content);
}

function createEncode(
  json: TokenizerJson,
  words: ReadonlyMap<string, number>,
  splitAdded: SplitAdded,
  source: string,
): (text: string, isTemplateAdded: boolean) => number[] {
  const preTokenize = createPreTokenizer(json.preTokenizers, source);
  const isByteLevel = json.preTokenizers.some((piece) => piece.type === 'ByteLevel');
  const encodeWord = createBpe(json.model, words, isByteLevel, source);
  const template = json.postProcessors.reduce<Template>(
    (inner, piece) => wrapTemplate(inner, piece, source),
    noTemplate,
  );
  return (text, isTemplateAdded) => {
    const ids: number[] = isTemplateAdded ? [...template.before] : [];
    // A surrogate without its other half has no UTF-8; with the flag u, \p{Surrogate} is nothing else.
    for (const part of splitAdded(text.replaceAll(/\p{Surrogate}/gu, '\ufffd'))) {
      if (typeof part === 'number') ids.push(part);
      else for (const word of preTokenize(part)) encodeWord(word, ids);
    }
    if (isTemplateAdded) ids.push(...template.after);
    return ids;
  };
}

/** Ids that a post-processor puts around a text. */
interface Template {
  readonly before: readonly number[];
  readonly after: readonly number[];
}

const noTemplate: Template = { before: [], after: [] };

function wrapTemplate(inner: Template, piece: PostProcessorPiece, source: string): Template {
  if (piece.type === 'ByteLevel') return inner;
  const at = piece.single.findIndex((item) => 'Sequence' in item);
  const count = piece.single.filter((item) => 'Sequence' in item).length;
  if (count !== 1) {
    throw new ConfigError(`${source}: post_processor.single must hold the text once, got it ${count} times`);
  }
  const idsOf = (items: typeof piece.single): number[] =>
    items.flatMap((item) => {
      const content = 'SpecialToken' in item ? item.SpecialToken.id : '';
      const token = Object.hasOwn(piece.special_tokens, content) ? piece.special_tokens[content] : undefined;
      if (token !== undefined) return token.ids;
      const got = Object.keys(piece.special_tokens).join(', ') || 'none';
      throw new ConfigError(
        `${source}: post_processor.special_tokens must hold ${JSON.stringify(content)}, got ${got}`,
      );
    });
  const { before, after } = inner;
  return {
    before: [...idsOf(piece.single.slice(0, at)), ...before],
    after: [...after, ...idsOf(piece.single.slice(at + 1))],
  };
}

/** Far above any vocabulary; it keeps a damaged id from becoming an array of that length. */
const maxVocabSize = 2 ** 24;

function readVocabulary(vocab: Readonly<Record<string, number>>, source: string): Map<string, number> {
  const ids = new Map<string, number>();
  for (const token of Object.keys(vocab)) ids.set(token, checkId(vocab[token], token, source));
  return ids;
}

function checkId(id: unknown, token: string, source: string): number {
  if (Number.isInteger(id) && (id as number) >= 0 && (id as number) < maxVocabSize) return id as number;
  const got = `${JSON.stringify(id)} for ${JSON.stringify(token)}`;
  throw new DataError(`${source}: token ids must be integers from 0 to ${maxVocabSize - 1}, got ${got}`);
}

/** Those of the file, and those that only `tokenizer_config.json` has: transformers adds these as well. */
function addedTokens(json: TokenizerJson, config: TokenizerConfig, source: string): readonly AddedToken[] {
  const decoder = config.added_tokens_decoder;
  if (typeof decoder !== 'object' || decoder === null) return json.addedTokens;
  const contents = new Set(json.addedTokens.map((token) => token.content));
  const listed = Object.entries(decoder).map(([id, token]) => ({ ...(token as object), id: Number(id) }));
  const more = parseAddedTokens(listed, `${source}: added_tokens_decoder of its tokenizer_config.json`);
  return [...json.addedTokens, ...more.filter((token) => !contents.has(token.content))];
}

function addTokens(
  words: ReadonlyMap<string, number>,
  added: readonly AddedToken[],
  source: string,
): Map<string, number> {
  const ids = new Map(words);
  for (const { content, id } of added) {
    const known = ids.get(content) ?? id;
    if (known !== id) {
      throw new DataError(`${source}: a token must have one id, got ${known} and ${id} for ${JSON.stringify(content)}`);
    }
    ids.set(content, checkId(id, content, source));
  }
  return ids;
}

/** Tokens by id; an id without a token is a hole. */
function invert(ids: ReadonlyMap<string, number>, source: string): readonly (string | undefined)[] {
  let size = 0;
  for (const id of ids.values()) size = Math.max(size, id + 1);
  const tokens = new Array<string | undefined>(size).fill(undefined);
  for (const [token, id] of ids) {
    const other = tokens[id];
    if (other !== undefined) {
      const got = `${id} for ${JSON.stringify(other)} and ${JSON.stringify(token)}`;
      throw new DataError(`${source}: an id must have one token, got ${got}`);
    }
    tokens[id] = token;
  }
  return tokens;
}

/** As they are decoded: Rust writes an added token that is looked for in normalized text in its normalized form. */
function writtenTokens(
  tokens: readonly (string | undefined)[],
  added: readonly AddedToken[],
  normalize: ((text: string) => string) | null,
): readonly (string | undefined)[] {
  if (normalize === null) return tokens;
  const written = [...tokens];
  for (const { id, content, isNormalized } of added) if (isNormalized) written[id] = normalize(content);
  return written;
}
