import { describe, expect, test } from 'vitest';
import {
  type AlarmKind,
  ConfigError,
  createRewardGuard,
  createRng,
  DataError,
  type GuardReport,
  type RewardGuardOptions,
  Trajectory,
  TrajectoryGroup,
} from '../index.ts';
import { correlation } from './guard-checks.ts';

interface Rolled {
  readonly text: string;
  readonly reward: number;
  readonly heldOut?: number;
}

const group = (rolled: readonly Rolled[]): TrajectoryGroup =>
  new TrajectoryGroup(
    rolled.map(
      ({ text, reward, heldOut = 0 }) =>
        new Trajectory({
          messagesAndChoices: [{ index: 0, finish_reason: 'stop', message: { role: 'assistant', content: text } }],
          reward,
          metrics: { held_out: heldOut },
        }),
    ),
  );

/** Two groups of eight whose texts differ, whose lengths say nothing of the reward. */
function healthy(step: number, more: (rolled: Rolled) => Partial<Rolled> = () => ({})): TrajectoryGroup[] {
  const rng = createRng('guard', step);
  return [0, 1].map((at) =>
    group(
      Array.from({ length: 8 }, (_, index) => {
        const text = `${step} ${at} ${index} ${'x'.repeat(rng.integer(20))}`;
        const rolled = { text, reward: 0.5 + 0.1 * rng.normal(), heldOut: 0.5 };
        return { ...rolled, ...more(rolled) };
      }),
    ),
  );
}

async function observe(steps: readonly TrajectoryGroup[][], options: RewardGuardOptions = {}): Promise<GuardReport> {
  const guard = createRewardGuard(options);
  let report: GuardReport | undefined;
  for (const groups of steps) report = await guard.observe(groups);
  return report as GuardReport;
}

const kinds = ({ alarms }: GuardReport): AlarmKind[] => alarms.map(({ kind }) => kind);
const before = Array.from({ length: 6 }, (_, step) => healthy(step));

test('a healthy run raises no alarm in 100 steps', async () => {
  const guard = createRewardGuard({ maxReward: 1, heldOut: { metric: 'held_out' } });
  const alarms: unknown[] = [];
  for (let step = 0; step < 100; step++) alarms.push(...(await guard.observe(healthy(step))).alarms);
  expect(alarms).toEqual([]);
  expect(guard.history).toHaveLength(20);
});

const cases: readonly (readonly [AlarmKind, TrajectoryGroup[][], RewardGuardOptions])[] = [
  ['saturation', [healthy(0, () => ({ reward: 1 }))], { maxReward: 1 }],
  ['collapse', [...before, healthy(9, () => ({ reward: 0.5 }))], {}],
  ['jump', [...before, healthy(9, ({ reward }) => ({ reward: reward + 0.8 }))], {}],
  ['length', [healthy(0, ({ text }) => ({ reward: text.length / 10 }))], {}],
  ['length', [healthy(0, ({ text }) => ({ reward: -text.length / 10 }))], {}],
  [
    'held_out',
    Array.from({ length: 10 }, (_, step) =>
      healthy(step, ({ reward }) => ({ reward: reward + step / 20, heldOut: 0.5 - step / 40 })),
    ),
    { heldOut: { metric: 'held_out' } },
  ],
  ['duplicates', [[group([...'aaab'].map((text, reward) => ({ text, reward })))]], {}],
  ['shared_completions', [[0, 1].map(() => group([...'abc'].map((text, reward) => ({ text, reward }))))], {}],
];

test.each(cases)('%s is found, with its numbers (%#)', async (kind, steps, options) => {
  const report = await observe(steps, options);
  expect(kinds(report)).toEqual([kind]);
  const [alarm] = report.alarms;
  expect(alarm?.message).toContain(`${alarm?.threshold.toFixed(3)}, got ${alarm?.value.toFixed(3)}`);
  expect(report.metrics).toMatchObject({ 'guard/alarms': 1, [`guard/alarm/${kind}`]: 1 });
});

test('a reward that rises along with the held-out one is no alarm', async () => {
  const steps = Array.from({ length: 10 }, (_, step) =>
    healthy(step, ({ reward }) => ({ reward: reward + step / 50, heldOut: 0.5 + step / 50 })),
  );
  expect(kinds(await observe(steps, { heldOut: ({ metrics }) => Number(metrics.held_out) }))).toEqual([]);
});

test('length is compared inside groups: groups that differ in both say nothing', async () => {
  const groups = [0, 1].map((at) =>
    group(
      Array.from({ length: 8 }, (_, index) => ({
        text: `${at}${index}${'x'.repeat(100 * at + (index % 4))}`,
        reward: 10 * at + (index < 4 ? 0 : 1),
      })),
    ),
  );
  const report = await observe([groups]);
  expect(report.row.lengthCorrelation).toBeCloseTo(0, 12);
});

describe('the numbers', () => {
  test('are those of the formulas', async () => {
    const report = await observe(
      [
        [
          group([
            { text: 'a', reward: 1 },
            { text: 'bb', reward: 0 },
          ]),
          group([{ text: 'a', reward: 1 }]),
        ],
      ],
      { maxReward: 1 },
    );
    expect(report.row).toEqual({
      step: 0,
      trajectories: 3,
      meanReward: 2 / 3,
      groupStd: 0.5,
      saturation: 2 / 3,
      lengthCorrelation: null,
      heldOut: null,
      duplicates: 0,
      shared: 2 / 3,
    });
    // Pearson's of (1, 2, 3) and (2, 1, 4), by hand: 2 / √(2 · 14/3).
    expect(correlation([1, 2, 3], [2, 1, 4])).toBeCloseTo(2 / Math.sqrt(2 * (14 / 3)), 12);
    expect(correlation([1, 1], [0, 5])).toBeNull();
  });

  test('a guard goes on from the rows of an earlier one', async () => {
    const first = createRewardGuard();
    for (const groups of before) await first.observe(groups);
    const history = JSON.parse(JSON.stringify(first.history));
    const second = createRewardGuard({ history });
    const report = await second.observe(healthy(9, ({ reward }) => ({ reward: reward + 0.8 })));
    expect(kinds(report)).toEqual(['jump']);
    expect(report.row.step).toBe(6);
  });
});

test('throws only what it is asked to throw, and keeps the row', async () => {
  const guard = createRewardGuard({ maxReward: 1, throwOn: ['saturation'] });
  const saturated = healthy(0, () => ({ reward: 1 }));
  await expect(guard.observe(saturated)).rejects.toThrow(DataError);
  await expect(guard.observe(saturated)).rejects.toMatchObject({
    details: { alarms: [{ kind: 'saturation', value: 1 }] },
  });
  expect(guard.history).toHaveLength(2);
  expect((await guard.observe([group([...'aaaa'].map((text) => ({ text, reward: 0 })))])).alarms).toHaveLength(1);
});

test('unknown and senseless options are refused by name', () => {
  expect(() => createRewardGuard({ maxRewards: 1 } as never)).toThrow(/known options are .*got maxRewards$/);
  expect(() => createRewardGuard({ thresholds: { jump: 1 } as never })).toThrow(/got jump$/);
  expect(() => createRewardGuard({ throwOn: ['odd' as never] })).toThrow(ConfigError);
});
