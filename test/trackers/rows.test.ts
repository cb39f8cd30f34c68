/** What a run sends to its trackers, from training to closing, with a real engine. */
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { jsonlTracker, wandbTracker } from '../../src/trackers/index.ts';
import { question, sampleGroup, setUpYesOrNo } from '../yes-or-no.ts';
import { startLocalServer } from './local-server.ts';

const bed = setUpYesOrNo();

test('each row of train, log and fine-tuning goes out once, with a tracker beside it that never answers', async () => {
  await using silent = await startLocalServer(() => ({}));
  silent.fault = 'hang';
  const warnings: string[] = [];
  const limits = { timeoutMs: 600_000, onWarning: (message: string) => void warnings.push(message) };
  const { root } = bed;
  const model = bed.createModel('agent', {
    project: 'demo',
    trackers: [
      jsonlTracker({ directory: join(root, 'tracked'), texts: true }),
      wandbTracker({ apiKey: 'k', entity: 'me', baseURL: silent.url, ...limits }),
    ],
  });
  const backend = bed.openBackend();
  await model.register(backend);
  const group = await sampleGroup(model, 0);
  const { metrics } = await backend.train(model, [group], { learningRate: 1e-3 });
  await model.log([group], { split: 'val', metrics: { accuracy: 0.5 }, step: 0 }); // an evaluation that came late
  const yes = { messages: [question, { role: 'assistant', content: 'yes' } as const] };
  await backend.trainSft(model, [yes], { learningRate: 1e-3 });
  const history = await backend.history(model);
  // All is trained before the silent tracker was given up: nothing waited for it.
  expect(model.trackers.health()[1]).toMatchObject({ sent: 0, dropped: 0, lastError: null });
  await model.trackers.close({ timeoutMs: 2000 });
  await backend.close();

  const lines = async (file: string): Promise<Record<string, unknown>[]> =>
    (await readFile(join(root, 'tracked', 'demo', 'agent', file), 'utf8'))
      .split('\n')
      .slice(0, -1)
      .map((line) => JSON.parse(line));
  const rows = await lines('metrics.jsonl');
  expect(rows.map(({ training_step, split }) => [training_step, split])).toEqual([
    [1, 'train'],
    [0, 'val'],
    [2, 'sft'],
  ]);
  expect(rows[0]).toMatchObject(metrics);
  expect(rows[1]).toMatchObject({ 'val/reward': 1.5, 'val/accuracy': 0.5 });
  // What the history has of a row, its tracker has too.
  for (const { step, split, ...values } of history) {
    const row = rows.find(({ training_step, split: other }) => training_step === step && other === split);
    expect(row).toMatchObject(values);
  }
  const trajectories = await lines('trajectories.jsonl');
  expect(trajectories.map(({ training_step, split }) => [training_step, split])).toEqual([
    [1, 'train'],
    [0, 'val'],
  ]);
  const config = JSON.parse(await readFile(join(root, 'tracked', 'demo', 'agent', 'config.json'), 'utf8'));
  expect(config).toMatchObject({ baseModel: join(root, 'base'), lora: { rank: 4 }, train: { learningRate: 1e-3 } });
  expect(warnings).toEqual(['tracker wandb: closed; lost: 3 rows (steps 0–2) and 0 batches of trajectories']);
});
