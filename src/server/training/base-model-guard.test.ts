import { mkdir, mkdtemp, rm, symlink } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join, relative, resolve, sep } from 'node:path';
import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { registerRequest } from '../../wire/training.ts';
import { type Caller, localCaller, type Scope } from '../security/caller.ts';
import { runDirectory } from '../store/run-folder.ts';
import { checkBaseModel } from './base-model-guard.ts';

let folder: string;
let root: string;
const key = (scope: Scope): Caller => ({ kind: 'key', id: 'k', name: 'k', scopes: [scope] });

beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'art-guard-'));
  root = join(folder, 'models');
  await mkdir(join(root, 'tiny'), { recursive: true });
  await mkdir(join(folder, 'models-secret'));
  await symlink(join(folder, 'models-secret'), join(root, 'link'));
});

afterAll(() => rm(folder, { recursive: true }));

describe('base models', () => {
  test('a training key may name models in the listed folders, and ids of the hub', async () => {
    await checkBaseModel(key('train'), join(root, 'tiny'), [root]);
    await checkBaseModel(key('train'), `${root}/../models/tiny`, ['/nowhere', root]);
    await checkBaseModel(key('train'), 'org/name@main', []);
  });

  test('anything else is refused with the same words, whether it exists or not', async () => {
    const refusals = new Set<string>();
    for (const [path, roots] of [
      [join(root, 'tiny'), []],
      [folder, [root]],
      [join(folder, 'models-secret'), [root]],
      [`${root}/../models-secret`, [root]],
      [`${root}/../../../../../../../etc/passwd`, [root]],
      [join(root, 'link'), [root]],
      [join(root, 'none'), [root]],
      ['/none/at/all', [root]],
      ['~', [root]],
    ] as const) {
      await checkBaseModel(key('train'), path, roots).then(
        () => expect.unreachable(path),
        (error: Error) => refusals.add(error.message),
      );
    }
    expect(refusals.size).toBe(1);
  });

  test('the local user and admins may name any path', async () => {
    await checkBaseModel(localCaller, '/any', []);
    await checkBaseModel(key('admin'), '/any', []);
  });
});

describe('names that become folders', () => {
  const nasty = fc.oneof(
    fc.constantFrom(
      '..',
      '.',
      '',
      '../x',
      'a/../b',
      'a\\b',
      '%2e%2e',
      '%2e%2e%2fx',
      'a\u0000b',
      'CON',
      'con',
      'nul.txt',
      'COM1',
      'LPT9.x',
      'a.',
      'a ',
      ' a',
      'a:b',
      'C:\\x',
      '/etc/passwd',
      '~',
      '~root',
      '\u2025',
      '\uff0e\uff0e',
      '\u202e',
      'é',
      '-rf',
      '.art',
      'keys.json',
      'audit.jsonl',
      'AUDIT.JSONL',
      'keys.json.lock',
      'a'.repeat(101),
      'a'.repeat(100_000),
      'a\nb',
      '\ud800',
      '__proto__',
      'constructor',
    ),
    fc.string({ unit: 'binary', maxLength: 20 }),
    fc.string({ unit: fc.constantFrom('.', '/', '\\', '%', '2', 'e', 'a', '\u0000', ' '), maxLength: 8 }),
  );
  const request = (project: string, name: string): unknown => ({
    name,
    project,
    base_model: 'org/name',
    lora: { rank: 1, alpha: 1 },
    seed: 0,
  });

  test('whatever a request says, its run folder lies two levels below the root, and nowhere else', () => {
    let accepted = 0;
    fc.assert(
      fc.property(fc.oneof(nasty, fc.constant('demo')), fc.oneof(nasty, fc.constant('agent')), (project, name) => {
        const parsed = registerRequest.safeParse(request(project, name));
        if (!parsed.success) return;
        accepted += 1;
        const inside = relative(resolve('root'), runDirectory('root', project, name));
        expect(inside.split(sep)).toEqual([project, 'models', name]);
        expect([project, name].every((text) => /^[A-Za-z0-9][\w.-]*[\w-]$|^[A-Za-z0-9]$/.test(text))).toBe(true);
        expect(/\.(jsonl?|lock)$/i.test(project)).toBe(false);
      }),
      { seed: 4, numRuns: 5_000 },
    );
    expect(accepted).toBeGreaterThan(100);
  });

  test.each(['CON', 'nul.txt', 'a.', 'keys.json', 'audit.jsonl', 'keys.json.lock'])(
    'project %s is refused',
    (project) => {
      expect(registerRequest.safeParse(request(project, 'agent')).success).toBe(false);
    },
  );

  test.each(['a\u0000b', 'a\nb', '', 'a'.repeat(5_000)])('base_model %j is refused', (base_model) => {
    const body = { ...(request('demo', 'agent') as object), base_model };
    expect(registerRequest.safeParse(body).success).toBe(false);
  });
});
