/** Pain 13: a forked run gave repetitive garbage after a few steps. Here a fork and its parent make the same bytes from the same data. */
import { afterAll, beforeAll, expect, test } from 'vitest';
import type { LocalBackend, TrainableModel } from '../../src/index.ts';
import { sampleChoice, sampleGroup, setUpYesOrNo } from '../yes-or-no.ts';

const bed = setUpYesOrNo();
let backend: LocalBackend;
beforeAll(() => {
  backend = bed.openBackend();
});
afterAll(() => backend.close());

async function trainStep(model: TrainableModel, seed: number): Promise<string> {
  const options = { learningRate: 1e-2, gradientSteps: 2 };
  return (await backend.train(model, [await sampleGroup(model, seed)], options)).adapterSha256;
}

test('fork, train one step, generate: the same bytes as the original that goes on', { timeout: 120_000 }, async () => {
  const original = bed.createModel('original', { project: 'first' });
  await original.register(backend);
  for (const seed of [10, 20]) await trainStep(original, seed);
  const fork = bed.createModel('fork', { project: 'second' });
  const made = await backend.fork(fork, { fromModel: 'original', fromProject: 'first' });
  expect(made.step).toBe(2);
  await fork.register(backend);

  const adapter = await trainStep(original, 30);
  expect(await trainStep(fork, 30)).toBe(adapter);
  expect([await original.getStep(), await fork.getStep()]).toEqual([3, 3]);
  const files = async (model: TrainableModel): Promise<unknown> => (await model.getCheckpoint()).files;
  expect(await files(fork)).toEqual(await files(original)); // optimizer state too
  const text = async (model: TrainableModel): Promise<unknown> => (await sampleChoice(model, 99)).message.content;
  expect(await text(fork)).toBe(await text(original));
  expect((await original.getCheckpoint(1)).adapterSha256).not.toBe(adapter);
});
