/** Every named loss, and every option of it, on the real engine through the SDK: it trains off-policy too, and gives the same bytes again. */
import { afterAll, beforeAll, expect, test } from 'vitest';
import {
  type LocalBackend,
  type TrainableModel,
  type TrainOptions,
  Trajectory,
  TrajectoryGroup,
} from '../../src/index.ts';
import { question, sampleChoice, setUpYesOrNo } from '../yes-or-no.ts';

const bed = setUpYesOrNo();
let backend: LocalBackend;
beforeAll(() => {
  backend = bed.openBackend();
});
afterAll(() => backend.close());

async function createModel(name: string): Promise<TrainableModel> {
  const model = bed.createModel(name);
  await model.register(backend);
  return model;
}

/** Of four lengths at most. */
async function sampleGroup(model: TrainableModel, first: number): Promise<TrajectoryGroup> {
  const trajectories = [0, 1, 2, 3].map(async (i) => {
    const choice = await sampleChoice(model, first + i, 4 + 2 * i);
    return new Trajectory({ messagesAndChoices: [question, choice], reward: i % 3 });
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
