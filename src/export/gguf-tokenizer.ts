/**
 * A tokenizer as GGUF metadata, from the values of `tokenizer.json` and `tokenizer_config.json`. Layer 5.
 * Source: llama.cpp conversion/base.py and gguf-py/gguf/vocab.py (keys), src/llama-vocab.cpp (what they mean).
 * Left out: Unigram and WordPiece models, which no decoder here has.
 */
import { ConfigError, DataError } from '../core/errors.ts';
import type { DecoderConfig } from '../formats/decoder-config.ts';
import { ggufTokenTypes } from '../formats/gguf-types.ts';
import type { GgufValue } from '../formats/gguf-writer.ts';
import { namedToken, type TokenizerConfig } from '../formats/tokenizer.ts';
import { bool, string, uint32 } from './gguf-metadata.ts';
import { choosePreTokenizer } from './pre-tokenizer.ts';

export interface TokenizerMetadata {
  readonly metadata: Map<string, GgufValue>;
  /** What llama.cpp will do otherwise; empty if nothing. */
  readonly warnings: readonly string[];
}

interface AddedToken {
  readonly id: number;
  readonly content: string;
  readonly special?: boolean;
}

interface TokenizerJson {
  readonly model: {
    readonly type?: string;
    readonly vocab: Readonly<Record<string, number>>;
    readonly merges: readonly (string | readonly [string, string])[];
    readonly unk_token?: string | null;
    readonly byte_fallback?: boolean;
  };
  readonly added_tokens?: readonly AddedToken[];
  readonly normalizer?: unknown;
  readonly pre_tokenizer?: unknown;
  readonly post_processor?: unknown;
}

/** Ids up to `config.vocabSize` without a token get a placeholder. Throws ConfigError on another kind of tokenizer, DataError on ids beyond the model's. */
export function tokenizerMetadata(
  json: unknown,
  tokenizerConfig: TokenizerConfig,
  config: DecoderConfig,
): TokenizerMetadata {
  const tokenizer = checkJson(json);
  const isSentencePiece = tokenizer.model.byte_fallback === true;
  const { tokens, tokenTypes } = listTokens(tokenizer, config.vocabSize, isSentencePiece);
  const metadata = new Map<string, GgufValue>();
  const warnings: string[] = [];
  if (isSentencePiece) {
    metadata.set('tokenizer.ggml.model', string('llama'));
    metadata.set('tokenizer.ggml.pre', string('default'));
    metadata.set('tokenizer.ggml.scores', {
      type: 'array',
      of: 'float32',
      values: scoreTokens(tokenizer, tokens, tokenTypes),
    });
    metadata.set('tokenizer.ggml.add_space_prefix', bool(hasSpacePrefix(tokenizer)));
  } else {
    const { name, warning } = choosePreTokenizer(json as Readonly<Record<string, unknown>>);
    if (warning !== null) warnings.push(warning);
    metadata.set('tokenizer.ggml.model', string('gpt2'));
    metadata.set('tokenizer.ggml.pre', string(name));
    metadata.set('tokenizer.ggml.merges', {
      type: 'array',
      of: 'string',
      values: tokenizer.model.merges.map(mergeText),
    });
  }
  metadata.set('tokenizer.ggml.tokens', { type: 'array', of: 'string', values: tokens });
  metadata.set('tokenizer.ggml.token_type', { type: 'array', of: 'int32', values: tokenTypes });
  for (const [key, id] of specialIds(tokenizer, tokenizerConfig, config)) metadata.set(key, uint32(id));
  const { isBosAdded, isEosAdded } = addedByTemplate(tokenizer, tokenizerConfig);
  metadata.set('tokenizer.ggml.add_bos_token', bool(isBosAdded));
  metadata.set('tokenizer.ggml.add_eos_token', bool(isEosAdded));
  for (const [key, template] of chatTemplates(tokenizerConfig)) metadata.set(key, string(template));
  return { metadata, warnings };
}

function checkJson(json: unknown): TokenizerJson {
  const { model } = (json ?? {}) as Partial<TokenizerJson>;
  if (model?.type !== undefined && model.type !== 'BPE') {
    throw new ConfigError(`gguf: the model of tokenizer.json must be BPE, got ${model.type}`);
  }
  if (typeof model?.vocab !== 'object' || !Array.isArray(model.merges)) {
    const got = Object.keys(model ?? {}).join(', ') || 'none';
    throw new DataError(`gguf: the model of tokenizer.json must have vocab and merges, got the fields ${got}`);
  }
  return json as TokenizerJson;
}

function listTokens(
  { model, added_tokens: added = [] }: TokenizerJson,
  vocabSize: number,
  isSentencePiece: boolean,
): { readonly tokens: readonly string[]; readonly tokenTypes: readonly number[] } {
  const tokens = Array.from({ length: vocabSize }, (_, id) => `[PAD${id}]`);
  const tokenTypes = new Array<number>(vocabSize).fill(ggufTokenTypes.unused);
  const set = (id: number, token: string, type: number): void => {
    if (id >= vocabSize) {
      throw new DataError(
        `gguf: ids of tokens must be below the model's vocab_size ${vocabSize}, got ${id} for ${JSON.stringify(token)}`,
      );
    }
    tokens[id] = token;
    tokenTypes[id] = type;
  };
  for (const [token, id] of Object.entries(model.vocab)) {
    const isByte = isSentencePiece && /^<0x[0-9A-F]{2}>$/.test(token);
    set(id, token, isByte ? ggufTokenTypes.byte : ggufTokenTypes.normal);
  }
  for (const { id, content, special } of added) {
    // llama.cpp compares these with the text itself, where a space is a space.
    if (special === true || /^<\|.*\|>$/.test(content)) set(id, content, ggufTokenTypes.control);
    else set(id, content.replaceAll('▁', ' '), ggufTokenTypes.userDefined);
  }
  const unknown = model.unk_token;
  if (typeof unknown === 'string' && unknown in model.vocab) tokenTypes[model.vocab[unknown]!] = ggufTokenTypes.unknown;
  return { tokens, tokenTypes };
}

