/**
 * The metadata of a GGUF file as the value of a `config.json`, so that one reader decides what is supported. Layer 1.
 * Source: llama.cpp gguf-py/gguf/constants.py (keys), convert_hf_to_gguf.py (what each family writes).
 */
import { ConfigError, DataError } from '../core/errors.ts';
import type { ModelType } from './decoder-config.ts';
import type { GgufFile, GgufMetadata } from './gguf-file.ts';
import { type GgufArchitecture, ggufArchitectures, requiredTensors } from './gguf-names.ts';

/** Values of the small tensors that say how the rotary embedding is stretched, by the name of the tensor. */
export type RopeTensors = ReadonlyMap<string, Float32Array>;

/** Tensors beside the parameters. */
export const ropeTensorNames = ['rope_freqs.weight', 'rope_factors_long.weight', 'rope_factors_short.weight'] as const;

/** Tokens that end a turn and that files do not always name: those of the families here. */
const endOfTurnTokens = ['<|im_end|>', '<|eot_id|>', '<|eom_id|>', '<|end|>', '<end_of_turn>'];

/** Throws ConfigError naming the architecture if it is not supported. */
export function ggufArchitecture({ path, metadata }: GgufFile): GgufArchitecture {
  const name = required(metadata.string('general.architecture'), 'general.architecture', path);
  const known = Object.values(ggufArchitectures).find((architecture) => architecture === name);
  if (known !== undefined) return known;
  const supported = [...new Set(Object.values(ggufArchitectures))].join(', ');
  throw new ConfigError(`${path}: general.architecture must be one of ${supported}, got ${name}`);
}

/** For `parseHfConfig`. Throws ConfigError, or DataError naming the field or tensor that is missing. */
export function ggufToHfConfig(file: GgufFile, ropeTensors: RopeTensors): Record<string, unknown> {
  const architecture = ggufArchitecture(file);
  const { path, metadata, tensors } = file;
  const read = (key: string): number | null => metadata.number(`${architecture}.${key}`);
  const need = (key: string): number => required(read(key), `${architecture}.${key}`, path);
  const layers = need('block_count');
  const missing = requiredTensors(architecture, layers).find((name) => !tensors.has(name));
  if (missing !== undefined) throw new DataError(`${path}: must hold the tensor ${missing}, got none`);
  const width = need('embedding_length');
  const heads = need('attention.head_count');
  const headSize = read('attention.key_length') ?? width / heads;
  const valueSize = read('attention.value_length') ?? headSize;
  if (valueSize !== headSize) {
    throw new ConfigError(
      `${path}: ${architecture}.attention.value_length must be the key_length, ${headSize}, got ${valueSize}`,
    );
  }
  return {
    model_type: modelType(architecture, metadata),
    vocab_size: tensors.get('token_embd.weight')!.shape[0],
    hidden_size: width,
    num_hidden_layers: layers,
    num_attention_heads: heads,
    num_key_value_heads: read('attention.head_count_kv') ?? heads,
    head_dim: headSize,
    intermediate_size: need('feed_forward_length'),
    rms_norm_eps: shortest(need('attention.layer_norm_rms_epsilon')),
    max_position_embeddings: need('context_length'),
    tie_word_embeddings: !tensors.has('output.weight'),
    rope_theta: shortest(read('rope.freq_base') ?? 10_000),
    ...ropeScaling(architecture, file, headSize, ropeTensors),
    ...familyOptions(architecture, file, { layers, width, heads, headSize }),
    ...tokenIds(metadata),
  };
}

/** A file of Mistral differs from Llama's in its window alone. */
function modelType(architecture: GgufArchitecture, metadata: GgufMetadata): ModelType {
  if (architecture === 'llama') return metadata.has('llama.attention.sliding_window') ? 'mistral' : 'llama';
  return architecture === 'gemma3' ? 'gemma3_text' : architecture;
}

function familyOptions(
  architecture: GgufArchitecture,
  { metadata, tensors }: GgufFile,
  sizes: { readonly layers: number; readonly width: number; readonly heads: number; readonly headSize: number },
): Record<string, unknown> {
  // 0 says that no layer slides.
  const window = metadata.number(`${architecture}.attention.sliding_window`) || null;
  switch (architecture) {
    case 'llama':
      return {
        sliding_window: window,
        attention_bias: tensors.has('blk.0.attn_output.bias'),
        mlp_bias: tensors.has('blk.0.ffn_down.bias'),
      };
    case 'qwen2':
      return {};
    case 'qwen3':
      return { attention_bias: tensors.has('blk.0.attn_q.bias') };
    case 'gemma3': {
      // llama.cpp tells the 27B model, the only one that scales by the width, by its 62 layers.
      const isLargest = sizes.layers === 62;
      return {
        ...(window === null ? { layer_types: Array(sizes.layers).fill('full_attention') } : { sliding_window: window }),
        sliding_window_pattern: metadata.number('gemma3.attention.sliding_window_pattern') ?? 6,
        query_pre_attn_scalar: isLargest ? sizes.width / sizes.heads : sizes.headSize,
        final_logit_softcapping: metadata.number('gemma3.final_logit_softcapping'),
        rope_local_base_freq: metadata.number('gemma3.rope.freq_base_swa') ?? 10_000,
      };
    }
    case 'phi3': {
      const rotary = metadata.number('phi3.rope.dimension_count') ?? sizes.headSize;
      return { sliding_window: window, partial_rotary_factor: rotary / sizes.headSize };
    }
  }
}

