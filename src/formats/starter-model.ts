/**
 * A small untrained model in Hugging Face's layout, made from a seed: what the demo trains without any download. Layer 1.
 * Source: transformers models/qwen3/modeling_qwen3.py (names, shapes); GPT-2 paper §2.3 (residual scaling).
 */
import { mkdir } from 'node:fs/promises';
import { dirname, join, resolve } from 'node:path';
import { ConfigError } from '../core/errors.ts';
import { createRng, type Rng } from '../core/rng.ts';
import { formatJson, writeFileAtomic, writeFolderAtomic } from './atomic-files.ts';
import { type TokenizerJson, trainByteBpe } from './bpe-trainer.ts';
import { chatMlTemplate } from './chatml-template.ts';
import { type DecoderConfig, plainDecoder, readHfConfig, toHfConfig } from './hf-config.ts';
import { type FloatTensor, toSafetensors, writeSafetensors } from './safetensors.ts';
import { createTokenizer } from './tokenizer.ts';

export interface StarterModelOptions {
  readonly seed: number;
  /** Must not exist yet. */
  readonly directory: string;
  /** Text whose words become tokens, e.g. the prompts of the task. */
  readonly corpus: readonly string[];
  readonly width?: number;
  readonly layers?: number;
  readonly heads?: number;
  readonly kvHeads?: number;
  readonly headSize?: number;
  readonly ffWidth?: number;
  readonly maxPositions?: number;
  /** Base of the rotary frequencies; default 10,000. A short context is resolved better by a small one. */
  readonly ropeTheta?: number;
  /** Upper limit; the model has as many rows as the tokenizer has ids. */
  readonly vocabSize?: number;
}

const defaults = {
  width: 128,
  layers: 4,
  heads: 4,
  kvHeads: 2,
  headSize: 32,
  ffWidth: 384,
  maxPositions: 1024,
  ropeTheta: 10_000,
  vocabSize: 512,
};

const specialTokens = ['<|endoftext|>', '<|im_start|>', '<|im_end|>'] as const;

/**
 * Standard deviation of the embedding; other matrices have 1 / √columns, so that a small width learns as fast as a large one. Qwen3's
 * `initializer_range` of 0.02 is the same thing at width 2,500.
 */
const embeddingDeviation = 0.05;

/**
 * Writes `config.json`, `model.safetensors`, `tokenizer.json`, `tokenizer_config.json` and `generation_config.json`.
 * The bytes depend on the options alone. The folder appears whole or not at all.
 * Throws ConfigError if the sizes do not fit together, DataError if the folder exists.
 */
export async function writeStarterModel(options: StarterModelOptions): Promise<DecoderConfig> {
  if (!Number.isSafeInteger(options.seed)) {
    throw new ConfigError(`seed: must be a safe integer, got ${options.seed}`);
  }
  const sizes = { ...defaults, ...withoutUndefined(options) };
  const tokenizer = trainTokenizer(options.corpus, sizes.vocabSize);
  const config = starterConfig(sizes, tokenizer);
  // Checks the sizes before anything is written.
  const hfConfig = toHfConfig(config);
  await mkdir(dirname(resolve(options.directory)), { recursive: true });
  await writeFolderAtomic(options.directory, async (folder) => {
    const writeJson = (name: string, value: unknown): Promise<void> =>
      writeFileAtomic(join(folder, name), [formatJson(value)]);
    await writeJson('config.json', hfConfig);
    await writeJson('generation_config.json', {
      bos_token_id: null,
      eos_token_id: config.eosTokenId,
      pad_token_id: config.padTokenId,
    });
    await writeJson('tokenizer.json', tokenizer);
    await writeJson('tokenizer_config.json', tokenizerConfig(tokenizer, config.maxPositions));
    const tensors = toSafetensors(starterTensors(config, options.seed));
    await writeSafetensors(join(folder, 'model.safetensors'), tensors, { format: 'pt' });
  });
  return readHfConfig(options.directory);
}

