/**
 * `config.json` of Hugging Face decoder models, to and from our `DecoderConfig`. Layer 1.
 * Source: transformers configuration classes, keys of versions 4 and 5; `hf-families.ts` has what sets the families apart.
 * Left out, and refused by name: other architectures, dropout, quantised weights, dynamic NTK, images.
 */
import { join } from 'node:path';
import { isDeepStrictEqual } from 'node:util';
import * as z from 'zod';
import { ConfigError } from '../core/errors.ts';
import { readJsonFile, readTextFile } from './atomic-files.ts';
import { type DecoderConfig, type ModelType, modelTypes, plainDecoder } from './decoder-config.ts';
import { eosIds, families, type HfConfig, hfSchema } from './hf-families.ts';
import { parseRope, type Rope, toHfRope } from './rope-scaling.ts';

export { type DecoderConfig, type ModelType, plainDecoder } from './decoder-config.ts';

/** The model described by the value of a `config.json`. `source` names it in errors. Throws ConfigError. */
export function parseHfConfig(json: unknown, source = 'config.json'): DecoderConfig {
  const modelType = readModelType(json, source);
  const { defaults, accepts } = families[modelType];
  const given = Object.entries(json as Record<string, unknown>).filter(([, value]) => value !== undefined);
  for (const [option, value] of given) {
    const isAccepted = Object.hasOwn(accepts, option) ? accepts[option]! : () => true;
    if (value !== null && !isAccepted(value)) {
      throw new ConfigError(`${source}: ${option} ${JSON.stringify(value)} is not implemented for ${modelType}`);
    }
  }
  const parsed = hfSchema.safeParse({ ...defaults, ...Object.fromEntries(given) });
  if (!parsed.success) throw new ConfigError(`${source}: ${z.prettifyError(parsed.error)}`, { cause: parsed.error });
  return checkSizes(toDecoderConfig(modelType, parsed.data, source), source);
}

