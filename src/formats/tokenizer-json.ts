/**
 * What a `tokenizer.json` of Hugging Face may hold here, checked piece by piece. Layer 1.
 * Source: huggingface/tokenizers 0.23, the deserialisers of each piece.
 * Left out, and refused by name: models other than BPE, dropout, word prefixes and suffixes, normalizers that only encoders use.
 */
import * as z from 'zod';
import { ConfigError, DataError } from '../core/errors.ts';
import { isJsonObject } from '../core/json.ts';

const pattern = z.union([z.object({ String: z.string().min(1) }), z.object({ Regex: z.string().min(1) })]);

export type Pattern = z.infer<typeof pattern>;

const normalizerPieces = {
  NFC: z.object({ type: z.literal('NFC') }),
  Prepend: z.object({ type: z.literal('Prepend'), prepend: z.string() }),
  Replace: z.object({ type: z.literal('Replace'), pattern, content: z.string() }),
};

const preTokenizerPieces = {
  ByteLevel: z.object({
    type: z.literal('ByteLevel'),
    add_prefix_space: z.boolean(),
    use_regex: z.boolean().default(true),
  }),
  Digits: z.object({ type: z.literal('Digits'), individual_digits: z.boolean() }),
  Metaspace: z
    .object({
      type: z.literal('Metaspace'),
      replacement: z.string().regex(/^.$/su, 'must be one character'),
      add_prefix_space: z.boolean().nullish(),
      prepend_scheme: z.enum(['always', 'first', 'never']).default('always'),
      split: z
        .boolean()
        .nullish()
        .transform((value) => value ?? true),
    })
    .refine((piece) => piece.add_prefix_space !== false || piece.prepend_scheme === 'never', {
      error: 'add_prefix_space must agree with prepend_scheme',
    }),
  Split: z.object({
    type: z.literal('Split'),
    pattern,
    behavior: z.enum(['Removed', 'Isolated', 'MergedWithPrevious', 'MergedWithNext', 'Contiguous']),
    invert: z.boolean().default(false),
  }),
};

const decoderPieces = {
  ByteFallback: z.object({ type: z.literal('ByteFallback') }),
  ByteLevel: z.object({ type: z.literal('ByteLevel') }),
  Fuse: z.object({ type: z.literal('Fuse') }),
  Metaspace: preTokenizerPieces.Metaspace,
  Replace: z.object({
    type: z.literal('Replace'),
    pattern: z.object({ String: z.string().min(1) }),
    content: z.string(),
  }),
  Strip: z.object({
    type: z.literal('Strip'),
    content: z.string(),
    start: z.int().nonnegative(),
    stop: z.literal(0, 'must be 0: a stream cannot take back what it gave'),
  }),
};

const templateItem = z.union([
  z.object({ SpecialToken: z.object({ id: z.string() }) }),
  z.object({ Sequence: z.object({ id: z.enum(['A', 'B']) }) }),
]);

const postProcessorPieces = {
  ByteLevel: z.object({ type: z.literal('ByteLevel') }),
  TemplateProcessing: z.object({
    type: z.literal('TemplateProcessing'),
    single: z.array(templateItem),
    special_tokens: z.record(z.string(), z.object({ ids: z.array(z.int().nonnegative()) })),
  }),
};

type Piece<T extends Record<string, z.ZodType>> = z.infer<T[keyof T]>;
export type NormalizerPiece = Piece<typeof normalizerPieces>;
export type PreTokenizerPiece = Piece<typeof preTokenizerPieces>;
export type DecoderPiece = Piece<typeof decoderPieces>;
export type PostProcessorPiece = Piece<typeof postProcessorPieces>;

const addedToken = z.object({
  id: z.int().nonnegative(),
  content: z.string(),
  single_word: z.boolean().default(false),
  lstrip: z.boolean().default(false),
  rstrip: z.boolean().default(false),
  normalized: z.boolean().optional(),
  special: z.boolean().default(false),
});

/** `normalized`: it is looked for in the normalized text, and after those that are not. */
export interface AddedToken {
  readonly id: number;
  readonly content: string;
  readonly isSingleWord: boolean;
  readonly stripsLeft: boolean;
  readonly stripsRight: boolean;
  readonly isNormalized: boolean;
  readonly isSpecial: boolean;
}

const modelSchema = z.object({
  dropout: z.literal(0).nullish(),
  unk_token: z.string().nullish(),
  continuing_subword_prefix: z.literal('').nullish(),
  end_of_word_suffix: z.literal('').nullish(),
  fuse_unk: z.boolean().nullish(),
  byte_fallback: z.boolean().nullish(),
  ignore_merges: z.boolean().nullish(),
  vocab: z.custom<Readonly<Record<string, number>>>(isJsonObject, 'must be an object'),
  merges: z.custom<readonly unknown[]>(Array.isArray, 'must be a list'),
});

