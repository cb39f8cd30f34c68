import { expect, test } from 'vitest';
import { completion, group, lookup, trajectory } from '../../../test/server/training-fixtures.ts';
import { DataError } from '../../core/errors.ts';
import {
  createRatioCollector,
  isClipped,
  percentile,
  qualifyMetrics,
  stalenessMetrics,
  trajectoryMetrics,
} from './train-metrics.ts';
import { buildTrainingBatch } from './training-batch.ts';

test('reward, its spread inside groups of more than one, and the exception rate', () => {
  const first = group(trajectory(1, []), trajectory(3, []));
  const second = { ...group(trajectory(5, [])), exceptions: [{ type: 'Error', message: 'no' }] };
  expect(trajectoryMetrics('train', [first, second])).toEqual({
    'train/reward': 3,
    'train/reward_std_dev': 1,
    'train/exception_rate': 0.25,
  });
});

test('means of what users recorded, over those that recorded it', () => {
  const first = { ...trajectory(0, []), metrics: { solved: true, turns: 4 } };
  const second = { ...trajectory(0, []), metrics: { solved: false } };
  const groups = [
    { ...group(first, second), metrics: { difficulty: 2 } },
    { ...group(), metrics: { difficulty: 4 } },
  ];
  expect(trajectoryMetrics('val', groups)).toMatchObject({
    'val/solved': 0.5,
    'val/turns': 4,
    'val/group/difficulty': 3,
  });
});

test('a metric named like a computed one is refused; without trajectories there is no reward', () => {
  const taken = { ...trajectory(0, []), metrics: { reward: 1 } };
  expect(() => trajectoryMetrics('train', [group(taken)])).toThrow(DataError);
  expect(trajectoryMetrics('train', [{ ...group(), exceptions: [{ type: 'E', message: '' }] }])).toEqual({
    'train/exception_rate': 1,
  });
});

test('names without a section get the split as prefix', () => {
  expect(qualifyMetrics('val', { accuracy: 1, 'costs/judge': 2 })).toEqual({ 'val/accuracy': 1, 'costs/judge': 2 });
});

test('percentiles interpolate between order statistics', () => {
  expect(percentile([4, 1, 3, 2], 0.5)).toBe(2.5);
  expect(percentile([1, 2, 3, 4, 5], 0.95)).toBeCloseTo(4.8, 12);
  expect(percentile([7], 0.99)).toBe(7);
});

test('clipping: CISPO whenever the weight leaves its range, PPO only where the clip stops the gradient', () => {
  const cispo = { name: 'cispo', clipLow: 0, clipHigh: 5 } as const;
  const ppo = { name: 'ppo', clipLow: 0.2, clipHigh: 0.3 } as const;
  expect([isClipped(cispo, 5, 1), isClipped(cispo, 5.1, -1)]).toEqual([false, true]);
  expect([isClipped(ppo, 1.25, 1), isClipped(ppo, 1.35, 1), isClipped(ppo, 1.35, -1)]).toEqual([false, true, false]);
  expect([isClipped(ppo, 0.7, -1), isClipped(ppo, 0.7, 1)]).toEqual([true, false]);
});

test('ratios and mismatch by hand: only tokens sampled by the weights of this pass count as mismatch', () => {
  const store = lookup(
    completion('a', { tokenIds: [7, 8], logprobs: [-1, -2], policyStep: 4 }),
    completion('b', { tokenIds: [9], logprobs: [-1], policyStep: 3 }),
  );
  const batch = buildTrainingBatch([group(trajectory(1, ['a']), trajectory(0, ['b']))], store, {
    advantage: 'groupCenter',
    maxTokens: 10,
  });
  const loss = { name: 'cispo', clipLow: 0, clipHigh: 2 } as const;
  const [a, b] = batch.trajectories.flat();
  const collector = createRatioCollector();
  collector.add(a!, a!.datum, [0, 0, -1 + Math.log(2), -2], loss, 4);
  collector.add(b!, b!.datum, [0, 0, -1 + Math.log(4)], loss, 4);
  const metrics = collector.metrics();
  expect(metrics['loss/importance_ratio_mean']).toBeCloseTo((2 + 1 + 4) / 3, 12);
  expect(metrics['loss/importance_ratio_p95']).toBeCloseTo(3.8, 12);
  expect(metrics['loss/clipped_token_fraction']).toBeCloseTo(1 / 3, 12);
  // k3 of ρ = 2 is 2 − 1 − ln 2, of ρ = 1 it is 0.
  expect(metrics['loss/mismatch_kl']).toBeCloseTo((1 - Math.log(2)) / 2, 12);
  expect(metrics['loss/mismatch_max_abs']).toBeCloseTo(Math.log(2), 12);
  expect(stalenessMetrics(batch, 4)['offpolicy/token_weighted_policy_age_steps']).toBeCloseTo(1 / 3, 12);
});

test('what is clipped is the ratio that the loss has: of the trajectory for GSPO, to the trainer beside a cap', () => {
  const store = lookup(completion('a', { logprobs: [-1, -1] }), completion('b'));
  const { trajectories } = buildTrainingBatch([group(trajectory(1, ['a']), trajectory(0, ['b']))], store, {
    advantage: 'groupCenter',
    maxTokens: 10,
  });
  const sequence = trajectories[0]![0]!;
  const clipped = (change: object, name: 'gspo' | 'ppo'): unknown => {
    const collector = createRatioCollector();
    const loss = { name, clipLow: 0.2, clipHigh: 0.2 };
    collector.add(sequence, { ...sequence.datum, ...change }, [0, 0, -0.5, -1.5], loss, null);
    return collector.metrics()['loss/clipped_token_fraction'];
  };
  // Tokens have e^0.5 and e^−0.5, the trajectory 1; the advantage is positive.
  expect(clipped({ sequenceLogRatio: 0 }, 'gspo')).toBe(0);
  expect(clipped({ sequenceLogRatio: 0.3 }, 'gspo')).toBe(1);
  expect(clipped({}, 'ppo')).toBe(0.5);
  expect(clipped({ samplingLogprobs: [0, 0, -0.5, -1.5] }, 'ppo')).toBe(0);
});

test('equal logprobs give exactly ratio 1 and mismatch 0', () => {
  const store = lookup(completion('a', { logprobs: [-0.1, -3.7] }), completion('b'));
  const batch = buildTrainingBatch([group(trajectory(1, ['a']), trajectory(0, ['b']))], store, {
    advantage: 'groupStd',
    maxTokens: 10,
  });
  const collector = createRatioCollector();
  for (const sequence of batch.trajectories.flat()) {
    const { datum } = sequence;
    collector.add(sequence, datum, datum.samplingLogprobs, { name: 'ppo', clipLow: 0.2, clipHigh: 0.2 }, 0);
  }
  expect(collector.metrics()).toEqual({
    'loss/importance_ratio_mean': 1,
    'loss/importance_ratio_p95': 1,
    'loss/importance_ratio_p99': 1,
    'loss/clipped_token_fraction': 0,
    'loss/mismatch_kl': 0,
    'loss/mismatch_max_abs': 0,
  });
});