function readModelType(json: unknown, source: string): ModelType {
  const given = (json as { model_type?: unknown } | null)?.model_type;
  const known = modelTypes.find((type) => type === given);
  if (known !== undefined) return known;
  const hint = given === 'gemma3' ? ': images are not implemented, take a checkpoint of the text model alone' : '';
  throw new ConfigError(
    `${source}: model_type must be one of ${modelTypes.join(', ')}, got ${JSON.stringify(given)}${hint}`,
  );
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

/**
 * The value of a `config.json` that transformers loads; `parseHfConfig` gives back an equal `DecoderConfig`. Throws ConfigError if the
 * family has no such option.
 */
export function toHfConfig(config: DecoderConfig): Record<string, unknown> {
  checkSizes(config, 'decoder config');
  const { eosTokenId, ropeScaling } = config;
  const family = families[config.modelType];
  const hf = {
    architectures: [`${family.className}ForCausalLM`],
    attention_dropout: 0,
    bos_token_id: config.bosTokenId,
    eos_token_id: eosTokenId.length === 0 ? null : eosTokenId.length === 1 ? eosTokenId[0] : [...eosTokenId],
    head_dim: config.headSize,
    hidden_act: 'silu',
    hidden_size: config.width,
    initializer_range: 0.02,
    intermediate_size: config.ffWidth,
    max_position_embeddings: ropeScaling?.kind === 'longrope' ? ropeScaling.stretchedMaxPositions : config.maxPositions,
    model_type: config.modelType,
    num_attention_heads: config.heads,
    num_hidden_layers: config.layers,
    num_key_value_heads: config.kvHeads,
    pad_token_id: config.padTokenId,
    rms_norm_eps: config.normEpsilon,
    rope_scaling: toHfRope(ropeScaling),
    rope_theta: config.ropeTheta,
    tie_word_embeddings: config.isEmbeddingTied,
    torch_dtype: 'float32',
    use_cache: true,
    vocab_size: config.vocabSize,
    ...family.write(config),
  };
  const readBack = parseHfConfig(hf);
  const lost = (Object.keys(config) as (keyof DecoderConfig)[]).find(
    (key) => !isDeepStrictEqual(readBack[key], config[key]),
  );
  if (lost === undefined) return hf;
  throw new ConfigError(
    `decoder config: ${lost} of a ${config.modelType} model must be ${JSON.stringify(readBack[lost])} to be written, ` +
      `got ${JSON.stringify(config[lost])}`,
  );
}

interface Ropes {
  readonly main: Rope;
  readonly localTheta: number | null;
}

/** Gemma has a rope for each kind of layer: `rope_parameters` by kind, or beside `rope_scaling` a `rope_local_base_freq`. */
function readRopes(modelType: ModelType, hf: HfConfig, source: string): Ropes {
  const positions = { max: hf.max_position_embeddings, original: hf.original_max_position_embeddings ?? null };
  const key = hf.rope_scaling ? 'rope_scaling' : 'rope_parameters';
  const value = hf[key] as Record<string, unknown> | null | undefined;
  const what = `${source}: ${key}`;
  if (modelType === 'phi3') {
    const type = value?.rope_type ?? value?.type;
    const isLong = type === 'su' || type === 'yarn' || type === 'longrope';
    const main = parseRope(isLong ? { ...value, rope_type: 'longrope' } : value, positions, what);
    if (main.scaling !== null && main.scaling.kind !== 'longrope') {
      throw new ConfigError(`${what}: rope_type must be default or longrope for phi3, got ${JSON.stringify(type)}`);
    }
    return { main, localTheta: null };
  }
  if (modelType !== 'gemma3_text') return { main: parseRope(value, positions, what), localTheta: null };
  const isByKind = value?.full_attention !== undefined || value?.sliding_attention !== undefined;
  const local = parseRope(isByKind ? value.sliding_attention : null, positions, what);
  if (local.scaling !== null) {
    throw new ConfigError(`${what}: sliding layers must have the default rope_type, got ${local.scaling.kind}`);
  }
  return {
    main: parseRope(isByKind ? value.full_attention : value, positions, what),
    localTheta: local.theta ?? hf.rope_local_base_freq ?? 10_000,
  };
}

function toDecoderConfig(modelType: ModelType, hf: HfConfig, source: string): DecoderConfig {
  const { main, localTheta } = readRopes(modelType, hf, source);
  const headSize = hf.head_dim ?? hf.hidden_size / hf.num_attention_heads;
  const rotaryFactor = main.rotaryFactor ?? hf.partial_rotary_factor ?? 1;
  const maxPositions =
    main.scaling?.kind === 'longrope'
      ? Math.min(main.scaling.originalMaxPositions, hf.max_position_embeddings)
      : hf.max_position_embeddings;
  const options = { ...plainDecoder, ...readOptions(modelType, hf, source) };
  // A window over all positions hides nothing.
  const isWindowed = localTheta !== null || (options.slidingWindow ?? maxPositions) < maxPositions;
  const windows = isWindowed ? {} : { slidingWindow: null, slidingLayers: [] };
  return {
    ...options,
    ...windows,
    modelType,
    vocabSize: hf.vocab_size,
    width: hf.hidden_size,
    layers: hf.num_hidden_layers,
    heads: hf.num_attention_heads,
    kvHeads: hf.num_key_value_heads ?? hf.num_attention_heads,
    headSize,
    ffWidth: hf.intermediate_size,
    // 10 000 is the default of all configuration classes that set no other.
    ropeTheta: main.theta ?? hf.rope_theta ?? 10_000,
    ropeScaling: main.scaling,
    localRopeTheta: localTheta,
    rotarySize: rotaryFactor === 1 ? null : Math.floor(headSize * rotaryFactor),
    normEpsilon: hf.rms_norm_eps ?? 1e-6,
    maxPositions,
    isEmbeddingTied: hf.tie_word_embeddings ?? false,
    eosTokenId: toIds(hf.eos_token_id),
    bosTokenId: hf.bos_token_id ?? null,
    padTokenId: hf.pad_token_id ?? null,
  };
}

function readOptions(modelType: ModelType, hf: HfConfig, source: string): Partial<DecoderConfig> {
  try {
    return families[modelType].options(hf);
  } catch (error) {
    throw error instanceof ConfigError ? new ConfigError(`${source}: ${error.message}`) : error;
  }
}

function checkSizes(config: DecoderConfig, source: string): DecoderConfig {
  const { heads, kvHeads, headSize, vocabSize, rotarySize, ropeScaling } = config;
  if (heads % kvHeads !== 0) {
    throw new ConfigError(`${source}: key/value heads must divide the heads, got ${kvHeads} and ${heads}`);
  }
  if (!Number.isInteger(headSize) || headSize % 2 !== 0) {
    throw new ConfigError(`${source}: head size must be an even integer for rotary embeddings, got ${headSize}`);
  }
  const turned = rotarySize ?? headSize;
  if (turned < 2 || turned % 2 !== 0 || turned > headSize) {
    throw new ConfigError(`${source}: rotary channels must be an even number up to ${headSize}, got ${turned}`);
  }
  if (ropeScaling?.kind === 'longrope' && ropeScaling.shortFactors.length !== turned / 2) {
    throw new ConfigError(
      `${source}: short_factor must have one entry per pair (${turned / 2}), got ${ropeScaling.shortFactors.length}`,
    );
  }
  for (const id of config.eosTokenId) {
    if (id >= vocabSize)
      throw new ConfigError(`${source}: eos_token_id must be below vocab_size ${vocabSize}, got ${id}`);
  }
  return config;
}

function toIds(ids: z.infer<typeof eosIds>): readonly number[] {
  return ids === null || ids === undefined ? [] : Array.isArray(ids) ? ids : [ids];
}
