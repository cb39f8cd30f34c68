import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { hashBaseModel, normalizeBaseModel } from './base-model.ts';

let folder = '';
beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'art-base-'));
});
afterEach(() => rm(folder, { recursive: true }));

test('the hash of a base model covers all of its shards', async () => {
  await expect(hashBaseModel(folder)).rejects.toThrow('base model: must be a folder that holds model.safetensors');
  await expect(hashBaseModel(join(folder, 'missing'))).rejects.toThrow(
    'base model: must be a folder or .gguf file that can be read',
  );
  await writeFile(join(folder, 'model.safetensors'), 'abc');
  expect(await hashBaseModel(folder)).toBe('ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad');
  await writeFile(join(folder, 'model-2.safetensors'), 'abc');
  const sharded = await hashBaseModel(folder);
  await writeFile(join(folder, 'model-2.safetensors'), 'abd');
  expect(await hashBaseModel(folder)).not.toBe(sharded);
});

test('a .gguf file is hashed itself, and named when it is not there', async () => {
  const path = join(folder, 'model.gguf');
  await expect(hashBaseModel(path)).rejects.toThrow(`base model: ${path} must be a file that can be read, got ENOENT`);
  await writeFile(path, 'abc');
  expect(await hashBaseModel(path)).toBe('ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad');
});

test('a base model is stored as an absolute path, or as an id with its revision', async () => {
  expect(await normalizeBaseModel('./models/a')).toBe(resolve('models/a'));
  expect(await normalizeBaseModel('org/name')).toBe('org/name@main');
  expect(await normalizeBaseModel('org/name@v1:a.gguf')).toBe('org/name@v1:a.gguf');
});
