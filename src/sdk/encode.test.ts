import { expect, test } from 'vitest';
import { DataError } from '../core/errors.ts';
import { type ChatChoice, Trajectory, TrajectoryGroup, type TrajectoryInit } from '../core/trajectory.ts';
import { wireGroup } from '../wire/training.ts';
import { encodeLogGroups, encodeTrainGroups } from './encode.ts';

const user = { role: 'user', content: 'Go.' } as const;
const tools = [{ type: 'function', function: { name: 'look', parameters: { type: 'object' } } }];
const choice = (id: string): ChatChoice => ({
  index: 0,
  finish_reason: 'stop',
  message: { role: 'assistant', content: id },
  art: { completion_id: id, policy_step: 2 },
});
const train = (init: TrajectoryInit): unknown =>
  encodeTrainGroups([new TrajectoryGroup([new Trajectory({ reward: 1, ...init })])]);
const whole: TrajectoryInit = {
  messagesAndChoices: [user, choice('a')],
  tools,
  additionalHistories: [{ messagesAndChoices: [user, choice('b')] }, { messagesAndChoices: [choice('c')], tools }],
  reward: 1,
  turnRewards: [0.5, 0, -1],
};
const turn = (id: string) => ({
  message: { role: 'assistant', content: id },
  choice: { completion_id: id, choice_index: 0 },
});

test('tools, further histories and rewards of turns travel with a trajectory, for training and for logs', () => {
  const expected = {
    entries: [{ message: user }, turn('a')],
    tools,
    additional_histories: [{ entries: [{ message: user }, turn('b')] }, { entries: [turn('c')], tools }],
    reward: 1,
    turn_rewards: [0.5, 0, -1],
  };
  const group = new TrajectoryGroup([new Trajectory(whole)]);
  for (const [encoded] of [encodeTrainGroups([group]), encodeLogGroups(group)]) {
    expect(encoded?.trajectories).toEqual([{ ...expected, metrics: {}, metadata: {}, logs: [] }]);
    expect(wireGroup.parse(encoded)).toEqual(encoded);
  }
});

test('a trajectory without them travels without their names', () => {
  const [group] = encodeTrainGroups([
    new TrajectoryGroup([new Trajectory({ reward: 0, messagesAndChoices: [choice('a')] })]),
  ]);
  expect(Object.keys(group?.trajectories[0] ?? {})).toEqual(['entries', 'reward', 'metrics', 'metadata', 'logs']);
});

test('choices of further histories count: they may be the only ones, and must be the policy’s', () => {
  expect(train({ additionalHistories: [{ messagesAndChoices: [choice('a')] }] })).toHaveLength(1);
  const { art: _art, ...foreign } = choice('x');
  expect(() => train({ ...whole, additionalHistories: [{ messagesAndChoices: [foreign] }], turnRewards: [] })).toThrow(
    /group 0, trajectory 0: every choice must be sampled/,
  );
});

test('rewards of turns must be one for each choice, and finite', () => {
  expect(() => train({ ...whole, turnRewards: [1] })).toThrow(DataError);
  expect(() => train({ ...whole, turnRewards: [1] })).toThrow(
    'train: group 0, trajectory 0: turnRewards must be empty or have one number for each of 3 choices, got 1',
  );
  expect(() => train({ ...whole, turnRewards: [1, Number.NaN, 0] })).toThrow(/turnRewards must be finite, got NaN/);
});

test('a reward that was never set is not trained, and is counted where it is logged', () => {
  const entries = { messagesAndChoices: [choice('a')] };
  const groups = [new TrajectoryGroup([new Trajectory({ ...entries, reward: 0 }), new Trajectory(entries)])];
  expect(() => encodeTrainGroups(groups)).toThrow(/^train: group 0, trajectory 1: reward must be set/);
  const [group] = encodeLogGroups(groups);
  expect(group?.trajectories.map(({ reward, metrics }) => ({ reward, metrics }))).toEqual([
    { reward: 0, metrics: {} },
    { reward: 0, metrics: { reward_unset: 1 } },
  ]);
});
