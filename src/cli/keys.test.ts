/** The commands that look after a folder of runs, as built: tests come after the build. */
import { spawnSync } from 'node:child_process';
import { mkdir, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { root } from '../../test/source-imports.ts';
import { moveToTrash } from '../server/store/trash.ts';
import { formatKeys } from './keys.ts';

let folder: string;

beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'art-cli-'));
});

afterAll(() => rm(folder, { recursive: true }));

function art(...args: string[]): { status: number | null; stdout: string; stderr: string } {
  const main = join(root, 'dist', 'src', 'cli', 'main.js');
  const { status, stdout, stderr } = spawnSync(process.execPath, [main, ...args], { encoding: 'utf8', cwd: folder });
  return { status, stdout, stderr };
}

test('a key is made, shown once, listed, revoked; the log has it all and no key', async () => {
  const made = art('keys', 'create', '--name', 'ci', '--scopes', 'infer,train', '--expires', '30d');
  expect(made.status).toBe(0);
  expect(made.stdout).toMatch(/^art_[0-9a-f]{12}_[\w-]{43}\n$/);
  expect(made.stderr).toMatch(/^art: key ci \([0-9a-f]{12}\), scopes infer, train; it is not shown again\n$/);
  const secret = made.stdout.trim().slice(17);
  const list = art('keys', 'list');
  expect(list.stdout).toMatch(/ci +infer,train +\d{4}-\d\d-\d\d +good until /);
  expect(list.stdout).not.toContain(secret);
  expect(art('keys', 'revoke', 'ci')).toMatchObject({ status: 0, stdout: expect.stringMatching(/is revoked\n$/) });
  expect(art('keys', 'list').stdout).toMatch(/revoked /);
  const verified = art('audit', 'verify');
  expect(verified.stdout).toMatch(/^2 changes, unbroken; last hash [0-9a-f]{64}\n$/);
  const log = join(folder, '.art', 'audit.jsonl');
  const text = await readFile(log, 'utf8');
  expect(text).not.toContain(secret);
  const hash = verified.stdout.trim().slice(-64);
  expect(art('audit', 'verify', '--expect', hash).status).toBe(0);
  await writeFile(log, text.replace('"key.revoke"', '"key.create"'));
  expect(art('audit', 'verify', '--expect', hash)).toMatchObject({
    status: 1,
    stderr: expect.stringMatching(/^art: .*must have a line with SHA-256/),
  });
  await writeFile(log, text.replace('"key.create"', '"key.revoke"'));
  expect(art('audit', 'verify')).toMatchObject({
    status: 1,
    stderr: expect.stringMatching(/^art: .*line 2 must carry/),
  });
  await writeFile(log, text);
});

test('nothing is purged without --yes', async () => {
  const path = join(folder, '.art', 'demo', 'models', 'agent', 'checkpoints', '0003');
  await mkdir(path, { recursive: true });
  const place = { root: join(folder, '.art'), project: 'demo', kind: 'checkpoint', name: 'agent@3' };
  const { id } = await moveToTrash({ ...place, path, by: { kind: 'local' } });
  const listed = art('purge');
  expect(listed.stdout).toContain(`${id}  checkpoint demo/agent@3  deleted `);
  expect(listed.stderr).toContain('nothing was deleted');
  expect(art('purge', '--older-than', '1h', '--yes').stdout).toBe('(nothing in the trash)\n');
  expect(art('purge', id, '--yes').stdout).toMatch(/^gone: /);
  expect(art('purge').stdout).toBe('(nothing in the trash)\n');
  expect(art('audit', 'verify').stdout).toMatch(/^3 changes/);
});

test.each([
  [['keys', 'create', '--name', 'a b'], /^art: keys: a name must be/],
  [['keys', 'create', '--name', 'a', '--scopes', 'root'], /must be some of infer, train, admin, got root/],
  [['keys', 'create', '--name', 'a', '--expires', 'soon'], /must be a number with s, m, h or d/],
  [['keys', 'revoke', 'nobody'], /^art: keys: must be one of/],
  [['purge', 'x', '--older-than', '1d'], /^art: purge: takes either an id or --older-than/],
])('art %j is refused with exit code 1', (args, message) => {
  const { status, stderr } = art(...args);
  expect({ status, stderr }).toEqual({ status: 1, stderr: expect.stringMatching(message) });
});

test('without keys the list says what that means', () => {
  expect(formatKeys([])).toBe('(no keys: the server is open to this computer)');
});
