/** Pain 40: the optimizer's state was lost on restart. Here every checkpoint has it: a run that is closed between two steps makes the same bytes. */
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { writeStarterModel } from '../../src/formats/starter-model.ts';
import { type ChatChoice, LocalBackend, TrainableModel, Trajectory, TrajectoryGroup } from '../../src/index.ts';

let root = '';
beforeAll(async () => {
  root = await mkdtemp(join(tmpdir(), 'art-optimizer-'));
  const sizes = { width: 32, layers: 1, heads: 2, kvHeads: 1, headSize: 16, ffWidth: 64, maxPositions: 128 };
  await writeStarterModel({
    seed: 1,
    directory: join(root, 'base'),
    corpus: ['Say yes or no.', 'yes', 'no'],
    ...sizes,
  });
});
afterAll(() => rm(root, { recursive: true, force: true }));

/** One step on four turns that the newest policy samples with these seeds. */
async function trainStep(backend: LocalBackend, model: TrainableModel, seed: number): Promise<void> {
  const trajectories: Trajectory[] = [];
  for (let index = 0; index < 4; index++) {
    const message = { role: 'user', content: 'Say yes or no.' } as const;
    const request = { model: model.getInferenceName(), messages: [message], seed: seed + index, max_tokens: 8 };
    const { choices } = await model.openaiClient().chat.completions.create(request);
    trajectories.push(new Trajectory({ messagesAndChoices: [message, choices[0] as ChatChoice], reward: index }));
  }
  await backend.train(model, [new TrajectoryGroup(trajectories)], { learningRate: 1e-2, gradientSteps: 2 });
}

/** Names and hashes of the files of the newest checkpoint, after steps that are made by so many backends one after another. */
async function runSteps(path: string, perBackend: readonly (readonly number[])[]): Promise<readonly unknown[]> {
  let files: readonly unknown[] = [];
  for (const seeds of perBackend) {
    const engine = { trainThreads: 1, sampleThreads: 1, cacheTokens: 4096, maxRunningSequences: 16 };
    await using backend = new LocalBackend({ path: join(root, path), engine });
    const model = new TrainableModel({ name: 'agent', project: 'p', baseModel: join(root, 'base'), lora: { rank: 4 } });
    await model.register(backend);
    for (const seed of seeds) await trainStep(backend, model, seed);
    files = (await model.getCheckpoint()).files;
  }
  return files;
}

test('a run that is closed and opened between two steps ends with the same adapter and optimizer', async () => {
  const whole = await runSteps('whole', [[10, 20, 30]]);
  expect(await runSteps('restarted', [[10], [20], [30]])).toEqual(whole);
  expect(whole).toContainEqual(expect.objectContaining({ name: 'adapter_model.safetensors' }));
  expect(whole).toContainEqual(expect.objectContaining({ name: expect.stringMatching(/optimizer/) }));
}, 180_000);
