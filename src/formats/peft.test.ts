import { mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { ConfigError, DataError } from '../core/errors.ts';
import { type AdapterFiles, adapterKey, readAdapterFiles, writeAdapterFiles } from './peft.ts';

const module = 'model.layers.0.self_attn.q_proj';
const keyA = adapterKey(module, 'A');
const keyB = adapterKey(module, 'B');
const a = { shape: [2, 3], data: Float32Array.of(1, 2, 3, 4, 5, 6) };
const b = { shape: [4, 2], data: Float32Array.of(0, -0, 0.1, 1e-40, 1, 2, 3, 4) };
const adapter: AdapterFiles = {
  config: { rank: 2, alpha: 4, targetModules: ['q_proj'] },
  tensors: new Map([
    [keyA, a],
    [keyB, b],
  ]),
  baseModel: 'some/model',
};

let folder = '';
beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'art-peft-'));
});
afterAll(() => rm(folder, { recursive: true }));

test('an adapter survives its files bit for bit, under the names of Python PEFT', async () => {
  const directory = join(folder, 'step', '0001');
  await writeAdapterFiles(directory, adapter);
  expect(await readAdapterFiles(directory)).toEqual(adapter);
  expect((await readdir(directory)).sort()).toEqual(['adapter_config.json', 'adapter_model.safetensors']);
  expect(keyA).toBe('base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight');
  expect(JSON.parse(await readFile(join(directory, 'adapter_config.json'), 'utf8'))).toMatchObject({
    peft_type: 'LORA',
    task_type: 'CAUSAL_LM',
    r: 2,
    lora_alpha: 4,
    lora_dropout: 0,
    bias: 'none',
    target_modules: ['q_proj'],
    base_model_name_or_path: 'some/model',
  });
});

test.each([
  ['rank 0', { config: { ...adapter.config, rank: 0 } }, ConfigError, 'rank must be an integer ≥ 1, got 0'],
  ['alpha 0', { config: { ...adapter.config, alpha: 0 } }, ConfigError, 'alpha must be above 0, got 0'],
  ['no tensors', { tensors: new Map() }, DataError, 'must have tensors, got none'],
  ['another key', { tensors: new Map([['lora_A', a]]) }, DataError, 'keys must be base_model.model.'],
  ['A alone', { tensors: new Map([[keyA, a]]) }, DataError, 'A and B come in pairs'],
  ['another rank', { config: { ...adapter.config, rank: 3 } }, DataError, 'must be [R, in] with R = 3, got [2, 3]'],
  [
    'a module that is no target',
    { config: { ...adapter.config, targetModules: ['v_proj'] } },
    DataError,
    'modules must be of [v_proj], got model.layers.0.self_attn.q_proj',
  ],
  [
    'a target without tensors',
    { config: { ...adapter.config, targetModules: ['q_proj', 'v_proj'] } },
    DataError,
    'target module v_proj has no tensors',
  ],
  [
    'NaN',
    { tensors: new Map([...adapter.tensors, [keyB, { ...b, data: b.data.map(() => NaN) }]]) },
    DataError,
    'must be finite, got NaN at 0',
  ],
])('refuses to write: %s', async (_, change, type, message) => {
  const written = writeAdapterFiles(join(folder, 'refused'), { ...adapter, ...change });
  await expect(written).rejects.toThrow(type);
  await expect(written).rejects.toThrow(message);
});

test.each([
  [{ use_dora: true }, 'use_dora'],
  [{ bias: 'all' }, 'bias'],
  [{ peft_type: 'IA3' }, 'peft_type'],
  [{ target_modules: 'all-linear' }, 'target_modules'],
  [{ rank_pattern: { q_proj: 4 } }, 'rank_pattern {"q_proj":4} is not implemented'],
  [{ modules_to_save: ['lm_head'] }, 'modules_to_save ["lm_head"] is not implemented'],
])('refuses to read %j', async (change, message) => {
  const directory = join(folder, 'read');
  await writeAdapterFiles(directory, adapter);
  const path = join(directory, 'adapter_config.json');
  const json = JSON.parse(await readFile(path, 'utf8')) as object;
  await writeFile(path, JSON.stringify({ ...json, ...change }));
  await expect(readAdapterFiles(directory)).rejects.toThrow(ConfigError);
  await expect(readAdapterFiles(directory)).rejects.toThrow(message);
});