function ropeScaling(
  architecture: GgufArchitecture,
  { path, metadata }: GgufFile,
  headSize: number,
  ropeTensors: RopeTensors,
): Record<string, unknown> {
  const read = (key: string): number | null => metadata.number(`${architecture}.rope.scaling.${key}`);
  const tableFactor = read('attn_factor');
  const original = read('original_context_length');
  const factors = ropeTensors.get('rope_freqs.weight');
  if (factors !== undefined) {
    const theta = metadata.number(`${architecture}.rope.freq_base`) ?? 10_000;
    return { rope_scaling: llama3Scaling(factors, theta, headSize, path) };
  }
  const short = ropeTensors.get('rope_factors_short.weight');
  const long = ropeTensors.get('rope_factors_long.weight');
  if (short !== undefined && long !== undefined) {
    const lists = { short_factor: Array.from(short, shortest), long_factor: Array.from(long, shortest) };
    const scaling = { rope_type: 'longrope', ...lists, attention_factor: tableFactor && shortest(tableFactor) };
    return { rope_scaling: scaling, original_max_position_embeddings: original };
  }
  const type = metadata.string(`${architecture}.rope.scaling.type`) ?? 'none';
  if (type === 'none') return {};
  const factor = read('factor');
  if (type !== 'yarn') return { rope_scaling: { rope_type: type, factor } };
  // llama.cpp multiplies the tables by 1 + 0.1 · ln(factor) as well.
  const attention = tableFactor === null ? null : shortest(tableFactor * (1 + 0.1 * Math.log(factor ?? 1)));
  const betas = { beta_fast: read('yarn_beta_fast'), beta_slow: read('yarn_beta_slow') };
  const scaling = { factor, original_max_position_embeddings: original, attention_factor: attention, ...betas };
  return { rope_scaling: { rope_type: type, ...scaling } };
}

/** Llama 3's, of which a file keeps the factor of each pair alone: these are the numbers of every Llama 3 so far. */
const llama3 = { low_freq_factor: 1, high_freq_factor: 4, original_max_position_embeddings: 8192 } as const;

function llama3Scaling(factors: Float32Array, theta: number, headSize: number, path: string): Record<string, unknown> {
  const factor = factors.reduce((most, value) => Math.max(most, value), 1);
  const { low_freq_factor: low, high_freq_factor: high, original_max_position_embeddings: original } = llama3;
  const expected = (pair: number): number => {
    const turns = original / (2 * Math.PI * theta ** ((2 * pair) / headSize));
    const kept = Math.min(1, Math.max(0, (turns - low) / (high - low)));
    return 1 / ((1 - kept) / factor + kept);
  };
  // 1e-3: a file may have computed them in float32; another model's differ by whole units.
  const wrong = factors.findIndex((value, pair) => !(Math.abs(value / expected(pair) - 1) < 1e-3));
  if (wrong < 0 && factors.length === headSize / 2) return { rope_type: 'llama3', factor, ...llama3 };
  throw new ConfigError(
    `${path}: rope_freqs.weight must hold Llama 3's factors for ${headSize / 2} pairs, got ${factors.length} values, ` +
      `${factors[Math.max(wrong, 0)]} at pair ${Math.max(wrong, 0)}`,
  );
}

function tokenIds(metadata: GgufMetadata): Record<string, unknown> {
  const id = (name: string): number | null => metadata.number(`tokenizer.ggml.${name}_token_id`);
  const tokens = metadata.strings('tokenizer.ggml.tokens') ?? [];
  const named = [id('eos'), id('eot'), ...endOfTurnTokens.map((token) => tokens.indexOf(token))];
  const ends = named.filter((value) => value !== null && value >= 0);
  return { bos_token_id: id('bos'), pad_token_id: id('padding'), eos_token_id: [...new Set(ends)] };
}

/** The shortest decimal number with the same float32: 1e-5 instead of 0.000009999999747. */
function shortest(value: number): number {
  const short = Number(value.toPrecision(7));
  return Math.fround(short) === Math.fround(value) ? short : value;
}

function required<T>(value: T | null, key: string, path: string): T {
  if (value === null) throw new DataError(`${path}: must have the field ${key}, got none`);
  return value;
}
