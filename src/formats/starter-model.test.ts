import { createHash } from 'node:crypto';
import { mkdtemp, readdir, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { ConfigError, DataError } from '../core/errors.ts';
import { createChatTemplate } from './chat-template.ts';
import { readHfConfig } from './hf-config.ts';
import { readModelTensors } from './safetensors.ts';
import { writeStarterModel } from './starter-model.ts';
import { loadTokenizer } from './tokenizer.ts';

const corpus = ['You play tic-tac-toe. You play X. Reply with the number of a cell.'];
const small = { corpus, seed: 7, width: 16, layers: 2, heads: 2, kvHeads: 1, headSize: 8, ffWidth: 24 };

let folder = '';
beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'art-starter-'));
});
afterAll(() => rm(folder, { recursive: true }));

async function digest(directory: string): Promise<string> {
  const hash = createHash('sha256');
  for (const name of (await readdir(directory)).sort()) hash.update(name).update(await readFile(join(directory, name)));
  return hash.digest('hex');
}

test('default sizes, names and shapes of Qwen3', async () => {
  const directory = join(folder, 'deep', 'default');
  const config = await writeStarterModel({ seed: 1, directory, corpus });
  expect(config).toEqual(await readHfConfig(directory));
  expect(config).toMatchObject({ modelType: 'qwen3', width: 128, layers: 4, heads: 4, kvHeads: 2, headSize: 32 });
  expect(config).toMatchObject({ ffWidth: 384, maxPositions: 1024, isEmbeddingTied: true, hasQkNorm: true });
  const tensors = await readModelTensors(directory);
  expect(tensors.size).toBe(2 + 4 * 11);
  const shape = (name: string) => tensors.get(name)?.shape;
  expect(shape('model.embed_tokens.weight')).toEqual([config.vocabSize, 128]);
  expect(shape('model.layers.3.self_attn.k_proj.weight')).toEqual([64, 128]);
  expect(shape('model.layers.0.self_attn.o_proj.weight')).toEqual([128, 128]);
  expect(shape('model.layers.0.self_attn.q_norm.weight')).toEqual([32]);
  expect(shape('model.layers.0.mlp.down_proj.weight')).toEqual([128, 384]);
  expect(await readdir(folder)).toEqual(['deep']);
  expect(await readdir(join(folder, 'deep'))).toEqual(['default']);
});

test('weights: deviation 1 / √columns, residual projections smaller by √(2·layers), norms 1', async () => {
  const directory = join(folder, 'statistics');
  await writeStarterModel({ ...small, directory, width: 128, ffWidth: 384 });
  const tensors = await readModelTensors(directory);
  const deviation = (name: string): number => {
    const data = tensors.get(name)?.data ?? new Float32Array();
    return Math.sqrt(data.reduce((sum, value) => sum + value * value, 0) / data.length);
  };
  // 49 152 samples: the standard error of a deviation is 0.32 %, so 2 % is six of them.
  expect(Math.abs(deviation('model.layers.0.mlp.up_proj.weight') * Math.sqrt(128) - 1)).toBeLessThan(0.02);
  expect(Math.abs(deviation('model.layers.0.mlp.down_proj.weight') * 2 * Math.sqrt(384) - 1)).toBeLessThan(0.02);
  expect(tensors.get('model.norm.weight')?.data).toEqual(new Float32Array(128).fill(1));
});

test('the seed decides every byte', async () => {
  const paths = ['a', 'b', 'c'].map((name) => join(folder, name));
  for (const [i, directory] of paths.entries()) await writeStarterModel({ ...small, directory, seed: i === 2 ? 8 : 7 });
  const [a, b, c] = await Promise.all(paths.map(digest));
  expect(a).toBe(b);
  expect(a).not.toBe(c);
});

test('tokenizer and chat template of the folder work together', async () => {
  const directory = join(folder, 'chat');
  const config = await writeStarterModel({ ...small, directory });
  const tokenizer = await loadTokenizer(directory);
  expect(tokenizer.vocabSize).toBe(config.vocabSize);
  expect(config.eosTokenId).toEqual([tokenizer.eosId]);
  expect(config.padTokenId).toBe(tokenizer.padId);
  const template = createChatTemplate(tokenizer.config);
  const text = template.render({ messages: [{ role: 'user', content: 'X23' }], addGenerationPrompt: true });
  // <|im_start|> user ⏎ X 2 3 <|im_end|> ⏎ <|im_start|> assistant ⏎
  expect(tokenizer.encode(text)).toHaveLength(11);
});

test('refuses sizes that do not fit, a fractional seed and a folder that exists; leaves nothing behind', async () => {
  const directory = join(folder, 'refused');
  await expect(writeStarterModel({ ...small, directory, kvHeads: 3 })).rejects.toThrow(ConfigError);
  await expect(writeStarterModel({ ...small, directory, headSize: 7 })).rejects.toThrow('head size must be an even');
  await expect(writeStarterModel({ ...small, directory, seed: 0.5 })).rejects.toThrow('seed: must be a safe integer');
  expect(await readdir(folder)).not.toContain('refused');
  await writeStarterModel({ ...small, directory });
  await expect(writeStarterModel({ ...small, directory })).rejects.toThrow(DataError);
});