/** The tensors of an untrained model by their Hugging Face names; every tensor has its own random stream. */
export function starterTensors(config: DecoderConfig, seed: number): ReadonlyMap<string, FloatTensor> {
  const { width, ffWidth, headSize } = config;
  const tensors = new Map<string, FloatTensor>();
  const addNormal = (name: string, rows: number, columns: number, deviation: number): void => {
    const rng = createRng('starter-model', seed, name);
    tensors.set(name, { shape: [rows, columns], data: drawNormal(rows * columns, deviation, rng) });
  };
  const addMatrix = (name: string, rows: number, columns: number, scale = 1): void =>
    addNormal(name, rows, columns, scale / Math.sqrt(columns));
  const addOnes = (name: string, size: number): void => {
    tensors.set(name, { shape: [size], data: new Float32Array(size).fill(1) });
  };
  const residualScale = 1 / Math.sqrt(2 * config.layers);
  addNormal('model.embed_tokens.weight', config.vocabSize, width, embeddingDeviation);
  for (let layer = 0; layer < config.layers; layer++) {
    const prefix = `model.layers.${layer}`;
    addOnes(`${prefix}.input_layernorm.weight`, width);
    addMatrix(`${prefix}.self_attn.q_proj.weight`, config.heads * headSize, width);
    addMatrix(`${prefix}.self_attn.k_proj.weight`, config.kvHeads * headSize, width);
    addMatrix(`${prefix}.self_attn.v_proj.weight`, config.kvHeads * headSize, width);
    addMatrix(`${prefix}.self_attn.o_proj.weight`, width, config.heads * headSize, residualScale);
    addOnes(`${prefix}.self_attn.q_norm.weight`, headSize);
    addOnes(`${prefix}.self_attn.k_norm.weight`, headSize);
    addOnes(`${prefix}.post_attention_layernorm.weight`, width);
    addMatrix(`${prefix}.mlp.gate_proj.weight`, ffWidth, width);
    addMatrix(`${prefix}.mlp.up_proj.weight`, ffWidth, width);
    addMatrix(`${prefix}.mlp.down_proj.weight`, width, ffWidth, residualScale);
  }
  addOnes('model.norm.weight', width);
  return tensors;
}

function drawNormal(count: number, deviation: number, rng: Rng): Float32Array {
  const data = new Float32Array(count);
  for (let i = 0; i < count; i++) data[i] = deviation * rng.normal();
  return data;
}

function trainTokenizer(corpus: readonly string[], vocabSize: number): TokenizerJson {
  // The words of the template itself occur in every prompt, so they merge first.
  const roles = Array.from({ length: 1000 }, () => 'system user assistant tool').flatMap((text) => text.split(' '));
  return trainByteBpe([...corpus, ...roles], { vocabSize, specialTokens });
}

function starterConfig(sizes: typeof defaults, tokenizerJson: TokenizerJson): DecoderConfig {
  const tokenizer = createTokenizer(tokenizerJson);
  const { vocabSize: _limit, ...rest } = sizes;
  const eosId = tokenizer.tokenId('<|im_end|>');
  return {
    ...plainDecoder,
    modelType: 'qwen3',
    ...rest,
    vocabSize: tokenizer.vocabSize,
    normEpsilon: 1e-6,
    isEmbeddingTied: true,
    hasQkNorm: true,
    eosTokenId: eosId === null ? [] : [eosId],
    bosTokenId: null,
    padTokenId: tokenizer.tokenId('<|endoftext|>'),
  };
}

function tokenizerConfig(tokenizer: TokenizerJson, maxPositions: number): Record<string, unknown> {
  const added = tokenizer.added_tokens as readonly { readonly id: number }[];
  return {
    added_tokens_decoder: Object.fromEntries(added.map(({ id, ...token }) => [String(id), token])),
    additional_special_tokens: ['<|im_start|>', '<|im_end|>'],
    bos_token: null,
    chat_template: chatMlTemplate,
    clean_up_tokenization_spaces: false,
    eos_token: '<|im_end|>',
    model_max_length: maxPositions,
    pad_token: '<|endoftext|>',
    // Not Qwen2Tokenizer: transformers 5 would replace our pre-tokenizer by Qwen2's.
    tokenizer_class: 'PreTrainedTokenizerFast',
    unk_token: null,
  };
}

function withoutUndefined(options: StarterModelOptions): Partial<typeof defaults> {
  const names = Object.keys(defaults) as (keyof typeof defaults)[];
  const given = names.flatMap((name) => (options[name] === undefined ? [] : [[name, options[name]] as const]));
  return Object.fromEntries(given);
}
