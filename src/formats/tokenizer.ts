/**
 * Text to token ids and back, bit-exact with Hugging Face. Layer 1.
 * Encoding is `@huggingface/tokenizers`; decoding is ours, over bytes, so that streaming never splits a character.
 * Left out: decoders other than ByteLevel (Llama 2, Gemma); they are refused by name. Decoding never "cleans up" spaces.
 */
import { join } from 'node:path';
import { Tokenizer as HfTokenizer } from '@huggingface/tokenizers';
import { ConfigError, DataError, messageOf } from '../core/errors.ts';
import { readJsonFile, readTextFile } from './atomic-files.ts';

/** The value of a `tokenizer_config.json`, with `chat_template` filled in from `chat_template.jinja` where that exists. */
export type TokenizerConfig = Readonly<Record<string, unknown>>;

export interface EncodeOptions {
  /** Adds what the post-processor of the tokenizer adds, such as a begin-of-text token. Default false. */
  readonly isTemplateAdded?: boolean;
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
    throw new DataError(`${path}: must be a JSON object`);
  }
  const template = await readTextFile(join(directory, 'chat_template.jinja'));
  return template === null ? { ...config } : { ...config, chat_template: template };
}

/** A tokenizer from the value of a `tokenizer.json`. `source` names it in errors. Throws DataError, ConfigError. */
export function createTokenizer(json: unknown, config: TokenizerConfig = {}, source = 'tokenizer.json'): Tokenizer {
  const hf = openTokenizer(json, config, source);
  const added = hf.get_added_tokens_decoder();
  const vocab: (Uint8Array | undefined)[] = [];
  const ids = new Map<string, number>();
  const contents: readonly (string | undefined)[] = hf.model?.vocab ?? [];
  for (const [id, content] of contents.entries()) {
    if (content === undefined) continue;
    ids.set(content, id);
    vocab[id] = added.has(id) ? new TextEncoder().encode(content) : bytesOfSymbols(content);
  }
  const specialIds = new Set([...added.values()].filter((token) => token.special).map((token) => token.id));
  const tokenBytes = (id: number): Uint8Array => {
    const bytes = vocab[id];
    if (bytes === undefined) throw new DataError(`${source}: token id must be one of the vocabulary, got ${id}`);
    return bytes;
  };
  const createStreamDecoder = (options: DecodeOptions = {}): StreamDecoder => {
    const decoder = new TextDecoder('utf-8', { ignoreBOM: true });
    return {
      push: (id) => {
        const bytes = tokenBytes(id);
        return options.skipSpecial && specialIds.has(id) ? '' : decoder.decode(bytes, { stream: true });
      },
      flush: () => decoder.decode(),
    };
  };
  const checkBytes = createByteCheck(hf, ids, source);
  const tokenId = (content: string): number | null => ids.get(content) ?? null;
  return {
    encode: (text, options = {}) => {
      checkBytes(text);
      return hf.encode(text, { add_special_tokens: options.isTemplateAdded ?? false }).ids;
    },
    decode: (idsToDecode, options) => {
      const decoder = createStreamDecoder(options);
      let text = '';
      for (const id of idsToDecode) text += decoder.push(id);
      return text + decoder.flush();
    },
    tokenText: (id) => new TextDecoder('utf-8', { ignoreBOM: true }).decode(tokenBytes(id)),
    tokenBytes,
    tokenId,
    createStreamDecoder,
    vocabSize: vocab.length,
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

function openTokenizer(json: unknown, config: TokenizerConfig, source: string): HfTokenizer {
  const decoder = (json as { decoder?: { type?: unknown } | null } | null)?.decoder?.type;
  if (decoder !== 'ByteLevel') {
    throw new ConfigError(`${source}: decoder must be ByteLevel, got ${JSON.stringify(decoder)}`);
  }
  const defaults = { added_tokens: [], normalizer: null, pre_tokenizer: null, post_processor: null };
  try {
    return new HfTokenizer({ ...defaults, ...(json as object) }, config);
  } catch (cause) {
    throw new DataError(`${source}: must be a tokenizer of Hugging Face, got ${messageOf(cause)}`, { cause });
  }
}

/**
 * A vocabulary without a token for some byte (and without an unknown token) drops that byte silently when encoding:
 * the check makes it an error. It costs nothing for the usual vocabularies, which have all 256.
 */
function createByteCheck(hf: HfTokenizer, ids: ReadonlyMap<string, number>, source: string): (text: string) => void {
  const isMissing = symbolOfByte.map((symbol) => !ids.has(symbol));
  // These 13 bytes never occur in UTF-8.
  const isUsed = (_: boolean, byte: number): boolean => byte !== 0xc0 && byte !== 0xc1 && byte < 0xf5;
  if (hf.model?.unk_token != null || !isMissing.filter(isUsed).includes(true)) return () => {};
  const contents = [...hf.get_added_tokens_decoder().values()].map((token) => token.content);
  return (text) => {
    const plain = contents.reduce((rest, content) => rest.replaceAll(content, ''), text);
    for (const byte of new TextEncoder().encode(hf.normalizer === null ? plain : hf.normalizer.normalize(plain))) {
      if (isMissing[byte]) throw new DataError(`${source}: text must hold only bytes with a token, got byte ${byte}`);
    }
  };
}

/** GPT-2's printable stand-in of each byte. Source: openai/gpt-2 encoder.py, bytes_to_unicode. */
export const symbolOfByte: readonly string[] = Array.from({ length: 256 }, (_, byte) => byte).map(
  (byte, _index, bytes) => {
    const isPrintable = (b: number): boolean => (b >= 33 && b <= 126) || (b >= 161 && b !== 173);
    if (isPrintable(byte)) return String.fromCharCode(byte);
    return String.fromCharCode(256 + bytes.filter((b) => b < byte && !isPrintable(b)).length);
  },
);

const byteOfSymbol: ReadonlyMap<string, number> = new Map(symbolOfByte.map((symbol, byte) => [symbol, byte]));

/** Bytes of a token of the model's vocabulary; a token with another symbol stands for its own UTF-8, as in Rust. */
function bytesOfSymbols(token: string): Uint8Array {
  const bytes: number[] = [];
  for (const symbol of token) {
    const byte = byteOfSymbol.get(symbol);
    if (byte === undefined) return new TextEncoder().encode(token);
    bytes.push(byte);
  }
  return Uint8Array.from(bytes);
}
