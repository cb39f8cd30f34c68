import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { ConfigError } from '../core/errors.ts';
import { type DecoderConfig, parseHfConfig, plainDecoder, readHfConfig, toHfConfig } from './hf-config.ts';

/** Qwen/Qwen2.5-0.5B-Instruct, config.json. */
const qwen2 = {
  architectures: ['Qwen2ForCausalLM'],
  attention_dropout: 0.0,
  bos_token_id: 151643,
  eos_token_id: 151645,
  hidden_act: 'silu',
  hidden_size: 896,
  initializer_range: 0.02,
  intermediate_size: 4864,
  max_position_embeddings: 32768,
  max_window_layers: 21,
  model_type: 'qwen2',
  num_attention_heads: 14,
  num_hidden_layers: 24,
  num_key_value_heads: 2,
  rms_norm_eps: 1e-6,
  rope_theta: 1000000.0,
  sliding_window: 32768,
  tie_word_embeddings: true,
  torch_dtype: 'bfloat16',
  use_cache: true,
  use_sliding_window: false,
  vocab_size: 151936,
};

test('Qwen2.5 0.5B: sizes, biases on q, k and v, no q/k norm', () => {
  expect(parseHfConfig(qwen2)).toEqual({
    ...plainDecoder,
    modelType: 'qwen2',
    vocabSize: 151936,
    width: 896,
    layers: 24,
    heads: 14,
    kvHeads: 2,
    headSize: 64,
    ffWidth: 4864,
    ropeTheta: 1e6,
    normEpsilon: 1e-6,
    maxPositions: 32768,
    isEmbeddingTied: true,
    hasAttentionBias: true,
    eosTokenId: [151645],
    bosTokenId: 151643,
    padTokenId: null,
  } satisfies DecoderConfig);
});

const { use_sliding_window: _use, max_window_layers: _max, sliding_window: _window, ...plain } = qwen2;

/** meta-llama/Llama-3.2-1B-Instruct, what differs from a plain Llama. */
const llama3 = {
  ...plain,
  model_type: 'llama',
  attention_bias: false,
  mlp_bias: false,
  pretraining_tp: 1,
  eos_token_id: [128001, 128008, 128009],
  max_position_embeddings: 131_072,
  rope_theta: 500_000,
  rope_scaling: {
    factor: 32,
    high_freq_factor: 4,
    low_freq_factor: 1,
    original_max_position_embeddings: 8192,
    rope_type: 'llama3',
  },
};

/** google/gemma-3-1b-it, config.json; the key `tie_word_embeddings` is missing. */
const gemma3 = {
  architectures: ['Gemma3ForCausalLM'],
  attention_bias: false,
  attention_dropout: 0.0,
  attn_logit_softcapping: null,
  bos_token_id: 2,
  cache_implementation: 'hybrid',
  eos_token_id: [1, 106],
  final_logit_softcapping: null,
  head_dim: 256,
  hidden_activation: 'gelu_pytorch_tanh',
  hidden_size: 1152,
  initializer_range: 0.02,
  intermediate_size: 6912,
  max_position_embeddings: 32_768,
  model_type: 'gemma3_text',
  num_attention_heads: 4,
  num_hidden_layers: 26,
  num_key_value_heads: 1,
  pad_token_id: 0,
  query_pre_attn_scalar: 256,
  rms_norm_eps: 1e-6,
  rope_local_base_freq: 10_000,
  rope_scaling: null,
  rope_theta: 1_000_000,
  sliding_window: 512,
  sliding_window_pattern: 6,
  torch_dtype: 'bfloat16',
  use_cache: true,
  vocab_size: 262_144,
};

/** microsoft/Phi-4-mini-instruct, its sizes and options. */
const phi4 = {
  attention_bias: false,
  attention_dropout: 0.0,
  bos_token_id: 199_999,
  embd_pdrop: 0.0,
  eos_token_id: 199_999,
  full_attn_mod: 1,
  hidden_act: 'silu',
  hidden_size: 3072,
  intermediate_size: 8192,
  interpolate_factor: 1,
  lm_head_bias: false,
  max_position_embeddings: 131_072,
  mlp_bias: false,
  model_type: 'phi3',
  num_attention_heads: 24,
  num_hidden_layers: 32,
  num_key_value_heads: 8,
  original_max_position_embeddings: 4096,
  pad_token_id: 199_999,
  partial_rotary_factor: 0.75,
  resid_pdrop: 0.0,
  rms_norm_eps: 1e-5,
  rope_scaling: { long_factor: new Array(48).fill(2), short_factor: new Array(48).fill(1), type: 'longrope' },
  rope_theta: 10_000.0,
  sliding_window: 262_144,
  tie_word_embeddings: true,
  vocab_size: 200_064,
};