/** llama.cpp separates the two parts by the first space, so a space inside is written as bytes are: Ġ. */
function mergeText(merge: string | readonly [string, string]): string {
  return typeof merge === 'string' ? merge : merge.map((part) => part.replaceAll(' ', 'Ġ')).join(' ');
}

/**
 * SentencePiece merges the pair that makes the token of highest score: 0, −1, … in the order in which merges make them. Other tokens are
 * characters, which come after; those that are not merged (bytes, special ones) have 0, as in SentencePiece's own files.
 */
function scoreTokens({ model }: TokenizerJson, tokens: readonly string[], tokenTypes: readonly number[]): number[] {
  const scores = new Map<string, number>();
  for (const merge of model.merges) {
    const made = typeof merge === 'string' ? merge.replace(' ', '') : merge.join('');
    if (!scores.has(made)) scores.set(made, scores.size === 0 ? 0 : -scores.size);
  }
  let next = scores.size;
  return tokens.map((token, id) => {
    if (tokenTypes[id] !== ggufTokenTypes.normal) return 0;
    return scores.get(token) ?? -next++;
  });
}

/** Whether a space is put before the text: SentencePiece's `add_dummy_prefix`. */
function hasSpacePrefix({ normalizer, pre_tokenizer: pre }: TokenizerJson): boolean {
  const parts = (value: unknown): readonly Record<string, unknown>[] => {
    const { normalizers, pretokenizers } = (value ?? {}) as Record<string, readonly unknown[]>;
    return [value, ...(normalizers ?? []), ...(pretokenizers ?? [])].map(
      (part) => (part ?? {}) as Record<string, unknown>,
    );
  };
  return [...parts(normalizer), ...parts(pre)].some(
    (part) =>
      (part.type === 'Prepend' && part.prepend === '▁') ||
      (part.type === 'Metaspace' &&
        (part.prepend_scheme ?? (part.add_prefix_space === false ? 'never' : 'always')) !== 'never'),
  );
}

function specialIds(
  tokenizer: TokenizerJson,
  tokenizerConfig: TokenizerConfig,
  config: DecoderConfig,
): [string, number][] {
  const idOf = (content: string | null): number | null => {
    if (content === null) return null;
    return (
      tokenizer.added_tokens?.find((token) => token.content === content)?.id ?? tokenizer.model.vocab[content] ?? null
    );
  };
  const named = (key: string): number | null => idOf(namedToken(tokenizerConfig, key));
  const bos = named('bos_token') ?? config.bosTokenId;
  const eos = named('eos_token') ?? config.eosTokenId[0] ?? null;
  // What else ends a turn; llama.cpp has room for one, and finds the usual names of others itself.
  const eot = config.eosTokenId.find((id) => id !== eos) ?? null;
  const unknown = idOf(tokenizer.model.unk_token ?? null) ?? named('unk_token');
  const pad = named('pad_token') ?? config.padTokenId;
  const all = { bos, eos, eot, unknown, padding: pad };
  return Object.entries(all).flatMap(([name, id]) => (id === null ? [] : [[`tokenizer.ggml.${name}_token_id`, id]]));
}

/** What encoding adds before and after a text: the tokenizer's own template decides, else its configuration. */
function addedByTemplate(
  { post_processor: post }: TokenizerJson,
  config: TokenizerConfig,
): { readonly isBosAdded: boolean; readonly isEosAdded: boolean } {
  const { processors = [post] } = (post ?? {}) as { processors?: readonly unknown[] };
  const template = processors.find((item) => (item as { type?: unknown } | null)?.type === 'TemplateProcessing');
  if (template === undefined) {
    return { isBosAdded: config.add_bos_token === true, isEosAdded: config.add_eos_token === true };
  }
  const { single = [] } = template as { single?: readonly Readonly<Record<string, unknown>>[] };
  const isSpecial = (item: Readonly<Record<string, unknown>> | undefined): boolean =>
    item !== undefined && 'SpecialToken' in item;
  return {
    isBosAdded: single.length > 1 && isSpecial(single[0]),
    isEosAdded: single.length > 1 && isSpecial(single.at(-1)),
  };
}

function chatTemplates({ chat_template: template }: TokenizerConfig): [string, string][] {
  if (typeof template === 'string') return [['tokenizer.chat_template', template]];
  if (!Array.isArray(template)) return [];
  return (template as readonly { readonly name: string; readonly template: string }[]).map(
    ({ name, template: text }) => [
      name === 'default' ? 'tokenizer.chat_template' : `tokenizer.chat_template.${name}`,
      text,
    ],
  );
}
