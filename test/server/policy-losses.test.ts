/** Every named loss, and every option of it, on the real engine through the SDK: it trains off-policy too, and gives the same bytes again. */
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { writeStarterModel } from '../../src/formats/starter-model.ts';
import {
  type ChatChoice,
  LocalBackend,
  TrainableModel,
  type TrainOptions,
  Trajectory,
  TrajectoryGroup,
} from '../../src/index.ts';

let root = '';
let backend: LocalBackend;
beforeAll(async () => {
  root = await mkdtemp(join(tmpdir(), 'art-losses-'));
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

async function createModel(name: string): Promise<TrainableModel> {
  const model = new TrainableModel({ name, project: 'p', baseModel: join(root, 'base'), lora: { rank: 4 } });
  await model.register(backend);
  return model;
}

async function sampleGroup(model: TrainableModel, first: number): Promise<TrajectoryGroup> {
  const message = { role: 'user', content: 'Say yes or no.' } as const;
  const trajectories = [0, 1, 2, 3].map(async (i) => {
    const request = { model: model.getInferenceName(), messages: [message], max_tokens: 4 + 2 * i };
    const { choices } = await model.openaiClient().chat.completions.create({ ...request, seed: first + i });
    return new Trajectory({ messagesAndChoices: [message, choices[0] as ChatChoice], reward: i % 3 });
  });
  return new TrajectoryGroup(await Promise.all(trajectories));
}

/** A fresh group, then a group that is one step old; two updates of two passes each. */
async function train(name: string, options: TrainOptions) {
  const model = await createModel(name);
  const stale = await sampleGroup(model, 10);
  const all = { learningRate: 0.05, gradientSteps: 2, epochs: 2, maxGradNorm: 0, ...options };
  await backend.train(model, [await sampleGroup(model, 20)], all);
  return await backend.train(model, [stale], all);
}

const kl = { weight: 0.2, form: 'loss' } as const;
const masked = { importanceMask: [0.5, 2], sequenceMask: [0.7, 1.5] } as const;
const cases: readonly (readonly [string, TrainOptions, readonly string[]])[] = [
  ['cispo', {}, []],
  ['ppo', { entropyBonus: 0.01 }, []],
  ['grpo', {}, []],
  ['dapo', { importanceCap: 1.05 }, ['loss/capped_token_fraction']],
  ['drGrpo', { maxCompletionTokens: 16 }, []],
  ['bnpo', masked, ['loss/masked_token_fraction', 'loss/masked_trajectory_fraction']],
  ['gspo', { klPenalty: { ...kl, reference: { stepsBack: 1 } } }, ['loss/kl_policy_ref', 'loss/kl_penalty']],
  ['importanceSampling', { klPenalty: { ...kl, reference: 'base', form: 'advantage' } }, ['loss/kl_policy_ref']],
];

test.each(cases)('%s with %o', { timeout: 60_000 }, async (loss, options, metricNames) => {
  const given = { loss, ...options } as TrainOptions;
  const { metrics, adapterSha256, step } = await train(`${loss}-a`, given);
  expect(step).toBe(2);
  for (const name of ['loss/train', 'loss/grad_norm', 'loss/entropy', ...metricNames]) {
    expect(Number.isFinite(metrics[name]), name).toBe(true);
  }
  expect(metrics['loss/grad_norm']).toBeGreaterThan(0);
  // One step old, four updates: not on the policy that sampled.
  expect(metrics['loss/importance_ratio_mean']).not.toBe(1);
  expect(metrics['offpolicy/token_weighted_policy_age_steps']).toBe(1);
  expect(Object.keys(metrics).filter((name) => name.startsWith('loss/kl'))).toHaveLength(options.klPenalty ? 2 : 0);
  expect((await train(`${loss}-b`, given)).adapterSha256).toBe(adapterSha256);
});

test('a reference that was never there is refused before anything is trained, and the run goes on', async () => {
  const model = await createModel('refused');
  const group = await sampleGroup(model, 30);
  const klPenalty = { weight: 0.1, reference: { step: 7 } };
  await expect(backend.train(model, [group], { klPenalty })).rejects.toThrow(/klPenalty.reference .* got step 7/);
  expect(await model.getStep()).toBe(0);
  expect((await backend.train(model, [group], { learningRate: 0.05 })).step).toBe(1);
});