test('Llama 3.2: rope scaling, ids that end a turn', () => {
  expect(parseHfConfig(llama3)).toMatchObject({
    ropeTheta: 500_000,
    ropeScaling: {
      kind: 'llama3',
      factor: 32,
      lowFrequencyFactor: 1,
      highFrequencyFactor: 4,
      originalMaxPositions: 8192,
    },
    eosTokenId: [128001, 128008, 128009],
    hasAttentionBias: false,
    slidingWindow: null,
  });
});

test('Gemma 3: five sliding layers of six with a rope of their own, norms, scales, activation', () => {
  const config = parseHfConfig(gemma3);
  const full = [5, 11, 17, 23];
  expect(config).toMatchObject({
    slidingWindow: 512,
    slidingLayers: Array.from({ length: 26 }, (_, layer) => layer).filter((layer) => !full.includes(layer)),
    ropeTheta: 1_000_000,
    localRopeTheta: 10_000,
    ropeScaling: null,
    normOffset: 1,
    embeddingScale: Math.sqrt(1152),
    queryScale: 1 / 16,
    activation: 'geluTanh',
    logitSoftcap: null,
    isEmbeddingTied: true,
    hasQkNorm: true,
    hasPostNorms: true,
    hasAttentionBias: false,
  });
  const rope = { rope_type: 'default', rope_theta: 1_000_000 };
  const { rope_theta: _theta, rope_local_base_freq: _local, rope_scaling: _scaling, ...rest } = gemma3;
  const rope_parameters = { full_attention: rope, sliding_attention: { ...rope, rope_theta: 10_000 } };
  expect(parseHfConfig({ ...rest, rope_parameters })).toEqual(config);
  expect(parseHfConfig({ ...gemma3, rope_scaling: { rope_type: 'linear', factor: 8 } })).toMatchObject({
    ropeScaling: { kind: 'linear', factor: 8 },
    localRopeTheta: 10_000,
  });
});

test('Mistral: every layer slides; without the key the window is 4,096, with null there is none', () => {
  const mistral = { ...plain, model_type: 'mistral', num_hidden_layers: 3 };
  const all = [0, 1, 2];
  expect(parseHfConfig({ ...mistral, sliding_window: 1000 })).toMatchObject({
    slidingWindow: 1000,
    slidingLayers: all,
  });
  expect(parseHfConfig(mistral)).toMatchObject({ slidingWindow: 4096, slidingLayers: all });
  expect(parseHfConfig({ ...mistral, sliding_window: null })).toMatchObject({ slidingWindow: null, slidingLayers: [] });
  // As many keys as there are positions: nothing is hidden.
  expect(parseHfConfig({ ...mistral, sliding_window: 32_768 })).toMatchObject({ slidingWindow: null });
});

test('Qwen: layers from max_window_layers on slide if use_sliding_window is set; layer_types wins', () => {
  const sliding = {
    ...qwen2,
    num_hidden_layers: 4,
    max_window_layers: 2,
    sliding_window: 99,
    use_sliding_window: true,
  };
  expect(parseHfConfig(sliding)).toMatchObject({ slidingWindow: 99, slidingLayers: [2, 3] });
  const types = ['sliding_attention', 'full_attention', 'full_attention', 'full_attention'];
  expect(parseHfConfig({ ...sliding, layer_types: types })).toMatchObject({ slidingLayers: [0] });
  expect(parseHfConfig({ ...sliding, use_sliding_window: false })).toMatchObject({ slidingWindow: null });
  expect(parseHfConfig({ ...sliding, max_window_layers: 4 })).toMatchObject({ slidingWindow: null, slidingLayers: [] });
});

