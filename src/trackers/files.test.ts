/** Trackers that write files: JSONL and TensorBoard. */
import { appendFileSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, expect, test } from 'vitest';
import { Trajectory, TrajectoryGroup } from '../core/trajectory.ts';
import { ModelTrackers } from '../sdk/model-trackers.ts';
import { jsonlTracker } from './jsonl.ts';
import { tensorBoardTracker } from './tensorboard.ts';
import { crc32c, encodeScalars, encodeText, encodeVersion } from './tensorboard-events.ts';

const root = mkdtempSync(join(tmpdir(), 'art-trackers-'));
afterAll(() => rmSync(root, { recursive: true }));

const run = { project: 'demo', name: 'agent/1' };
const readLines = (folder: string, file = 'metrics.jsonl'): Record<string, unknown>[] =>
  readFileSync(join(folder, 'demo', 'agent_1', file), 'utf8')
    .split('\n')
    .slice(0, -1)
    .map((line) => JSON.parse(line));

test('JSONL: a line for each row, values that are not finite by name, and the configuration', async () => {
  const directory = join(root, 'jsonl');
  const trackers = new ModelTrackers([jsonlTracker({ directory })], run, { seed: 1 });
  trackers.logRow({ step: 2, split: 'train', metrics: { 'train/reward': 0.5, 'loss/kl': Number.NaN } });
  trackers.logRow({ step: 1, split: 'val', metrics: { 'val/reward': Number.NEGATIVE_INFINITY } });
  trackers.updateConfig({ tags: ['a'] });
  await trackers.close();
  expect(readLines(directory)).toEqual([
    { training_step: 2, split: 'train', recorded_at: expect.any(String), 'train/reward': 0.5, 'loss/kl': 'NaN' },
    { training_step: 1, split: 'val', recorded_at: expect.any(String), 'val/reward': '-Infinity' },
  ]);
  const config = readFileSync(join(directory, 'demo', 'agent_1', 'config.json'), 'utf8');
  expect(JSON.parse(config)).toEqual({ seed: 1, tags: ['a'] });
});

test('JSONL: a run that goes on adds to what is there, and removes a line that a crash cut', async () => {
  const directory = join(root, 'resumed');
  const log = async (step: number): Promise<void> => {
    const trackers = new ModelTrackers([jsonlTracker({ directory })], run, {});
    trackers.logRow({ step, split: 'train', metrics: { loss: step } });
    await trackers.close();
  };
  await log(1);
  appendFileSync(join(directory, 'demo', 'agent_1', 'metrics.jsonl'), '{"training_step":2,"spl');
  await log(2);
  expect(readLines(directory).map(({ training_step }) => training_step)).toEqual([1, 2]);
});

test('JSONL: trajectories have rewards and metrics; with texts also messages, tools and every history', async () => {
  const trajectory = new Trajectory({
    messagesAndChoices: [{ role: 'user', content: 'Hello' }],
    tools: [{ type: 'function' }],
    additionalHistories: [{ messagesAndChoices: [{ role: 'user', content: 'Sub-agent' }] }],
    reward: 1,
  });
  for (const texts of [false, true]) {
    const directory = join(root, `texts-${texts}`);
    const trackers = new ModelTrackers([jsonlTracker({ directory, texts })], run, {});
    trackers.logRow({ step: 1, split: 'train', metrics: { a: 1 }, groups: [new TrajectoryGroup([trajectory])] });
    await trackers.close();
    const [line] = readLines(directory, 'trajectories.jsonl');
    expect(line).toMatchObject({ training_step: 1, split: 'train', group: 0, trajectories: [{ reward: 1, turns: 0 }] });
    expect(JSON.stringify(line).includes('Hello')).toBe(texts);
    expect(JSON.stringify(line).includes('Sub-agent')).toBe(texts);
  }
});

test('a folder that cannot be written is a warning, not an error, and its rows wait', async () => {
  writeFileSync(join(root, 'file'), '');
  const warnings: string[] = [];
  const directory = join(root, 'file', 'below');
  const onWarning = (message: string): void => void warnings.push(message);
  for (const tracker of [jsonlTracker({ directory, onWarning }), tensorBoardTracker({ directory, onWarning })]) {
    const trackers = new ModelTrackers([tracker], run, {});
    trackers.logRow({ step: 1, split: 'train', metrics: { a: 1 } });
    expect(await tracker.flush({ timeoutMs: 20 })).toMatchObject({ sent: 0, queued: 1, isUp: false });
  }
  expect(warnings).toContainEqual(expect.stringMatching(/^tracker jsonl: ENOTDIR.*training goes on/));
  expect(warnings).toContainEqual(expect.stringMatching(/^tracker tensorboard: ENOTDIR.*training goes on/));
});

test("TensorBoard: records are those of TensorBoard's own writer, byte for byte", () => {
  const fixture = JSON.parse(
    readFileSync(new URL('../../test/fixtures/trackers/tensorboard.json', import.meta.url), 'utf8'),
  );
  const recordedAt = new Date(1_700_000_000_500);
  const scalars = { 'train/reward': 0.25, 'loss/kl': Number.NaN, 'loss/grad_norm': Number.POSITIVE_INFINITY };
  expect(encodeVersion(recordedAt).toString('hex')).toBe(fixture.version);
  expect(encodeScalars({ recordedAt, step: 300 }, scalars).toString('hex')).toBe(fixture.scalars);
  expect(encodeText({ recordedAt, step: 0 }, 'config', '    {}').toString('hex')).toBe(fixture.text);
});

test('TensorBoard: the checksum is CRC32C', () => {
  expect(crc32c(Buffer.from('123456789'))).toBe(0xe3069283); // check value of the polynomial
});

test('TensorBoard: each start has a file of its own, so a record that a crash cut hides none that follows', async () => {
  const directory = join(root, 'tensorboard');
  for (const step of [1, 2]) {
    const trackers = new ModelTrackers([tensorBoardTracker({ directory })], run, { seed: 1 });
    trackers.logRow({ step, split: 'train', metrics: { 'train/reward': step } });
    await trackers.close();
  }
  const folder = join(directory, 'demo', 'agent_1');
  const names = readdirSync(folder);
  expect(names).toHaveLength(2);
  for (const name of names) {
    expect(name).toMatch(/^events\.out\.tfevents\.\d+\..+\.v2$/);
    expect(readFileSync(join(folder, name)).toString('latin1')).toContain('train/reward');
  }
});

test('options are checked by name', () => {
  expect(() => jsonlTracker({ directory: '' })).toThrow('jsonlTracker: directory must be a path, got ""');
  expect(() => tensorBoardTracker({ directory: 'a', texts: true } as { directory: string })).toThrow('got texts');
});
