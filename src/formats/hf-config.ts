/**
 * `config.json` of Hugging Face decoder models, to and from our `DecoderConfig`. Layer 1.
 * Source: transformers models/{llama,qwen2,qwen3}/configuration_*.py, keys of versions 4 and 5.
 * Left out: rope scaling, sliding windows, dropout, quantised weights, MLP biases. They are refused by name.
 */
import { join } from 'node:path';
import * as z from 'zod';
import { ConfigError } from '../core/errors.ts';
import { readJsonFile, readTextFile } from './atomic-files.ts';

const modelTypes = ['llama', 'qwen2', 'qwen3'] as const;

export type ModelType = (typeof modelTypes)[number];

export interface DecoderConfig {
  readonly modelType: ModelType;
  /** Rows of the embedding, V; may exceed the tokenizer's vocabulary. */
  readonly vocabSize: number;
  /** D */
  readonly width: number;
  readonly layers: number;
  /** H */
  readonly heads: number;
  /** K, a divisor of H. */
  readonly kvHeads: number;
  /** C, even; H·C may differ from D. */
  readonly headSize: number;
  /** F */
  readonly ffWidth: number;
  readonly ropeTheta: number;
  readonly normEpsilon: number;
  readonly maxPositions: number;
  /** The output projection is the embedding. */
  readonly isEmbeddingTied: boolean;
  /** RMSNorm over the head size of q and k, before the rotary embedding. */
  readonly hasQkNorm: boolean;
  /** Biases on q, k and v; never on o. */
  readonly hasAttentionBias: boolean;
  /** Ids that end a turn; may be empty. */
  readonly eosTokenId: readonly number[];
  readonly bosTokenId: number | null;
  readonly padTokenId: number | null;
}

const size = z.int().positive();
const tokenId = z.int().nonnegative();
const optionalId = tokenId.nullish();
const eosIds = z.union([tokenId, z.array(tokenId)]).nullish();

const hfSchema = z.looseObject({
  model_type: z.enum(modelTypes),
  vocab_size: size,
  hidden_size: size,
  num_hidden_layers: size,
  num_attention_heads: size,
  num_key_value_heads: size.nullish(),
  head_dim: size.nullish(),
  intermediate_size: size,
  rope_theta: z.number().positive().optional(),
  rope_parameters: z.looseObject({ rope_theta: z.number().positive().optional() }).nullish(),
  rms_norm_eps: z.number().positive().default(1e-6),
  max_position_embeddings: size,
  tie_word_embeddings: z.boolean().default(false),
  qk_norm: z.boolean().optional(),
  eos_token_id: eosIds,
  bos_token_id: optionalId,
  pad_token_id: optionalId,
});

type HfConfig = z.infer<typeof hfSchema>;

/** Options that change the computation and that we do not implement: the values that mean "off". */
const refusals: Readonly<Record<string, (value: unknown) => boolean>> = {
  hidden_act: (value) => value === 'silu' || value === 'swish',
  rope_scaling: isDefaultRope,
  rope_parameters: isDefaultRope,
  attention_dropout: (value) => value === 0,
  attention_bias: (value) => value === false,
  mlp_bias: (value) => value === false,
  use_sliding_window: (value) => value === false,
  layer_types: (value) => Array.isArray(value) && value.every((type) => type === 'full_attention'),
  partial_rotary_factor: (value) => value === 1,
  quantization_config: () => false,
  pretraining_tp: (value) => value === 1,
};

/** The model described by the value of a `config.json`. `source` names it in errors. Throws ConfigError. */
export function parseHfConfig(json: unknown, source = 'config.json'): DecoderConfig {
  const modelType = (json as { model_type?: unknown } | null)?.model_type;
  if (!modelTypes.some((type) => type === modelType)) {
    throw new ConfigError(
      `${source}: model_type must be one of ${modelTypes.join(', ')}, got ${JSON.stringify(modelType)}`,
    );
  }
  for (const [option, isOff] of Object.entries(refusals)) {
    const value = (json as Record<string, unknown>)[option];
    if (value !== undefined && value !== null && !isOff(value)) {
      throw new ConfigError(`${source}: ${option} ${JSON.stringify(value)} is not implemented`);
    }
  }
  const parsed = hfSchema.safeParse(json);
  if (!parsed.success) throw new ConfigError(`${source}: ${z.prettifyError(parsed.error)}`, { cause: parsed.error });
  return checkSizes(toDecoderConfig(parsed.data), source);
}

/**
 * The model in a folder: `config.json`, with the end-of-turn ids of `generation_config.json` first where it has any
 * (what `generate` of transformers stops at). Throws ConfigError, or DataError if the file is missing or not JSON.
 */
