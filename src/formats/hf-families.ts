/**
 * What sets the families of Hugging Face decoders apart: defaults of their configuration classes, options that they read, and the
 * values that we refuse by name. Layer 1. Source: transformers models/<family>/configuration_*.py and modeling_*.py, version 5.24.
 */
import * as z from 'zod';
import { ConfigError } from '../core/errors.ts';
import type { DecoderConfig, ModelType } from './decoder-config.ts';

const size = z.int().positive();
const tokenId = z.int().nonnegative();
/** `eos_token_id`. */
export const eosIds = z.union([tokenId, z.array(tokenId)]).nullish();

/** What any family reads of a `config.json`. */
export const hfSchema = z.looseObject({
  vocab_size: size,
  hidden_size: size,
  num_hidden_layers: size,
  num_attention_heads: size,
  num_key_value_heads: size.nullish(),
  head_dim: size.nullish(),
  intermediate_size: size,
  rope_theta: z.number().positive().nullish(),
  rope_local_base_freq: z.number().positive().nullish(),
  partial_rotary_factor: z.number().positive().max(1).nullish(),
  rms_norm_eps: z.number().positive().nullish(),
  max_position_embeddings: size,
  original_max_position_embeddings: size.nullish(),
  tie_word_embeddings: z.boolean().nullish(),
  qk_norm: z.boolean().nullish(),
  attention_bias: z.boolean().nullish(),
  mlp_bias: z.boolean().nullish(),
  sliding_window: size.nullish(),
  use_sliding_window: z.boolean().nullish(),
  max_window_layers: z.int().nonnegative().nullish(),
  sliding_window_pattern: size.nullish(),
  layer_types: z.array(z.enum(['full_attention', 'sliding_attention'])).nullish(),
  query_pre_attn_scalar: z.number().positive().nullish(),
  final_logit_softcapping: z.number().positive().nullish(),
  eos_token_id: eosIds,
  bos_token_id: tokenId.nullish(),
  pad_token_id: tokenId.nullish(),
});
export type HfConfig = z.infer<typeof hfSchema>;

export interface Family {
  /** Of the classes of transformers, before `ForCausalLM`. */
  readonly className: string;
  /** Values of the configuration class for keys that a file leaves out. */
  readonly defaults: Partial<HfConfig>;
  readonly options: (hf: HfConfig) => Partial<DecoderConfig>;
  /** Options that change the computation: which values we compute. */
  readonly accepts: Readonly<Record<string, (value: unknown) => boolean>>;
  /** Keys that only this family writes. */
  readonly write: (config: DecoderConfig) => Record<string, unknown>;
}

const isZero = (value: unknown): boolean => value === 0;
const isFalse = (value: unknown): boolean => value === false;
const isBoolean = (value: unknown): boolean => typeof value === 'boolean';
const isSilu = (value: unknown): boolean => value === 'silu' || value === 'swish';

const commonRules = {
  hidden_act: isSilu,
  attention_dropout: isZero,
  attention_bias: isFalse,
  mlp_bias: isFalse,
  partial_rotary_factor: (value: unknown) => value === 1,
  quantization_config: () => false,
  pretraining_tp: (value: unknown) => value === 1,
} as const;

const allFull = (value: unknown): boolean => Array.isArray(value) && value.every((type) => type === 'full_attention');

const slidesAll = (hf: HfConfig): Partial<DecoderConfig> =>
  hf.sliding_window
    ? window(
        hf.sliding_window,
        layersWhere(hf, () => true),
      )
    : {};

function window(slidingWindow: number, slidingLayers: readonly number[]): Partial<DecoderConfig> {
  return slidingLayers.length === 0 ? {} : { slidingWindow, slidingLayers };
}

function layersWhere(hf: HfConfig, isSliding: (layer: number) => boolean): number[] {
  return Array.from({ length: hf.num_hidden_layers }, (_, layer) => layer).filter(isSliding);
}

/** The layers that `layer_types` names, else those of the family's rule. Throws ConfigError on a list of another length. */
function slidingLayers(hf: HfConfig, rule: (layer: number) => boolean): number[] {
  const { layer_types: types, num_hidden_layers: layers } = hf;
  if (types && types.length !== layers) {
    throw new ConfigError(`layer_types must have one entry per layer (${layers}), got ${types.length}`);
  }
  return layersWhere(hf, (layer) => (types ? types[layer] === 'sliding_attention' : rule(layer)));
}

/** Qwen: the window counts only where `use_sliding_window` is on. */
function qwenWindow(hf: HfConfig): Partial<DecoderConfig> {
  const isOn = hf.use_sliding_window === true && hf.sliding_window;
  const layers = slidingLayers(hf, (layer) => Boolean(isOn) && layer >= (hf.max_window_layers ?? 28));
  if (!isOn && layers.length > 0) {
    throw new ConfigError(
      'layer_types may have sliding_attention only with use_sliding_window and sliding_window, got ' +
        `${JSON.stringify(hf.use_sliding_window ?? null)} and ${JSON.stringify(hf.sliding_window ?? null)}`,
    );
  }
  return isOn ? window(hf.sliding_window!, layers) : {};
}

function layerTypes(config: DecoderConfig): string[] {
  return Array.from({ length: config.layers }, (_, layer) =>
    config.slidingLayers.includes(layer) ? 'sliding_attention' : 'full_attention',
  );
}

