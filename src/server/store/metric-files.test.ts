import { appendFile, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { DataError } from '../../core/errors.ts';
import { createRows, isMeasured, openMetricFiles } from './metric-files.ts';

let folder = '';
beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'art-metrics-'));
});
afterEach(() => rm(folder, { recursive: true }));

const at = new Date(0);
const ignore = (): void => {};
const read = (name: string): Promise<string> => readFile(join(folder, name), 'utf8');

test('keys stand in a fixed order, and what a clock measured is kept apart', () => {
  const metrics = {
    'val/reward': 1,
    'time/step_s': 2,
    'val/duration': 3,
    'data/n': 4,
    'throughput/x': 5,
    'engine/rss_bytes': 6,
  };
  const rows = createRows({ split: 'val', step: 7 }, metrics, at, ignore);
  expect(JSON.stringify(rows.history)).toBe('{"step":7,"training_step":7,"split":"val","data/n":4,"val/reward":1}');
  expect(JSON.stringify(rows.timing)).toBe(
    '{"step":7,"training_step":7,"split":"val","recorded_at":"1970-01-01T00:00:00.000Z",' +
      '"engine/rss_bytes":6,"throughput/x":5,"time/step_s":2,"val/duration":3}',
  );
});

test.each(['time/a', 'throughput/a', 'train/duration', 'val/tool_duration_s', 'peak_rss', 'duration'])(
  '%s is measured',
  (name) => expect(isMeasured(name)).toBe(true),
);
test.each(['train/reward', 'data/step_num_datums', 'val/press', 'val/endurance'])('%s is deterministic', (name) =>
  expect(isMeasured(name)).toBe(false),
);

test('numbers that are not finite are left out and named', () => {
  const warnings: string[] = [];
  const metrics = { 'loss/a': Number.NaN, 'loss/b': Number.POSITIVE_INFINITY, 'loss/c': 1 };
  const { history } = createRows({ split: 'train', step: 1 }, metrics, at, (message) => warnings.push(message));
  expect(history).toEqual({ step: 1, training_step: 1, split: 'train', 'loss/c': 1 });
  expect(warnings).toEqual([
    'metrics of train, step 1: only finite numbers are stored, left out loss/a = NaN, loss/b = Infinity',
  ]);
  expect(() => createRows({ split: 'train', step: 1 }, { step: 3 }, at, ignore)).toThrow(DataError);
});

test('the same content twice is one row; other content for the same split and step is a second one', async () => {
  const files = await openMetricFiles(folder);
  const row = (reward: number) => createRows({ split: 'val', step: 1 }, { 'val/reward': reward }, new Date(), ignore);
  expect(await files.append(row(1))).toBe(true);
  expect(await files.append(row(1))).toBe(false);
  expect(await files.append(row(2))).toBe(true);
  const again = await openMetricFiles(folder);
  expect(await again.append(row(1))).toBe(false);
  expect(again.history().map((stored) => stored['val/reward'])).toEqual([1, 2]);
  expect((await read('history.jsonl')).split('\n')).toHaveLength(3);
  expect((await read('timings.jsonl')).split('\n')).toHaveLength(3);
});

test('concurrent appends give whole lines, and measured metrics alone leave history as it is', async () => {
  const files = await openMetricFiles(folder);
  const rows = (step: number) => createRows({ split: 'val', step }, { 'val/x': step }, at, ignore);
  await Promise.all(Array.from({ length: 20 }, (_, step) => files.append(rows(step))));
  await files.append(createRows({ split: 'val', step: 1 }, { 'time/eval_s': 1 }, at, ignore));
  const lines = (await read('history.jsonl')).trimEnd().split('\n');
  expect(lines.map((line) => JSON.parse(line).step)).toEqual(Array.from({ length: 20 }, (_, step) => step));
  expect((await read('timings.jsonl')).trimEnd().split('\n')).toHaveLength(21);
});

test('a last line that a killed process left unfinished is cut off, at every byte', async () => {
  const whole = '{"step":1,"training_step":1,"split":"train","a":1}\n';
  const next = '{"step":2,"training_step":2,"split":"train","b":"é"}';
  const bytes = Buffer.from(next);
  for (let cut = 0; cut <= bytes.length; cut++) {
    await writeFile(join(folder, 'history.jsonl'), Buffer.concat([Buffer.from(whole), bytes.subarray(0, cut)]));
    const files = await openMetricFiles(folder);
    expect(files.history()).toHaveLength(1);
    expect(await read('history.jsonl')).toBe(whole);
  }
});

test('any other line that is not a row is refused by file and number', async () => {
  await appendFile(join(folder, 'history.jsonl'), '{"step":1}\nnonsense\n{"step":2}\n');
  await expect(openMetricFiles(folder)).rejects.toThrow(/history\.jsonl:2: must be a JSON object, got nonsense/);
});

test('completing adds what either file lacks, and nothing twice', async () => {
  const rows = createRows({ split: 'train', step: 1 }, { 'train/reward': 1, 'time/x': 2 }, at, ignore);
  await (await openMetricFiles(folder)).append(rows);
  const both = [await read('history.jsonl'), await read('timings.jsonl')];
  for (const name of ['history.jsonl', 'timings.jsonl', 'none']) {
    await rm(join(folder, name), { force: true });
    await (await openMetricFiles(folder)).complete(rows);
    expect([await read('history.jsonl'), await read('timings.jsonl')]).toEqual(both);
  }
});
