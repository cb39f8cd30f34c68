import { mkdir, mkdtemp, rm } from 'node:fs/promises';
import { homedir, tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { expect, test } from 'vitest';
import { locateModel } from './model-id.ts';

const hub = (repo: string, revision = 'main', file: string | null = null) => ({
  kind: 'hub',
  id: { repo, revision, file },
});

test.each([
  ['HuggingFaceTB/SmolLM2-135M-Instruct', hub('HuggingFaceTB/SmolLM2-135M-Instruct')],
  ['org/name@v1.0', hub('org/name', 'v1.0')],
  ['org/name@refs/pr/1', hub('org/name', 'refs/pr/1')],
  ['org/name:q4.gguf', hub('org/name', 'main', 'q4.gguf')],
  ['org/name@main:sub/q4.gguf', hub('org/name', 'main', 'sub/q4.gguf')],
  ['./org/name', { kind: 'path', path: resolve('org/name') }],
  ['models/tiny.gguf', { kind: 'path', path: resolve('models/tiny.gguf') }],
  ['/models/name', { kind: 'path', path: '/models/name' }],
  ['a/b/c', { kind: 'path', path: resolve('a/b/c') }],
  ['name', { kind: 'path', path: resolve('name') }],
  ['.art/name', { kind: 'path', path: resolve('.art/name') }],
  ['~/models/a', { kind: 'path', path: join(homedir(), 'models/a') }],
])('%s', async (text, location) => {
  expect(await locateModel(text)).toEqual(location);
});

test.each([
  ['org/name@../main', 'base model org/name@../main: revision: must be a relative path without \'..\', got "../main"'],
  ['org/name@a b', 'base model org/name@a b: revision must be a branch, tag or commit, got "a b"'],
  ['org/name:weights.bin', 'the file behind \':\' must be a .gguf file, got "weights.bin"'],
  ['org/name:../x.gguf', "file: must be a relative path without '..'"],
  ['org/na--me', "an id of the hub must not hold '--' or '..', got org/na--me"],
])('%s is refused', async (text, message) => {
  await expect(locateModel(text)).rejects.toThrow(message);
});

test('what is an id and a folder too is refused with both ways to write it', async () => {
  const parent = await mkdtemp(join(tmpdir(), 'art-id-'));
  const before = process.cwd();
  // Workers of vitest are processes of their own, so that this changes nothing for others.
  process.chdir(parent);
  try {
    await mkdir('org/name', { recursive: true });
    await expect(locateModel('org/name')).rejects.toThrow(
      'base model: must be either a path or an id of the hub, got org/name, which is an id and also a folder here; ' +
        'write ./org/name for the folder, org/name@main for the hub',
    );
    expect(await locateModel('org/name@main')).toEqual(hub('org/name'));
    expect(await locateModel('./org/name')).toEqual({ kind: 'path', path: resolve('org/name') });
  } finally {
    process.chdir(before);
    await rm(parent, { recursive: true });
  }
});