const writeQwenWindow = (config: DecoderConfig): Record<string, unknown> =>
  config.slidingWindow === null
    ? { sliding_window: null, use_sliding_window: false }
    : {
        sliding_window: config.slidingWindow,
        use_sliding_window: true,
        max_window_layers: config.slidingLayers[0],
        layer_types: layerTypes(config),
      };

/** transformers 5 refuses an int in this place, and JavaScript's JSON writes 30 for 30.0: the next number above is written as a float. */
const toPythonFloat = (value: number): number => (Number.isInteger(value) ? value * (1 + Number.EPSILON) : value);
const fromPythonFloat = (value: number): number =>
  Math.abs(value - Math.round(value)) < 1e-9 ? Math.round(value) : value;

export const families: Readonly<Record<ModelType, Family>> = {
  llama: {
    className: 'Llama',
    defaults: {},
    options: (hf) => ({
      hasQkNorm: hf.qk_norm ?? false,
      hasAttentionBias: hf.attention_bias ?? false,
      hasOutputBias: hf.attention_bias ?? false,
      hasMlpBias: hf.mlp_bias ?? false,
    }),
    accepts: { ...commonRules, attention_bias: isBoolean, mlp_bias: isBoolean, layer_types: allFull },
    write: (config) => ({
      attention_bias: config.hasAttentionBias,
      mlp_bias: config.hasMlpBias,
      ...(config.hasQkNorm ? { qk_norm: true } : {}),
    }),
  },
  mistral: {
    className: 'Mistral',
    defaults: { num_key_value_heads: 8, sliding_window: 4096 },
    options: slidesAll,
    accepts: { ...commonRules, layer_types: () => false },
    write: (config) => ({ sliding_window: config.slidingWindow }),
  },
  qwen2: {
    className: 'Qwen2',
    defaults: {},
    options: (hf) => ({ hasAttentionBias: true, ...qwenWindow(hf) }),
    accepts: commonRules,
    write: writeQwenWindow,
  },
  qwen3: {
    className: 'Qwen3',
    defaults: { head_dim: 128 },
    options: (hf) => ({
      hasQkNorm: hf.qk_norm ?? true,
      hasAttentionBias: hf.attention_bias ?? false,
      hasOutputBias: hf.attention_bias ?? false,
      ...qwenWindow(hf),
    }),
    accepts: { ...commonRules, attention_bias: isBoolean },
    write: (config) => ({
      attention_bias: config.hasAttentionBias,
      ...(config.hasQkNorm ? {} : { qk_norm: false }),
      ...writeQwenWindow(config),
    }),
  },
  gemma3_text: {
    className: 'Gemma3',
    defaults: {
      vocab_size: 262_208,
      num_attention_heads: 8,
      num_key_value_heads: 4,
      head_dim: 256,
      rope_theta: 1e6,
      max_position_embeddings: 131_072,
      tie_word_embeddings: true,
      sliding_window: 4096,
      query_pre_attn_scalar: 256,
      eos_token_id: 1,
      bos_token_id: 2,
      pad_token_id: 0,
    },
    options: (hf) => ({
      hasQkNorm: true,
      hasPostNorms: true,
      normOffset: 1,
      embeddingScale: Math.sqrt(hf.hidden_size),
      queryScale: 1 / Math.sqrt(hf.query_pre_attn_scalar!),
      activation: 'geluTanh',
      logitSoftcap: hf.final_logit_softcapping ? fromPythonFloat(hf.final_logit_softcapping) : null,
      hasAttentionBias: hf.attention_bias ?? false,
      hasOutputBias: hf.attention_bias ?? false,
      ...window(
        hf.sliding_window!,
        slidingLayers(hf, (layer) => (layer + 1) % (hf.sliding_window_pattern ?? 6) !== 0),
      ),
    }),
    accepts: {
      ...commonRules,
      // The class reads `hidden_activation` alone.
      hidden_act: () => true,
      hidden_activation: (value) => value === 'gelu_pytorch_tanh',
      attention_bias: isBoolean,
      use_bidirectional_attention: isFalse,
      // Read by the class, used by no layer.
      attn_logit_softcapping: () => false,
      sliding_window: (value) => value !== null,
    },
    write: (config) => ({
      attention_bias: config.hasAttentionBias,
      attn_logit_softcapping: null,
      final_logit_softcapping: config.logitSoftcap === null ? null : toPythonFloat(config.logitSoftcap),
      hidden_activation: 'gelu_pytorch_tanh',
      layer_types: layerTypes(config),
      // Rounding, because 1/√x and back is off by a bit.
      query_pre_attn_scalar: Number((1 / config.queryScale! ** 2).toPrecision(12)),
      rope_local_base_freq: config.localRopeTheta,
      sliding_window: config.slidingWindow ?? 4096,
    }),
  },
  phi3: {
    className: 'Phi3',
    defaults: { rms_norm_eps: 1e-5, original_max_position_embeddings: 4096 },
    options: (hf) => ({ hasFusedProjections: true, ...slidesAll(hf) }),
    accepts: {
      ...commonRules,
      partial_rotary_factor: (value) => typeof value === 'number',
      resid_pdrop: isZero,
      embd_pdrop: isZero,
      layer_types: () => false,
    },
    write: (config) => ({
      embd_pdrop: 0,
      resid_pdrop: 0,
      sliding_window: config.slidingWindow,
      ...(config.rotarySize === null ? {} : { partial_rotary_factor: config.rotarySize / config.headSize }),
      ...(config.ropeScaling?.kind === 'longrope'
        ? { original_max_position_embeddings: config.ropeScaling.originalMaxPositions }
        : {}),
    }),
  },
};
