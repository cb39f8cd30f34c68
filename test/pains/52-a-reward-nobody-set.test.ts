/** Symptom: a rollout that forgets its reward trains as if it had earned 0. Here it is refused, where it is, and a 0 that is meant is not. */
import { expect, test } from 'vitest';
import { DataError, RemoteBackend, TrainableModel, Trajectory, TrajectoryGroup } from '../../src/index.ts';

const choice = {
  index: 0,
  finish_reason: 'stop',
  message: { role: 'assistant', content: 'yes' },
  art: { completion_id: 'chatcmpl-1', policy_step: 0 },
};
const backend = new RemoteBackend({ baseURL: 'http://127.0.0.1:9' });
const model = new TrainableModel({ name: 'agent', project: 'pains', baseModel: './models/my-model' });
const train = (...trajectories: Trajectory[]): Promise<unknown> =>
  backend.train(model, [new TrajectoryGroup(trajectories)]);

test('a reward that was never set is not trained, and the error says which', async () => {
  const scored = new Trajectory({ messagesAndChoices: [choice], reward: 1 });
  const forgotten = new Trajectory({ messagesAndChoices: [choice] });
  expect(forgotten.isRewardSet).toBe(false);
  await expect(train(scored, forgotten)).rejects.toThrow(DataError);
  await expect(train(scored, forgotten)).rejects.toThrow(
    /^train: group 0, trajectory 1: reward must be set, if only to 0/,
  );
});

test('a 0 that is assigned, added or given is a reward', () => {
  const [assigned, added] = [new Trajectory(), new Trajectory()];
  assigned.reward = 0;
  added.reward += 0;
  const all = [assigned, added, new Trajectory({ reward: 0 })];
  expect(all.map(({ isRewardSet, reward }) => ({ isRewardSet, reward }))).toEqual(
    all.map(() => ({ isRewardSet: true, reward: 0 })),
  );
  expect(JSON.parse(JSON.stringify(assigned))).toMatchObject({ reward: 0 });
});
