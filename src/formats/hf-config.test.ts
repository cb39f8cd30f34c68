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

test.each([
  ['qwen2', {}],
  ['qwen3', { head_dim: 128, eos_token_id: [1, 2], qk_norm: false }],
  ['llama', { eos_token_id: null, qk_norm: true, tie_word_embeddings: false, pad_token_id: 0 }],
])('%s: toHfConfig is the inverse of parseHfConfig', (model_type, options) => {
  const config = parseHfConfig({ ...qwen2, model_type, ...options });
  expect(parseHfConfig(toHfConfig(config))).toEqual(config);
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
  [{ attention_bias: true }, 'attention_bias true is not implemented'],
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
