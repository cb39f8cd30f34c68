/** Pain 13: a forked run gave repetitive garbage after a few steps. Here a fork and its parent make the same bytes from the same data. */
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { writeStarterModel } from '../../src/formats/starter-model.ts';
import { type ChatChoice, LocalBackend, TrainableModel, Trajectory, TrajectoryGroup } from '../../src/index.ts';

let root = '';
let backend: LocalBackend;
beforeAll(async () => {
  root = await mkdtemp(join(tmpdir(), 'art-fork-'));
  const sizes = { width: 32, layers: 1, heads: 2, kvHeads: 1, headSize: 16, ffWidth: 64, maxPositions: 128 };
  await writeStarterModel({
    seed: 1,
    directory: join(root, 'base'),
    corpus: ['Say yes or no.', 'yes', 'no'],
    ...sizes,
  });
  const engine = { trainThreads: 1, sampleThreads: 1, cacheTokens: 4096, maxRunningSequences: 16 };
  backend = new LocalBackend({ path: join(root, 'runs'), engine });
});
afterAll(async () => {
  await backend.close();
  await rm(root, { recursive: true, force: true });
});

const createModel = (name: string, project: string): TrainableModel =>
  new TrainableModel({ name, project, baseModel: join(root, 'base'), lora: { rank: 4, alpha: 8 } });

/** Sampled from the newest policy with fixed seeds. */
async function sample(model: TrainableModel, seed: number): Promise<ChatChoice> {
  const { choices } = await model.openaiClient().chat.completions.create({
    model: model.getInferenceName(),
    messages: [{ role: 'user', content: 'Say yes or no.' }],
    seed,
    max_tokens: 8,
  });
  return choices[0] as ChatChoice;
}

async function trainStep(model: TrainableModel, seed: number): Promise<string> {
  const trajectories: Trajectory[] = [];
  for (let index = 0; index < 4; index++) {
    const choice = await sample(model, seed + index);
    trajectories.push(
      new Trajectory({ messagesAndChoices: [{ role: 'user', content: 'Say yes or no.' }, choice], reward: index }),
    );
  }
  const options = { learningRate: 1e-2, gradientSteps: 2 };
  return (await backend.train(model, [new TrajectoryGroup(trajectories)], options)).adapterSha256;
}

test('fork, train one step, generate: the same bytes as the original that goes on', { timeout: 120_000 }, async () => {
  const original = createModel('original', 'first');
  await original.register(backend);
  for (const seed of [10, 20]) await trainStep(original, seed);
  const fork = createModel('fork', 'second');
  const made = await backend.fork(fork, { fromModel: 'original', fromProject: 'first' });
  expect(made.step).toBe(2);
  await fork.register(backend);

  const adapter = await trainStep(original, 30);
  expect(await trainStep(fork, 30)).toBe(adapter);
  expect([await original.getStep(), await fork.getStep()]).toEqual([3, 3]);
  const files = async (model: TrainableModel): Promise<unknown> => (await model.getCheckpoint()).files;
  expect(await files(fork)).toEqual(await files(original)); // optimizer state too
  const text = async (model: TrainableModel): Promise<unknown> => (await sample(model, 99)).message.content;
  expect(await text(fork)).toBe(await text(original));
  expect((await original.getCheckpoint(1)).adapterSha256).not.toBe(adapter);
});