export async function readHfConfig(directory: string): Promise<DecoderConfig> {
  const path = join(directory, 'config.json');
  const config = parseHfConfig(await readJsonFile(path), path);
  const generationPath = join(directory, 'generation_config.json');
  if ((await readTextFile(generationPath)) === null) return config;
  const generation = z.looseObject({ eos_token_id: eosIds }).safeParse(await readJsonFile(generationPath));
  if (!generation.success) throw new ConfigError(`${generationPath}: ${z.prettifyError(generation.error)}`);
  const ids = new Set([...toIds(generation.data.eos_token_id), ...config.eosTokenId]);
  return checkSizes({ ...config, eosTokenId: [...ids] }, directory);
}

/** The value of a `config.json` that transformers loads; `parseHfConfig` gives back an equal `DecoderConfig`. */
export function toHfConfig(config: DecoderConfig): Record<string, unknown> {
  checkSizes(config, 'decoder config');
  const family = { llama: 'Llama', qwen2: 'Qwen2', qwen3: 'Qwen3' }[config.modelType];
  const { eosTokenId } = config;
  return {
    architectures: [`${family}ForCausalLM`],
    attention_dropout: 0,
    ...(config.modelType === 'qwen2' ? {} : { attention_bias: false }),
    bos_token_id: config.bosTokenId,
    eos_token_id: eosTokenId.length === 0 ? null : eosTokenId.length === 1 ? eosTokenId[0] : [...eosTokenId],
    head_dim: config.headSize,
    hidden_act: 'silu',
    hidden_size: config.width,
    initializer_range: 0.02,
    intermediate_size: config.ffWidth,
    max_position_embeddings: config.maxPositions,
    model_type: config.modelType,
    num_attention_heads: config.heads,
    num_hidden_layers: config.layers,
    num_key_value_heads: config.kvHeads,
    pad_token_id: config.padTokenId,
    ...(config.hasQkNorm === (config.modelType === 'qwen3') ? {} : { qk_norm: config.hasQkNorm }),
    rms_norm_eps: config.normEpsilon,
    rope_scaling: null,
    rope_theta: config.ropeTheta,
    ...(config.modelType === 'llama' ? { mlp_bias: false } : { sliding_window: null, use_sliding_window: false }),
    tie_word_embeddings: config.isEmbeddingTied,
    torch_dtype: 'float32',
    use_cache: true,
    vocab_size: config.vocabSize,
  };
}

function toDecoderConfig(hf: HfConfig): DecoderConfig {
  return {
    modelType: hf.model_type,
    vocabSize: hf.vocab_size,
    width: hf.hidden_size,
    layers: hf.num_hidden_layers,
    heads: hf.num_attention_heads,
    kvHeads: hf.num_key_value_heads ?? hf.num_attention_heads,
    // Qwen3's configuration class defaults to 128 whatever the width.
    headSize: hf.head_dim ?? (hf.model_type === 'qwen3' ? 128 : hf.hidden_size / hf.num_attention_heads),
    ffWidth: hf.intermediate_size,
    // 10 000 is the default of all three configuration classes.
    ropeTheta: hf.rope_theta ?? hf.rope_parameters?.rope_theta ?? 10_000,
    normEpsilon: hf.rms_norm_eps,
    maxPositions: hf.max_position_embeddings,
    isEmbeddingTied: hf.tie_word_embeddings,
    hasQkNorm: hf.qk_norm ?? hf.model_type === 'qwen3',
    hasAttentionBias: hf.model_type === 'qwen2',
    eosTokenId: toIds(hf.eos_token_id),
    bosTokenId: hf.bos_token_id ?? null,
    padTokenId: hf.pad_token_id ?? null,
  };
}

function checkSizes(config: DecoderConfig, source: string): DecoderConfig {
  const { heads, kvHeads, headSize, vocabSize } = config;
  if (heads % kvHeads !== 0) {
    throw new ConfigError(`${source}: key/value heads must divide the heads, got ${kvHeads} and ${heads}`);
  }
  if (!Number.isInteger(headSize) || headSize % 2 !== 0) {
    throw new ConfigError(`${source}: head size must be an even integer for rotary embeddings, got ${headSize}`);
  }
  for (const id of config.eosTokenId) {
    if (id >= vocabSize)
      throw new ConfigError(`${source}: eos_token_id must be below vocab_size ${vocabSize}, got ${id}`);
  }
  return config;
}

function isDefaultRope(value: unknown): boolean {
  if (typeof value !== 'object' || value === null) return false;
  const { rope_type: ropeType, type, factor, partial_rotary_factor: partial } = value as Record<string, unknown>;
  return (ropeType ?? type ?? 'default') === 'default' && (factor ?? 1) === 1 && (partial ?? 1) === 1;
}

function toIds(ids: z.infer<typeof eosIds>): readonly number[] {
  return ids === null || ids === undefined ? [] : Array.isArray(ids) ? ids : [ids];
}
