/** GGUF files that are not whole or not supported: each refused by name, with what is. */
import { readFile, rm, truncate, writeFile } from 'node:fs/promises';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { ConfigError, DataError } from '../../src/core/errors.ts';
import { createRng } from '../../src/core/rng.ts';
import { string, uint32 } from '../../src/export/gguf-metadata.ts';
import type { GgufValue } from '../../src/formats/gguf-writer.ts';
import { openModel } from '../../src/formats/model-source.ts';
import type { FloatTensor } from '../../src/formats/safetensors.ts';
import { randomParameters, tinyConfig } from '../tiny-model.ts';
import { createTestFolder, modelMetadata, modelTensors, writeGgufFile } from './gguf-files.ts';

const config = tinyConfig();
const metadata = modelMetadata(config);
const tensors = modelTensors(config, randomParameters(config, 5));
const folder = await createTestFolder();
afterAll(folder.remove);

type Change = (parts: { metadata: Map<string, GgufValue>; tensors: Map<string, FloatTensor> }) => void;

/** Opens a model with a change, and reads it whole. */
async function load(change: Change): Promise<void> {
  const parts = { metadata: new Map(metadata), tensors: new Map(tensors) };
  change(parts);
  const path = folder.path('changed.gguf');
  await rm(path, { force: true });
  await writeGgufFile(path, parts.metadata, parts.tensors);
  const model = await openModel(path);
  await model.loadTokenizer();
  await model.readTensors();
}

async function errorOf(work: Promise<unknown>): Promise<unknown> {
  return work.then(
    () => null,
    (error: unknown) => error,
  );
}

test('the file without a change is a model', async () => {
  await load(() => undefined);
});

const strings = (values: readonly string[]): GgufValue => ({ type: 'array', of: 'string', values });

test.each<[string, Change, string]>([
  [
    'architecture',
    ({ metadata }) => metadata.set('general.architecture', string('mamba')),
    'general.architecture must be one of llama, qwen2, qwen3, gemma3, phi3, got mamba',
  ],
  [
    'a head size for values alone',
    ({ metadata }) => metadata.set('qwen3.attention.value_length', uint32(8)),
    'qwen3.attention.value_length must be the key_length, 16',
  ],
  [
    'kind of tokenizer',
    ({ metadata }) => metadata.set('tokenizer.ggml.model', string('bert')),
    'tokenizer.ggml.model must be gpt2 or llama, got bert',
  ],
  [
    'way of splitting words',
    ({ metadata }) => metadata.set('tokenizer.ggml.pre', string('default')),
    'tokenizer.ggml.pre must be one of gpt-2, smollm, llama-bpe, llama3, llama-v3, dbrx, qwen2, deepseek-r1-qwen, got default',
  ],
  [
    'rope scaling',
    ({ metadata }) => metadata.set('qwen3.rope.scaling.type', string('su')),
    'rope_type must be one of default, linear, llama3, yarn, longrope, got "su"',
  ],
])('unsupported: %s', async (_name, change, message) => {
  const error = await errorOf(load(change));
  expect(error).toBeInstanceOf(ConfigError);
  expect((error as Error).message).toContain(folder.path('changed.gguf'));
  expect((error as Error).message).toContain(message);
});

