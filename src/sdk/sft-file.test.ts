import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { openRemoteApi } from '../../test/server/remote-api.ts';
import { AbortedError } from '../core/errors.ts';
import { iterateSftFile, type SftFileOptions, type SftFileProgress, trainSftFromFile } from './sft-file.ts';

let folder: string;
beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'art-sft-file-'));
});
afterAll(() => rm(folder, { recursive: true }));

const row = (question: string, more: object = {}): string =>
  JSON.stringify({
    messages: [
      { role: 'user', content: question },
      { role: 'assistant', content: 'yes' },
    ],
    ...more,
  });
const rows = Array.from({ length: 11 }, (_, i) => row(`question ${i}`));

async function file(name: string, lines: readonly string[]): Promise<string> {
  const path = join(folder, name);
  await writeFile(path, lines.join('\n'));
  return path;
}

/** Two epochs of 11 rows: three chunks of two batches each. */
const options: SftFileOptions = { chunkSize: 3, batchSize: 2, epochs: 2, learningRate: 0.5, warmupRatio: 0.2 };

test('each chunk is a step; rates follow one schedule over the whole file', async () => {
  const path = await file('whole.jsonl', [...rows, '', '']);
  const { api, model } = await openRemoteApi();
  const progress: SftFileProgress[] = [];
  const result = await trainSftFromFile(model, path, options, { onProgress: (one) => progress.push(one) });
  expect(result).toMatchObject({ step: 6, rows: 11, chunks: 6, chunksBefore: 0, droppedRows: 0 });
  const done = progress.filter(({ stage, train }) => stage === 'train' && train === null).map((one) => one.rows);
  expect(done).toEqual([4, 8, 11, 15, 19, 22]);
  const history = api.registry.get('agent').metricFiles.history();
  expect(history.map((one) => one['sft/conversations'])).toEqual([4, 4, 3, 4, 4, 3]);
  // 12 updates of two rows, of which 2 warm up to 0.5; the last of each chunk: 2nd, 4th, 6th, …
  const decay = (update: number): number => 0.5 * (1 - (update - 3) / 10);
  const expected = [2, 4, 6, 8, 10, 12].map((update) => (update <= 2 ? (0.5 * update) / 3 : decay(update)));
  expect(history.map((one) => Number((one['sft/learning_rate'] as number).toFixed(9)))).toEqual(
    expected.map((rate) => Number(rate.toFixed(9))),
  );
});

test('each epoch visits every row once, in an order of its own that the seed decides', async () => {
  const path = await file('order.jsonl', rows);
  const seen = async (seed: number): Promise<string[]> => {
    const { api, model } = await openRemoteApi();
    await trainSftFromFile(model, path, { ...options, seed });
    const { tokenizer } = api.registry.get('agent').model;
    const data = api.engine.requests.flatMap((request) => request.data);
    return data.map(({ tokenIds }) => /question \d+/.exec(tokenizer.decode(tokenIds))![0]);
  };
  const [first, again, other] = [await seen(1), await seen(1), await seen(2)];
  const expected = rows.map((_, i) => `question ${i}`).sort();
  expect([...first.slice(0, 11)].sort()).toEqual(expected);
  expect([...first.slice(11)].sort()).toEqual(expected);
  expect(first.slice(0, 11)).not.toEqual(first.slice(11));
  expect(again).toEqual(first);
  expect(other).not.toEqual(first);
});

test('stopped and started again, it goes on where it was, to the same weights', async () => {
  const path = await file('resumed.jsonl', rows);
  const whole = await openRemoteApi();
  await trainSftFromFile(whole.model, path, options);
  const { api, model } = await openRemoteApi();
  const stop = new AbortController();
  const onProgress = ({ stage, rows: done, train }: SftFileProgress): void => {
    if (stage === 'train' && train === null && done === 8) stop.abort();
  };
  const stopped = trainSftFromFile(model, path, options, { signal: stop.signal, onProgress });
  await expect(stopped).rejects.toThrow(AbortedError);
  const { engine: firstEngine } = api;
  const result = await trainSftFromFile(model, path, options);
  expect(result).toMatchObject({ step: 6, chunks: 6, chunksBefore: 2 });
  expect(firstEngine.weight()).toBe(whole.api.engine.weight());
  expect(await trainSftFromFile(model, path, options)).toMatchObject({ step: 6, chunksBefore: 6 });
  expect(firstEngine.calls.filter((call) => call === 'optimStep')).toHaveLength(12);
  // Another key is another training.
  expect(await trainSftFromFile(model, path, options, { idempotencyKey: 'more' })).toMatchObject({ step: 12 });
});

test.each([
  [[rows[0]!, 'not JSON'], /bad\.jsonl:2: must be a JSON object, got "not JSON"$/],
  [[rows[0]!, '', '[1]'], /bad\.jsonl:3: /],
  [[row('x', { loss_mask: [1] })], /bad\.jsonl:1: loss_mask: unknown field$/],
  [
    [rows[0]!, JSON.stringify({ messages: [{ role: 'user', content: 'x' }] })],
    /bad\.jsonl:2: the last message must be the assistant's, got user$/,
  ],
  [[JSON.stringify({ messages: [] })], /bad\.jsonl:1: messages: /],
  [['', ' '], /bad\.jsonl: must have at least one row, got none$/],
])('a bad row is named by file and line, before anything trains', async (lines, message) => {
  const path = await file('bad.jsonl', lines);
  const { api, model } = await openRemoteApi();
  await expect(trainSftFromFile(model, path)).rejects.toThrow(message);
  expect(api.engine.calls).not.toContain('forwardBackward');
});

test('fields that are to be ignored are; rows longer than one read come out whole', async () => {
  const long = 'ж'.repeat(100_000);
  const path = await file('more.jsonl', [row('a', { id: 1, weight: 2 }), row(long, { id: 2 })]);
  const found: unknown[] = [];
  for await (const { messages } of iterateSftFile(path, { ignoreFields: ['id', 'weight'] }))
    found.push(messages[0]?.content);
  expect(found).toEqual(['a', long]);
  await expect(iterateSftFile(join(folder, 'none.jsonl')).next()).rejects.toThrow('must be a file that can be read');
});

test('options of steps are refused, as is a file that changes meanwhile', async () => {
  const path = await file('changed.jsonl', rows);
  const { model } = await openRemoteApi();
  const steps = { checkpointEvery: 1 } as SftFileOptions;
  await expect(trainSftFromFile(model, path, steps)).rejects.toThrow('checkpointEvery must be left out');
  const onProgress = ({ stage }: SftFileProgress): void => {
    if (stage === 'train') void writeFile(path, rows.slice(1).join('\n'));
  };
  await expect(trainSftFromFile(model, path, options, { onProgress })).rejects.toThrow(/must stay as it is/);
});
