import { mkdtemp, readFile, rm, stat, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { createKey, keysPath, listKeys, openKeys, revokeKey } from './keys.ts';

let root: string;

beforeEach(async () => {
  root = await mkdtemp(join(tmpdir(), 'art-keys-'));
});

afterEach(() => rm(root, { recursive: true }));

const open = () => openKeys(root, () => {});

test('a key is 256 random bits behind a prefix; the file holds its hash alone and is for its owner', async () => {
  const { key, stored } = await createKey(root, { name: 'ci', scopes: ['train', 'infer'] });
  expect(key).toMatch(/^art_[0-9a-f]{12}_[A-Za-z0-9_-]{43}$/);
  const text = await readFile(keysPath(root), 'utf8');
  expect(text).not.toContain(key.slice(17));
  expect(stored).toMatchObject({ name: 'ci', scopes: ['infer', 'train'], revoked_at: null, expires_at: null });
  if (process.platform !== 'win32') expect((await stat(keysPath(root))).mode & 0o777).toBe(0o600);
});

test('only the whole key is found', async () => {
  const { key, stored } = await createKey(root, { name: 'ci', scopes: ['infer'] });
  const other = await createKey(root, { name: 'other', scopes: ['infer'] });
  const keys = await open();
  expect(keys.find(key)).toEqual(stored);
  const flipped = key.slice(0, -2) + (key.at(-2) === 'A' ? 'B' : 'A') + key.slice(-1);
  const mixed = key.slice(0, 17) + other.key.slice(17);
  for (const wrong of ['', 'art-local', key.slice(0, -1), `${key}A`, flipped, mixed, stored.sha256, stored.id]) {
    expect(keys.find(wrong), wrong).toBeUndefined();
  }
});

test('a running server sees new and revoked keys within a second, and wants keys for good once there was one', async () => {
  vi.useFakeTimers({ toFake: ['performance'] });
  try {
    const keys = await open();
    expect(keys.isRequired()).toBe(false);
    const { key } = await createKey(root, { name: 'ci', scopes: ['infer'] });
    await keys.refresh();
    expect(keys.find(key)).toBeUndefined();
    vi.advanceTimersByTime(1_000);
    await keys.refresh();
    expect(keys.find(key)).toBeDefined();
    await revokeKey(root, 'ci');
    vi.advanceTimersByTime(1_000);
    await keys.refresh();
    expect(keys.find(key)).toBeUndefined();
    await rm(keysPath(root));
    vi.advanceTimersByTime(1_000);
    await keys.refresh();
    expect(keys.isRequired()).toBe(true);
  } finally {
    vi.useRealTimers();
  }
});

test('a file that becomes damaged leaves the keys as they were, with a warning; at the start it is an error', async () => {
  vi.useFakeTimers({ toFake: ['performance'] });
  try {
    const { key } = await createKey(root, { name: 'ci', scopes: ['infer'] });
    const warnings: string[] = [];
    const keys = await openKeys(root, (message) => warnings.push(message));
    await writeFile(keysPath(root), '{"keys": 1}');
    vi.advanceTimersByTime(1_000);
    await keys.refresh();
    expect(keys.find(key)).toBeDefined();
    expect(warnings).toEqual([expect.stringContaining('the keys stay as they were')]);
    await expect(open()).rejects.toThrow(/keys\.json/);
  } finally {
    vi.useRealTimers();
  }
});

test('expired keys are worth nothing', async () => {
  const { key } = await createKey(root, { name: 'ci', scopes: ['infer'], expiresAt: new Date(Date.now() + 60_000) });
  const keys = await open();
  expect(keys.find(key)).toBeDefined();
  vi.useFakeTimers({ toFake: ['Date'], now: Date.now() + 60_000 });
  try {
    expect(keys.find(key)).toBeUndefined();
    expect(keys.isRequired()).toBe(true);
  } finally {
    vi.useRealTimers();
  }
});

test('keys made at the same time are all kept', async () => {
  await Promise.all(Array.from({ length: 10 }, (_, i) => createKey(root, { name: `k${i}`, scopes: ['infer'] })));
  expect((await listKeys(root)).map((key) => key.name).sort()).toEqual(Array.from({ length: 10 }, (_, i) => `k${i}`));
});

test('what is wrong is named', async () => {
  await createKey(root, { name: 'ci', scopes: ['infer'] });
  await expect(createKey(root, { name: 'ci', scopes: ['infer'] })).rejects.toThrow(/a name must be free, got ci/);
  await expect(createKey(root, { name: '../x', scopes: ['infer'] })).rejects.toThrow(/a name must be/);
  await expect(createKey(root, { name: 'a', scopes: [] })).rejects.toThrow(/scopes must be some of/);
  await expect(createKey(root, { name: 'a', scopes: ['infer'], expiresAt: new Date(0) })).rejects.toThrow(/to come/);
  await expect(createKey(root, { name: 'a', scopes: ['infer'], maxConcurrent: 0 })).rejects.toThrow(
    /integer ≥ 1, got 0/,
  );
  await expect(revokeKey(root, 'none')).rejects.toThrow(/must be one of ci \([0-9a-f]{12}\), got "none"/);
  await revokeKey(root, 'ci');
  await createKey(root, { name: 'ci', scopes: ['infer'] });
});