test.each<[string, Change, string]>([
  [
    'field missing',
    ({ metadata }) => metadata.delete('qwen3.block_count'),
    'must have the field qwen3.block_count, got none',
  ],
  [
    'field of another type',
    ({ metadata }) => metadata.set('qwen3.block_count', string('two')),
    'qwen3.block_count must be a finite number, got two',
  ],
  [
    'list in place of a number',
    ({ metadata }) => metadata.set('qwen3.attention.head_count', { type: 'array', of: 'uint32', values: [4, 4] }),
    'qwen3.attention.head_count must be a finite number, got an array',
  ],
  [
    'tensor missing',
    ({ tensors }) => tensors.delete('blk.1.attn_k_norm.weight'),
    'must hold the tensor blk.1.attn_k_norm.weight, got none',
  ],
  [
    'tensor of no such model',
    ({ tensors }) => tensors.set('blk.0.ffn_gate_inp.weight', { shape: [32], data: new Float32Array(32) }),
    'must hold nothing but tensors of a qwen3 model, got blk.0.ffn_gate_inp.weight',
  ],
  [
    'weight that is not a number',
    ({ tensors }) => {
      const data = tensors.get('blk.1.ffn_up.weight')!.data.slice();
      data[77] = Number.NaN;
      tensors.set('blk.1.ffn_up.weight', { shape: [48, 32], data });
    },
    'weights must be finite, got NaN in blk.1.ffn_up.weight at value 77',
  ],
  [
    'no tokens',
    ({ metadata }) => metadata.delete('tokenizer.ggml.tokens'),
    'must have the field tokenizer.ggml.tokens',
  ],
  [
    'no merges',
    ({ metadata }) => metadata.delete('tokenizer.ggml.merges'),
    'must have the field tokenizer.ggml.merges',
  ],
  [
    'token twice',
    ({ metadata }) =>
      metadata.set('tokenizer.ggml.tokens', strings(Array.from({ length: 64 }, (_, id) => `t${id % 60}`))),
    'tokenizer.ggml.tokens must be different, got "t0" at 0 and 60',
  ],
  [
    'more tokens than rows of the embedding',
    ({ metadata }) => {
      metadata.set('tokenizer.ggml.tokens', strings(Array.from({ length: 70 }, (_, id) => `t${id}`)));
      metadata.delete('tokenizer.ggml.token_type');
    },
    'tokenizer.ggml.tokens must be at most the 64 rows of token_embd.weight, got 70',
  ],
  [
    'end token of no such id',
    ({ metadata }) => metadata.set('tokenizer.ggml.bos_token_id', uint32(64)),
    'tokenizer.ggml.bos_token_id must be below 64, got 64',
  ],
  [
    'part of a split file',
    ({ metadata }) => metadata.set('split.count', uint32(3)),
    'must be a whole model, got a part of a split one',
  ],
])('%s', async (_name, change, message) => {
  const error = await errorOf(load(change));
  expect(error).toBeInstanceOf(DataError);
  expect((error as Error).message).toContain(`${folder.path('changed.gguf')}: `);
  expect((error as Error).message).toContain(message);
});

describe('damaged bytes', () => {
  const path = folder.path('damaged.gguf');
  let whole: Buffer;
  /** Where the data begins: the embedding is the first tensor. */
  let header = 0;
  beforeAll(async () => {
    await writeGgufFile(path, metadata, tensors);
    whole = await readFile(path);
    const values = tensors.get('token_embd.weight')!;
    header = whole.indexOf(Buffer.from(values.data.buffer, values.data.byteOffset, 32));
    expect(header % 32).toBe(0);
  });

  test('a file cut anywhere is called truncated, or not GGUF where nothing is left', async () => {
    for (const size of [header - 1, header, header + 4000, whole.length - 33]) {
      await writeFile(path, whole);
      await truncate(path, size);
      const error = await errorOf(openModel(path));
      expect(error, String(size)).toBeInstanceOf(DataError);
      expect((error as Error).message, String(size)).toContain('file is truncated');
    }
    for (const size of [0, 3, 20, 400, Math.floor(header / 2)]) {
      await writeFile(path, whole.subarray(0, size));
      const error = await errorOf(openModel(path));
      expect(error, String(size)).toBeInstanceOf(DataError);
      expect((error as Error).message, String(size)).toMatch(/file is truncated|must be a GGUF file/);
    }
  });

  test('another kind of file, a folder of that name, and none', async () => {
    await writeFile(path, 'not a model at all');
    await expect(openModel(path)).rejects.toThrow(`${path}: must be a GGUF file, got not a valid gguf file`);
    await expect(openModel(folder.path('none.gguf'))).rejects.toThrow('none.gguf: must be a readable file, got ENOENT');
  });

  test('a type of tensor that is not read is named, with those that are', async () => {
    const at = whole.indexOf('blk.0.attn_q.weight') + 'blk.0.attn_q.weight'.length + 4 + 16;
    const changed = Buffer.from(whole);
    changed.writeUInt32LE(10, at);
    await writeFile(path, changed);
    const error = await errorOf(openModel(path));
    expect(error).toEqual(
      new DataError(
        `${path}: tensor blk.0.attn_q.weight: type must be one of ` +
          'F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K, got Q2_K',
      ),
    );
  });

  test('random damage of the header gives a typed error or a model, never anything else', async () => {
    const rng = createRng('damaged-gguf');
    let refused = 0;
    for (let i = 0; i < 150; i++) {
      const changed = Buffer.from(whole);
      for (let n = 0; n < 3; n++) changed[rng.integer(header)] = rng.integer(256);
      await writeFile(path, changed);
      const error = await errorOf(openModel(path).then((model) => model.readTensors()));
      if (error === null) continue;
      refused++;
      expect(error instanceof DataError || error instanceof ConfigError, String(error)).toBe(true);
    }
    expect(refused).toBeGreaterThan(50);
  });
});
