/** Rows longer than the context crashed supervised fine-tuning: here they are dropped, counted and warned of, and the rest trains. */
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, onTestFinished, test } from 'vitest';
import { trainSftFromFile } from '../../src/index.ts';
import { openRemoteApi } from '../server/remote-api.ts';

const row = (length: number): object => ({
  messages: [
    { role: 'user', content: 'x'.repeat(length) },
    { role: 'assistant', content: 'y' },
  ],
});

test('a file with rows longer than the context trains on the others; a batch of none but those is skipped', async () => {
  const folder = await mkdtemp(join(tmpdir(), 'art-pain-44-'));
  onTestFinished(() => rm(folder, { recursive: true }));
  const path = join(folder, 'rows.jsonl');
  const rows = [row(5000), row(1), row(3000), row(2), row(3), row(4000)];
  await writeFile(path, rows.map((one) => JSON.stringify(one)).join('\n'));
  const { api, model } = await openRemoteApi();
  const result = await trainSftFromFile(model, path, { batchSize: 1, chunkSize: 1 });
  expect(result).toMatchObject({ step: 6, rows: 6, droppedRows: 3 });
  expect(api.engine.calls.filter((call) => call === 'optimStep')).toHaveLength(3);
  expect(api.warnings.filter((text) => /1 of 1 conversations are dropped, .* 256 tokens/.test(text))).toHaveLength(3);
  const dropped = await model.getMetric('data/step_num_dropped_conversations');
  expect(dropped.reduce((sum, { value }) => sum + value, 0)).toBe(3);
});
