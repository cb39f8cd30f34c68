import { mkdir, mkdtemp, readdir, readFile, rm, truncate, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { CheckpointError } from '../../core/errors.ts';
import { type CheckpointStore, openCheckpoints, verifyCheckpoint } from './checkpoints.ts';

let folder = '';
beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'art-checkpoints-'));
});
afterEach(() => rm(folder, { recursive: true }));

async function commit(store: CheckpointStore, step: number, text = `weights ${step}`): Promise<void> {
  const origin = { baseModelSha256: 'base', packageVersion: '0', config: null, history: [], timings: [] };
  await store.commit({ step, parentStep: null, idempotencyKey: `key-${step}`, ...origin }, (directory) =>
    writeFile(join(directory, 'adapter_model.safetensors'), text),
  );
}

async function openWith(...steps: number[]): Promise<CheckpointStore> {
  const store = await openCheckpoints(folder);
  for (const step of steps) await commit(store, step);
  return await openCheckpoints(folder);
}

test('what was committed is found again, by step and by idempotency key', async () => {
  const store = await openWith(0, 1, 12345);
  expect(await readdir(folder)).toEqual(['0000', '0001', '12345']);
  expect(store.list().map(({ manifest }) => manifest.step)).toEqual([0, 1, 12345]);
  expect(store.findByKey('key-1')?.directory).toBe(join(folder, '0001'));
  expect(store.findByKey('key-2')).toBeUndefined();
  expect(store.newest()?.manifest.files).toEqual({
    'adapter_model.safetensors': { bytes: 13, sha256: expect.stringMatching(/^[0-9a-f]{64}$/) },
  });
});

test('a save that fails leaves nothing, and leftovers of a killed process are removed at the next start', async () => {
  const store = await openWith(0);
  const failing = store.commit({ ...store.newest()!.manifest, step: 1 }, () => Promise.reject(new Error('disk full')));
  await expect(failing).rejects.toThrow(/0001: could not be written: disk full/);
  expect(await readdir(folder)).toEqual(['0000']);
  await mkdir(join(folder, '.tmp-1-abc'));
  await writeFile(join(folder, '.tmp-1-abc', 'adapter_model.safetensors'), 'half');
  expect((await openCheckpoints(folder)).list()).toHaveLength(1);
  expect(await readdir(folder)).toEqual(['0000']);
});

test('a committed step is never replaced', async () => {
  const store = await openWith(0, 1);
  await expect(commit(store, 1, 'other')).rejects.toThrow(CheckpointError);
  expect(await readFile(join(folder, '0001', 'adapter_model.safetensors'), 'utf8')).toBe('weights 1');
});

test.each([
  ['cut short', (path: string) => truncate(path, 3), /must have 9 bytes, got 3/],
  ['changed', (path: string) => writeFile(path, 'weights X'), /SHA-256 must be/],
  ['missing', (path: string) => rm(path), /file of the checkpoint is missing/],
])(
  'a newest checkpoint whose file is %s is refused, naming the file and the newest intact step',
  async (_, damage, why) => {
    await openWith(0, 1, 2);
    await damage(join(folder, '0002', 'adapter_model.safetensors'));
    const opening = openCheckpoints(folder);
    await expect(opening).rejects.toThrow(CheckpointError);
    await expect(opening).rejects.toThrow(why);
    await expect(opening).rejects.toThrow(/0002.adapter_model\.safetensors.*newest intact step: 1; move .*0002 away/s);
    await rm(join(folder, '0002'), { recursive: true });
    expect((await openCheckpoints(folder)).newest()?.manifest.step).toBe(1);
  },
);

test('a manifest that is missing, not JSON or of another step is refused', async () => {
  await openWith(0, 1);
  const manifest = join(folder, '0001', 'checkpoint.json');
  const text = await readFile(manifest, 'utf8');
  await writeFile(manifest, text.slice(0, 40));
  await expect(openCheckpoints(folder)).rejects.toThrow(/0001.checkpoint\.json: must be JSON.*newest intact step: 0/s);
  await writeFile(manifest, text.replace('"step": 1', '"step": 3'));
  await expect(openCheckpoints(folder)).rejects.toThrow(/step must be that of the folder, 1, got 3/);
  await rm(manifest);
  await expect(openCheckpoints(folder)).rejects.toThrow(/checkpoint\.json: file is missing/);
});

test('only the newest is hashed at start; an older one when it is asked for', async () => {
  const store = await openWith(0, 1);
  await writeFile(join(folder, '0000', 'adapter_model.safetensors'), 'weights X');
  expect((await openCheckpoints(folder)).newest()?.manifest.step).toBe(1);
  await expect(verifyCheckpoint(store.list()[0]!)).rejects.toThrow(/SHA-256/);
});
