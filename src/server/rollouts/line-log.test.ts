/** A log of checksummed lines: what a crash, a full disk and damage leave of it. */
import { appendFile, mkdtemp, readdir, readFile, rm, stat, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { ConfigError } from '../../core/errors.ts';
import { type LineLog, type LineLogOptions, openLineLog } from './line-log.ts';

let directory = '';
let warnings: string[] = [];
let dropped: number[] = [];
let opened: LineLog[] = [];
beforeEach(async () => {
  directory = join(await mkdtemp(join(tmpdir(), 'art-log-')), 'log');
  warnings = [];
  dropped = [];
  opened = [];
});
afterEach(async () => {
  for (const log of opened) await log.close();
  await rm(join(directory, '..'), { recursive: true });
});

async function open(options: Partial<LineLogOptions> = {}): Promise<{ log: LineLog; lines: string[] }> {
  const lines: string[] = [];
  const onDrop = (segment: number): void => void dropped.push(segment);
  const onWarning = (message: string): void => void warnings.push(message);
  const log = await openLineLog({ directory, maxBytes: 2 ** 20, onDrop, onWarning, ...options }, (line) =>
    lines.push(line),
  );
  opened.push(log);
  return { log, lines };
}

async function reopen(options: Partial<LineLogOptions> = {}): Promise<{ log: LineLog; lines: string[] }> {
  await opened.pop()?.close();
  return await open(options);
}

const segment = (name: string): string => join(directory, name);

test('lines are read back by address, and found again, in order, by the next process', async () => {
  const { log } = await open();
  const texts = ['a', 'größe 🙂', 'x'.repeat(5000)];
  const addresses = texts.map((text) => log.append(text));
  expect(addresses.map((address) => log.read(address))).toEqual(texts);
  await log.sync();
  const again = await reopen();
  expect(again.lines).toEqual(texts);
  expect(addresses.map((address) => again.log.read(address))).toEqual(texts);
  again.log.append('later');
  expect((await reopen()).lines).toEqual([...texts, 'later']);
});

test('appending is enough against the death of the process: nothing was flushed or closed', async () => {
  const { log } = await open();
  log.append('kept');
  const { lines } = await open(); // beside the first one, as after a kill
  expect(lines).toEqual(['kept']);
});

test.each([1, 5, 12])('a line of which %i bytes were written is cut off', async (bytes) => {
  const { log } = await open();
  log.append('whole');
  await opened.pop()?.close();
  const before = await readFile(segment('000001.log'));
  await appendFile(segment('000001.log'), before.subarray(0, bytes));
  const again = await open();
  expect(again.lines).toEqual(['whole']);
  again.log.append('next');
  expect((await reopen()).lines).toEqual(['whole', 'next']);
  expect(warnings).toEqual([]);
});

test('a damaged line is left out and counted; those around it stay', async () => {
  const { log } = await open();
  const addresses = ['one', 'two', 'three'].map((text) => log.append(text));
  await opened.pop()?.close();
  const content = await readFile(segment('000001.log'));
  content[addresses[1]!.offset + 10] = 0x58;
  await writeFile(segment('000001.log'), content);
  const again = await open();
  expect(again.lines).toEqual(['one', 'three']);
  expect(again.log.read(addresses[1]!)).toBeNull();
  expect(warnings).toEqual([expect.stringContaining('000001.log: 1 damaged lines are left out')]);
});

test('its size is bounded: the oldest segments are dropped, and reading from them gives nothing', async () => {
  const limits = { maxBytes: 1000, segmentBytes: 200 };
  const { log } = await open(limits);
  const first = log.append('line 0');
  const addresses = Array.from({ length: 200 }, (_, index) => log.append(`line ${index + 1}`));
  expect(dropped.length).toBeGreaterThan(3);
  expect(dropped).toEqual([...dropped].sort((a, b) => a - b));
  expect(log.read(first)).toBeNull();
  expect(log.read(addresses.at(-1)!)).toBe('line 200');
  const { lines } = await reopen(limits);
  const names = await readdir(directory);
  const sizes = await Promise.all(names.map(async (name) => (await stat(segment(name))).size));
  expect(sizes.reduce((sum, size) => sum + size, 0)).toBeLessThanOrEqual(1000);
  expect(lines.at(-1)).toBe('line 200');
  expect(lines.length).toBeGreaterThan(20);
});

test('many who ask for a flush share few of them, and each gets its own line flushed', async () => {
  const { log } = await open({ segmentBytes: 100 });
  await Promise.all(
    Array.from({ length: 100 }, async (_, index) => {
      log.append(`line ${index}`);
      await log.sync();
    }),
  );
  expect((await reopen()).lines).toHaveLength(100);
});

test('a limit out of range is refused', async () => {
  await expect(open({ maxBytes: 0 })).rejects.toThrow(ConfigError);
});