/** The model of a `tokenizer.json`; the ids and merges themselves are checked where they are read. */
export type BpeConfig = z.infer<typeof modelSchema>;

export interface TokenizerJson {
  readonly addedTokens: readonly AddedToken[];
  /** In the order in which they apply; sequences are flattened. */
  readonly normalizers: readonly NormalizerPiece[];
  readonly preTokenizers: readonly PreTokenizerPiece[];
  readonly postProcessors: readonly PostProcessorPiece[];
  readonly decoders: readonly DecoderPiece[];
  readonly model: BpeConfig;
}

/** Throws ConfigError with what is supported if a piece is not, and DataError if the file is not a tokenizer. */
export function parseTokenizerJson(json: unknown, source: string): TokenizerJson {
  if (!isJsonObject(json)) throw new DataError(`${source}: must be a JSON object, got ${describe(json)}`);
  const { model } = json;
  if (!isJsonObject(model)) throw new DataError(`${source}: model must be a JSON object, got ${describe(model)}`);
  // Files of before 0.12 do not name the type of the model; merges are what only BPE has.
  const type = model.type ?? ('merges' in model ? 'BPE' : undefined);
  if (type !== 'BPE') throw new ConfigError(`${source}: model must be BPE, got ${describe(type)}`);
  return {
    addedTokens: parseAddedTokens(json.added_tokens, source),
    normalizers: parsePieces(json.normalizer, 'normalizer', 'normalizers', normalizerPieces, source),
    preTokenizers: parsePieces(json.pre_tokenizer, 'pre_tokenizer', 'pretokenizers', preTokenizerPieces, source),
    postProcessors: parsePieces(json.post_processor, 'post_processor', 'processors', postProcessorPieces, source),
    decoders: parsePieces(json.decoder, 'decoder', 'decoders', decoderPieces, source),
    model: check(modelSchema, model, `${source}: model`),
  };
}

/** The list of a `tokenizer.json`, or the values of `added_tokens_decoder` of a `tokenizer_config.json`. Throws ConfigError. */
export function parseAddedTokens(value: unknown, source: string): AddedToken[] {
  const tokens = check(z.array(addedToken).nullish(), value, `${source}: added_tokens`) ?? [];
  return tokens.map((token) => ({
    id: token.id,
    content: token.content,
    isSingleWord: token.single_word,
    stripsLeft: token.lstrip,
    stripsRight: token.rstrip,
    isNormalized: token.normalized ?? !token.special,
    isSpecial: token.special,
  }));
}

function parsePieces<T extends Record<string, z.ZodType>>(
  value: unknown,
  field: string,
  listField: string,
  schemas: T,
  source: string,
): Piece<T>[] {
  if (value === null || value === undefined) return [];
  const type = (value as { type?: unknown }).type;
  if (type === 'Sequence') {
    const list = (value as Record<string, unknown>)[listField];
    if (!Array.isArray(list))
      throw new ConfigError(`${source}: ${field}.${listField} must be a list, got ${describe(list)}`);
    return list.flatMap((piece) => parsePieces(piece, field, listField, schemas, source));
  }
  const schema = typeof type === 'string' && Object.hasOwn(schemas, type) ? schemas[type] : undefined;
  if (schema === undefined) {
    const supported = ['Sequence', ...Object.keys(schemas)].sort().join(', ');
    throw new ConfigError(`${source}: ${field} must be one of ${supported}, got ${describe(type)}`);
  }
  return [check(schema, value, `${source}: ${field} ${String(type)}`) as Piece<T>];
}

function check<T>(schema: z.ZodType<T>, value: unknown, what: string): T {
  const parsed = schema.safeParse(value);
  if (parsed.success) return parsed.data;
  throw new ConfigError(`${what}: ${z.prettifyError(parsed.error)}`, { cause: parsed.error });
}

function describe(value: unknown): string {
  return JSON.stringify(value)?.slice(0, 80) ?? 'none';
}

/** The `model` of a `tokenizer.json` that merges pairs and does nothing else: every word can be spelt, so no token stands for the unknown. */
export function plainBpe<Merges>(vocab: Readonly<Record<string, number>>, merges: Merges) {
  return {
    type: 'BPE',
    dropout: null,
    unk_token: null,
    continuing_subword_prefix: null,
    end_of_word_suffix: null,
    fuse_unk: false,
    byte_fallback: false,
    ignore_merges: false,
    vocab,
    merges,
  };
}
