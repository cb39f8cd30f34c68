import { execFile } from 'node:child_process';
import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { promisify } from 'node:util';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { writeStarterModel } from './formats/starter-model.ts';
import {
  type ChatChoice,
  ConfigError,
  deriveSeed,
  gatherTrajectoryGroups,
  LocalBackend,
  type LocalBackendOptions,
  TrainableModel,
  Trajectory,
  type TrajectoryGroup,
  trajectoryGroup,
} from './index.ts';
import { type ArtServerOptions, createArtServer } from './server/index.ts';

const engine = { trainThreads: 1, sampleThreads: 1, cacheTokens: 4096, maxRunningSequences: 16 };
let root = '';

beforeAll(async () => {
  root = await mkdtemp(join(tmpdir(), 'art-local-'));
  const corpus = ['Say yes or no.', 'yes', 'no'];
  const sizes = { width: 32, layers: 1, heads: 2, kvHeads: 1, headSize: 16, ffWidth: 64, maxPositions: 128 };
  await writeStarterModel({ seed: 1, directory: join(root, 'base'), corpus, ...sizes });
});
afterAll(() => rm(root, { recursive: true, force: true }));

const createModel = (): TrainableModel =>
  new TrainableModel({
    name: 'agent-001',
    project: 'test',
    baseModel: join(root, 'base'),
    lora: { rank: 4, alpha: 8 },
  });

/** Two turns a trajectory; an odd length of the answer is rewarded, so that rewards differ inside a group. */
async function rollout(model: TrainableModel, seed: number): Promise<Trajectory> {
  const trajectory = new Trajectory({ messagesAndChoices: [{ role: 'user', content: 'Say yes or no.' }] });
  for (let turn = 0; turn < 2; turn++) {
    const completion = await model.openaiClient().chat.completions.create({
      model: model.getInferenceName(),
      messages: trajectory.messages() as { role: 'user'; content: string }[],
      temperature: 1,
      seed: deriveSeed(seed, turn),
      max_tokens: 6,
    });
    const choice = completion.choices[0] as ChatChoice;
    trajectory.messagesAndChoices.push(choice, { role: 'user', content: 'Again.' });
    trajectory.reward += String(choice.message.content).length % 3;
  }
  return trajectory;
}

const gather = (model: TrainableModel, step: number): Promise<TrajectoryGroup[]> =>
  gatherTrajectoryGroups(
    [0, 1].map((group) =>
      trajectoryGroup(Array.from({ length: 4 }, (_, game) => () => rollout(model, deriveSeed(step, group, game)))),
    ),
  );

test('a model is trained, logged, closed, and goes on where it stopped', async () => {
  const path = join(root, 'runs');
  const first = new LocalBackend({ path, engine });
  const model = createModel();
  await model.register(first);
  await model.register(first);
  expect(await model.getStep()).toBe(0);
  const stages = new Set<string>();
  const groups = await gather(model, 0);
  const onProgress = ({ stage }: { readonly stage: string }): unknown => stages.add(stage);
  const result = await first.train(model, groups, { learningRate: 1e-3, gradientSteps: 2 }, { onProgress });
  expect(result.step).toBe(1);
  expect(result.adapterSha256).toMatch(/^[0-9a-f]{64}$/);
  expect(result.metrics['loss/mismatch_kl']).toBe(0);
  expect([...stages]).toEqual(['batch', 'train', 'publish', 'verify', 'checkpoint']);
  await model.log(groups, { split: 'val', metrics: { extra: 2 } });
  const history = await first.history(model);
  expect(history.map(({ step, split }) => [step, split])).toEqual([
    [1, 'train'],
    [1, 'val'],
  ]);
  expect((await first.getState(model)).engine.peakRssBytes).toBeGreaterThan(2 ** 20);
  await first.close();
  await first.close();
  await expect(first.getStep(model)).rejects.toThrow(ConfigError);

  await using second = new LocalBackend({ path, engine });
  const resumed = createModel();
  await resumed.register(second);
  expect(await resumed.getStep()).toBe(1);
  expect(await second.history(resumed)).toEqual(history);
  expect((await second.train(resumed, await gather(resumed, 1), { learningRate: 1e-3 })).step).toBe(2);
});

test('a refused training leaves the policy as it is and says what was wrong', async () => {
  await using backend = new LocalBackend({ path: join(root, 'refused'), engine });
  const model = createModel();
  await model.register(backend);
  const groups = await gather(model, 0);
  const choice = { index: 0, finish_reason: 'stop', message: { role: 'assistant', content: 'yes' } };
  const invented = { ...choice, art: { completion_id: 'chatcmpl-invented', policy_step: 0 } };
  groups[0]?.trajectories.push(
    new Trajectory({ reward: 1, messagesAndChoices: [{ role: 'user', content: 'x' }, invented] }),
  );
  await expect(backend.train(model, groups)).rejects.toThrow(/training of model agent-001: .*chatcmpl-invented/);
  expect(await model.getStep()).toBe(0);
});

test('unknown options are refused by name', async () => {
  expect(() => new LocalBackend({ pth: 'x' } as LocalBackendOptions)).toThrow(/known options are path.*; got pth$/);
  const wrong = { root, createEngin: 1 } as ArtServerOptions;
  await expect(createArtServer(wrong)).rejects.toThrow(/known options are .*; got createEngin$/);
});

test('after close nothing keeps the process alive', async () => {
  const entry = pathToFileURL(fileURLToPath(new URL('../dist/src/index.js', import.meta.url))).href;
  const program = `
    import { LocalBackend, TrainableModel } from ${JSON.stringify(entry)};
    const backend = new LocalBackend({ path: ${JSON.stringify(join(root, 'exits'))} });
    const model = new TrainableModel({ name: 'a', project: 'p', baseModel: ${JSON.stringify(join(root, 'base'))} });
    await model.register(backend);
    const messages = [{ role: 'user', content: 'Say yes or no.' }];
    await model.openaiClient().chat.completions.create({ model: model.getInferenceName(), messages, max_tokens: 2 });
    await backend.close();
    console.log('closed', Date.now());
  `;
  const run = promisify(execFile)(process.execPath, ['--input-type=module', '--eval', program], { timeout: 30_000 });
  const { stdout } = await run;
  const closedAt = Number(stdout.match(/^closed (\d+)$/m)?.[1]);
  expect(Date.now() - closedAt).toBeLessThan(3000);
  await expect(readFile(join(root, 'exits/p/models/a/lock'))).rejects.toThrow('ENOENT');
});
