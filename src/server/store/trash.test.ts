import { mkdir, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { isPresent } from '../../formats/atomic-files.ts';
import { listTrash, moveToTrash, purge, restoreFromTrash, type TrashItem } from './trash.ts';

let root: string;
const by = { kind: 'key', id: 'k1', name: 'ci' } as const;

beforeAll(async () => {
  root = await mkdtemp(join(tmpdir(), 'art-trash-'));
});

afterAll(() => rm(root, { recursive: true }));

async function discard(name: string): Promise<{ readonly path: string; readonly item: TrashItem }> {
  const path = join(root, 'p', 'models', 'm', 'checkpoints', name);
  await mkdir(path, { recursive: true });
  await writeFile(join(path, 'weights'), name);
  return { path, item: await moveToTrash({ root, project: 'p', kind: 'checkpoint', name, path, by }) };
}

test('what is deleted can be listed and comes back as it was', async () => {
  const { path, item } = await discard('0003');
  expect(await isPresent(path)).toBe(false);
  expect(await listTrash(root)).toEqual([item]);
  expect(item).toMatchObject({ path: 'p/models/m/checkpoints/0003', deleted_by: by });
  expect(await restoreFromTrash(root, 'p', item.id)).toEqual(item);
  expect(await readFile(join(path, 'weights'), 'utf8')).toBe('0003');
  expect(await listTrash(root)).toEqual([]);
});

test('nothing is overwritten by a restore', async () => {
  const { path, item } = await discard('0004');
  await mkdir(path);
  await expect(restoreFromTrash(root, 'p', item.id)).rejects.toThrow(/must have its place free/);
  await rm(path, { recursive: true });
  await restoreFromTrash(root, 'p', item.id);
});

test('purged things are gone; younger ones stay', async () => {
  const first = await discard('0005');
  const second = await discard('0006');
  expect(await purge(root, undefined, { olderThanMs: 3_600_000 })).toEqual([]);
  expect(await purge(root, 'p', { id: first.item.id })).toEqual([first.item]);
  await expect(restoreFromTrash(root, 'p', first.item.id)).rejects.toThrow(/trash: must hold/);
  expect(await purge(root, undefined, { olderThanMs: 0 })).toEqual([second.item]);
  expect(await listTrash(root)).toEqual([]);
});

test.each(['../../x', '..', '', 'a/b', '\u0000', '20260101T000000-000000000000/../..'])(
  'an id that is no item is refused: %j',
  async (id) => {
    await expect(restoreFromTrash(root, 'p', id)).rejects.toThrow(/trash: must hold/);
    await expect(purge(root, 'p', { id })).rejects.toThrow(/trash: must hold/);
  },
);

test('only what lies inside the root can be deleted, and only what is there', async () => {
  const discarded = { root, project: 'p', kind: 'model', name: 'm', by };
  await expect(moveToTrash({ ...discarded, path: tmpdir() })).rejects.toThrow(/must lie inside/);
  await expect(moveToTrash({ ...discarded, path: root })).rejects.toThrow(/must lie inside/);
  await expect(moveToTrash({ ...discarded, path: join(root, 'none') })).rejects.toThrow(/must exist/);
});
