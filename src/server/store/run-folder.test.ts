import { spawnSync } from 'node:child_process';
import { mkdir, mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { ConfigError } from '../../core/errors.ts';
import {
  checkRegistration,
  findRegistration,
  lockRunFolder,
  readPackageVersion,
  readRegistration,
  runDirectory,
  writeRegistration,
} from './run-folder.ts';

let folder = '';
beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'art-run-'));
});
afterEach(() => rm(folder, { recursive: true }));

const request = {
  name: 'agent',
  project: 'demo',
  base_model: '/models/base',
  lora: { rank: 4, alpha: 8 },
  seed: 1,
};

test('a folder is open once: in this process, and against a running one, named by its id', async () => {
  const unlock = await lockRunFolder(folder);
  expect(await readFile(join(folder, 'lock'), 'utf8')).toBe(`${process.pid}\n`);
  await expect(lockRunFolder(folder)).rejects.toThrow(new RegExp(`process ${process.pid} has it`));
  await unlock();
  await unlock();
  expect(await readdir(folder)).toEqual([]);
  await writeFile(join(folder, 'lock'), `${process.ppid}\n`);
  await expect(lockRunFolder(folder)).rejects.toThrow(ConfigError);
  await expect(lockRunFolder(folder)).rejects.toThrow(new RegExp(`process ${process.ppid} has it`));
});

test.each([
  ['of a dead process', () => `${spawnSync(process.execPath, ['--version']).pid}\n`],
  ['with our own id, from a dead process before us', () => `${process.pid}\n`],
  ['that was never written out', () => ''],
])('a lock %s is taken over', async (_, content) => {
  await mkdir(folder, { recursive: true });
  await writeFile(join(folder, 'lock'), content());
  const unlock = await lockRunFolder(folder);
  expect(await readFile(join(folder, 'lock'), 'utf8')).toBe(`${process.pid}\n`);
  expect(await readdir(folder)).toEqual(['lock']);
  await unlock();
});

test('a registration is written once and then compared, field by field; a base model may move', async () => {
  expect(await findRegistration(folder)).toBe(null);
  await writeRegistration(folder, request, { commit: null, sha256: 'hash' });
  const stored = await readRegistration(folder);
  checkRegistration(stored, { ...request, base_model: '/elsewhere' }, 'hash');
  const check = async (change: object, hash = 'hash') => checkRegistration(stored, { ...request, ...change }, hash);
  await expect(check({}, 'other')).rejects.toThrow(/base_model must stay what it was registered with.*hash.*other/);
  await expect(check({ lora: { rank: 8, alpha: 8 } })).rejects.toThrow(/lora\.rank must stay .* 4, got 8/);
  await expect(check({ lora: { ...request.lora, target_modules: ['q_proj'] } })).rejects.toThrow(
    /lora\.target_modules/,
  );
  await expect(check({ seed: 2 })).rejects.toThrow(ConfigError);
  await expect(check({ chat_template: '{{ messages }}' })).rejects.toThrow(/chat_template must stay .* null, got/);
});

test('folder layout and version', async () => {
  expect(runDirectory('/a/.art', 'demo', 'agent')).toBe(join('/a', '.art', 'demo', 'models', 'agent'));
  expect(await readPackageVersion()).toMatch(/^\d+\.\d+\.\d+/);
});