test('Phi-4 mini: fused projections, three quarters of a head turn, longrope up to the original context', () => {
  expect(parseHfConfig(phi4)).toMatchObject({
    hasFusedProjections: true,
    rotarySize: 96,
    maxPositions: 4096,
    slidingWindow: null,
    ropeScaling: {
      kind: 'longrope',
      originalMaxPositions: 4096,
      stretchedMaxPositions: 131_072,
      attentionFactor: Math.sqrt(1 + Math.log(32) / Math.log(4096)),
    },
  });
});

test('yarn: factors that are left out follow from the others', () => {
  const parse = (rope_scaling: object) => parseHfConfig({ ...qwen2, rope_scaling }).ropeScaling;
  const qwen = { type: 'yarn', factor: 4, original_max_position_embeddings: 8192 };
  const expected = {
    kind: 'yarn',
    factor: 4,
    originalMaxPositions: 8192,
    betaFast: 32,
    betaSlow: 1,
    attentionFactor: 0.1 * Math.log(4) + 1,
    isTruncated: true,
  };
  expect(parse(qwen)).toEqual(expected);
  expect(parse({ rope_type: 'yarn', original_max_position_embeddings: 8192 })).toEqual(expected);
  expect(parse({ ...qwen, mscale: 1, mscale_all_dim: 0.5, truncate: false })).toEqual({
    ...expected,
    attentionFactor: (0.1 * Math.log(4) + 1) / (0.05 * Math.log(4) + 1),
    isTruncated: false,
  });
});

test.each<[string, object]>([
  ['qwen2', qwen2],
  ['qwen2, sliding', { ...qwen2, use_sliding_window: true, sliding_window: 512 }],
  ['qwen2, yarn', { ...qwen2, rope_scaling: { type: 'yarn', factor: 4, original_max_position_embeddings: 8192 } }],
  ['qwen3', { ...qwen2, model_type: 'qwen3', head_dim: 128, eos_token_id: [1, 2], qk_norm: false }],
  ['qwen3 with biases', { ...qwen2, model_type: 'qwen3', attention_bias: true }],
  [
    'llama',
    { ...plain, model_type: 'llama', eos_token_id: null, qk_norm: true, tie_word_embeddings: false, pad_token_id: 0 },
  ],
  ['llama with biases', { ...plain, model_type: 'llama', attention_bias: true, mlp_bias: true }],
  ['llama 3', llama3],
  ['mistral', { ...plain, model_type: 'mistral', sliding_window: 1000 }],
  ['mistral without window', { ...plain, model_type: 'mistral', sliding_window: null }],
  ['gemma 3', gemma3],
  ['gemma 3 with a soft cap', { ...gemma3, final_logit_softcapping: 30, query_pre_attn_scalar: 168 }],
  ['phi 4 mini', phi4],
  [
    'phi 3',
    { ...phi4, partial_rotary_factor: 1, rope_scaling: null, max_position_embeddings: 4096, sliding_window: 2047 },
  ],
])('%s: toHfConfig is the inverse of parseHfConfig', (_name, json) => {
  const config = parseHfConfig(json);
  expect(parseHfConfig(toHfConfig(config))).toEqual(config);
});

test('toHfConfig refuses what a family has no option for', () => {
  const config = parseHfConfig(qwen2);
  expect(() => toHfConfig({ ...config, hasQkNorm: true })).toThrow(
    new ConfigError('decoder config: hasQkNorm of a qwen2 model must be false to be written, got true'),
  );
  expect(() => toHfConfig({ ...config, modelType: 'llama', slidingWindow: 5, slidingLayers: [0] })).toThrow(
    'slidingWindow of a llama model must be null to be written, got 5',
  );
});

test('defaults of the configuration classes: rope theta 10 000, all heads as key/value heads, head size of Qwen3 128', () => {
  const { rope_theta: _theta, num_key_value_heads: _heads, ...rest } = qwen2;
  const llama = parseHfConfig({ ...rest, model_type: 'llama' });
  expect(llama).toMatchObject({ ropeTheta: 10_000, kvHeads: 14, headSize: 64, hasAttentionBias: false });
  expect(parseHfConfig({ ...rest, model_type: 'qwen3' })).toMatchObject({ headSize: 128, hasQkNorm: true });
});

test('transformers 5 writes rope_parameters', () => {
  const { rope_theta: _theta, ...rest } = qwen2;
  const config = parseHfConfig({ ...rest, rope_parameters: { rope_type: 'default', rope_theta: 5000 } });
  expect(config.ropeTheta).toBe(5000);
});

