/**
 * The named losses as their papers write them: what a token of each trajectory counts, weight × advantage, where the policy is the sampler's.
 * One group of rewards 1 and 0, with one and three tokens: A = ±1/2, divided by std + 1e-4 = 0.5001 it is ±a, a = 0.5 / 0.5001.
 */
import { expect, test } from 'vitest';
import { createCountingEngine } from '../../../test/server/counting-engine.ts';
import { completion, group, lookup, trajectory } from '../../../test/server/training-fixtures.ts';
import { defaultTrainConfig, resolveLoss, type TrainConfig } from '../../core/train-config.ts';
import { runUpdates } from './train-step.ts';
import { buildTrainingBatch } from './training-batch.ts';

const records = [completion('short', { tokenIds: [7] }), completion('long', { tokenIds: [8, 9, 10] })];
const groups = [group(trajectory(1, ['short']), trajectory(0, ['long']))];
const a = 0.5 / 0.5001;

/** scale · w · A of every token, by trajectory, and the loss that the engine was asked for. */
async function coefficients(options: Partial<TrainConfig>) {
  const config = { ...defaultTrainConfig, ...options };
  const batch = buildTrainingBatch(groups, lookup(...records), { ...config, ...resolveLoss(config), maxTokens: 100 });
  const engine = createCountingEngine();
  const still = { step: 0, isExact: true, checkpoints: { list: () => [] }, onProgress: () => undefined };
  await runUpdates({ ...still, engine, batch, config, signal: new AbortController().signal });
  const data = engine.requests.flatMap((request) => request.data.map((datum) => ({ datum, scale: request.scale })));
  const sorted = data.sort((x, y) => x.datum.tokenIds.length - y.datum.tokenIds.length);
  const values = sorted.map(({ datum: { actionMask, advantages, tokenWeights }, scale }) =>
    actionMask.flatMap((action, t) => (action === 1 ? [scale * (tokenWeights?.[t] ?? 1) * advantages[t]!] : [])),
  );
  return { values, loss: engine.requests[0]!.loss };
}

const clip = (low: number, high: number): object => ({ clipLow: low, clipHigh: high });
/** GRPO: 1/G · 1/|o_i| · A. */
const grpo = [[a / 2], [-a / 6, -a / 6, -a / 6]];
/** DAPO: 1/Σ|o_i| · A. */
const dapo = [[a / 4], [-a / 4, -a / 4, -a / 4]];
const cases: readonly (readonly [string, Partial<TrainConfig>, object, readonly (readonly number[])[]])[] = [
  ['cispo', { loss: 'cispo' }, { name: 'cispo', ...clip(0, 5) }, dapo],
  ['ppo', { loss: 'ppo' }, { name: 'ppo', ...clip(0.2, 0.2) }, dapo],
  ['grpo', { loss: 'grpo' }, { name: 'ppo', ...clip(0.2, 0.2) }, grpo],
  ['dapo', { loss: 'dapo' }, { name: 'ppo', ...clip(0.2, 0.28) }, dapo],
  // Dr. GRPO: no std, divided by G · L = 2 · 10.
  [
    'drGrpo',
    { loss: 'drGrpo', maxCompletionTokens: 10 },
    { name: 'ppo', ...clip(0.2, 0.2) },
    [[1 / 40], [-1 / 40, -1 / 40, -1 / 40]],
  ],
  ['bnpo', { loss: 'bnpo' }, { name: 'ppo', ...clip(0.2, 0.2) }, dapo],
  ['gspo', { loss: 'gspo' }, { name: 'gspo', ...clip(3e-4, 4e-4) }, grpo],
  ['importanceSampling', { loss: 'importanceSampling' }, { name: 'importanceSampling' }, dapo],
  // Cut into two updates of one trajectory each: BNPO divides by the update's own tokens, DAPO by half of all four.
  ['bnpo in two parts', { loss: 'bnpo', gradientSteps: 2 }, { name: 'ppo' }, [[a], [-a / 3, -a / 3, -a / 3]]],
  ['dapo in two parts', { loss: 'dapo', gradientSteps: 2 }, { name: 'ppo' }, [[a / 2], [-a / 2, -a / 2, -a / 2]]],
];

test.each(cases)('%s', async (_name, options, expectedLoss, expected) => {
  const { values, loss } = await coefficients(options);
  expect(loss).toMatchObject(expectedLoss);
  expect(values.map((tokens) => tokens.length)).toEqual([1, 3]);
  for (const [i, tokens] of values.entries()) {
    for (const [t, value] of tokens.entries()) expect(value).toBeCloseTo(expected[i]![t]!, 12);
  }
});
