import { mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { writeFileAtomic, writeFolderAtomic } from './atomic-files.ts';

let folder = '';
beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'art-atomic-'));
});
afterAll(() => rm(folder, { recursive: true }));

test('a folder is invisible until it is complete', async () => {
  const target = join(folder, 'whole');
  await writeFolderAtomic(target, async (temporary) => {
    await writeFile(join(temporary, 'a'), 'A');
    expect(await readdir(folder)).not.toContain('whole');
  });
  expect(await readdir(target)).toEqual(['a']);
});

test('a failed write leaves the older file and no temporary one', async () => {
  const path = join(folder, 'file');
  await writeFileAtomic(path, ['old', Buffer.from('!')]);
  const parts = ['new', { not: 'bytes' } as unknown as Uint8Array];
  await expect(writeFileAtomic(path, parts)).rejects.toThrow();
  const failing = writeFolderAtomic(join(folder, 'half'), () => Promise.reject(new Error('disk full')));
  await expect(failing).rejects.toThrow('disk full');
  expect(await readFile(path, 'utf8')).toBe('old!');
  expect((await readdir(folder)).sort()).toEqual(['file', 'whole']);
});