test.each([
  [{ model_type: 'gpt2' }, 'model_type must be one of llama, mistral, qwen2, qwen3, gemma3_text, phi3, got "gpt2"'],
  [
    { rope_scaling: { rope_type: 'dynamic', factor: 4 } },
    'rope_scaling: rope_type must be one of default, linear, llama3, yarn, longrope, got "dynamic"',
  ],
  [
    { rope_parameters: { rope_type: 'llama3' } },
    'rope_parameters: ✖ Invalid input: expected number, received undefined\n  → at factor',
  ],
  [{ attention_dropout: 0.1 }, 'attention_dropout 0.1 is not implemented'],
  [{ hidden_act: 'gelu' }, 'hidden_act "gelu" is not implemented'],
  [{ attention_bias: true }, 'attention_bias true is not implemented for qwen2'],
  [{ model_type: 'gemma3' }, 'got "gemma3": images are not implemented, take a checkpoint of the text model alone'],
  [{ model_type: 'gemma3_text', hidden_activation: 'gelu' }, 'hidden_activation "gelu" is not implemented'],
  [{ model_type: 'gemma3_text', attn_logit_softcapping: 50 }, 'attn_logit_softcapping 50 is not implemented'],
  [{ model_type: 'gemma3_text', use_bidirectional_attention: true }, 'use_bidirectional_attention true is not'],
  [
    { model_type: 'gemma3_text', rope_parameters: { sliding_attention: { rope_type: 'linear', factor: 2 } } },
    'sliding layers must have the default rope_type, got linear',
  ],
  [{ model_type: 'phi3', rope_scaling: { rope_type: 'linear', factor: 2 } }, 'must be default or longrope for phi3'],
  [
    { model_type: 'phi3', rope_scaling: { type: 'su', short_factor: [1], long_factor: [1] } },
    'short_factor must have one entry per pair (32), got 1',
  ],
  [{ model_type: 'phi3', embd_pdrop: 0.1 }, 'embd_pdrop 0.1 is not implemented for phi3'],
  [{ model_type: 'phi3', partial_rotary_factor: 0.49 }, 'rotary channels must be an even number up to 64, got 31'],
  [{ partial_rotary_factor: 0.5 }, 'partial_rotary_factor 0.5 is not implemented for qwen2'],
  [
    { layer_types: new Array(24).fill('sliding_attention') },
    'layer_types may have sliding_attention only with use_sliding_window and sliding_window',
  ],
  [{ layer_types: ['sliding_attention'] }, 'layer_types must have one entry per layer (24), got 1'],
  [{ quantization_config: { bits: 4 } }, 'quantization_config {"bits":4} is not implemented'],
  [{ num_key_value_heads: 4 }, 'key/value heads must divide the heads, got 4 and 14'],
  [{ head_dim: 63 }, 'head size must be an even integer for rotary embeddings, got 63'],
  [{ hidden_size: 900 }, 'head size must be an even integer for rotary embeddings, got 64.28'],
  [{ eos_token_id: 151936 }, 'eos_token_id must be below vocab_size 151936, got 151936'],
  [{ num_hidden_layers: 0 }, 'num_hidden_layers'],
  [{ vocab_size: '5' }, 'vocab_size'],
])('refuses %j', (options, message) => {
  const parse = () => parseHfConfig({ ...qwen2, ...options }, 'x/config.json');
  expect(parse).toThrow(ConfigError);
  expect(parse).toThrow(message);
  expect(parse).toThrow(/^x\/config\.json: /);
});

test('a folder: end-of-turn ids of generation_config.json come first', async () => {
  const folder = await mkdtemp(join(tmpdir(), 'art-config-'));
  try {
    await expect(readHfConfig(folder)).rejects.toThrow('config.json: file is missing');
    await writeFile(join(folder, 'config.json'), JSON.stringify(qwen2));
    expect((await readHfConfig(folder)).eosTokenId).toEqual([151645]);
    await writeFile(join(folder, 'generation_config.json'), JSON.stringify({ eos_token_id: [151645, 151643] }));
    expect((await readHfConfig(folder)).eosTokenId).toEqual([151645, 151643]);
    await writeFile(join(folder, 'generation_config.json'), '{');
    await expect(readHfConfig(folder)).rejects.toThrow('must be JSON');
  } finally {
    await rm(folder, { recursive: true });
  }
});
