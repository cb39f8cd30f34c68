/** ART #127: plain assistant messages in place of choices, and the action mask was all zeros. Here that is said, or cannot happen. */
import { expect, test } from 'vitest';
import { captureTrajectory, Trajectory, TrajectoryGroup } from '../../src/index.ts';
import { startRepeatingServer } from '../repeating-agent.ts';

test('a trajectory of plain messages is refused with the mend, before anything is sent', async () => {
  await using server = await startRepeatingServer();
  const messages = [
    { role: 'user', content: 'hi' },
    { role: 'assistant', content: 'hello' },
  ] as const;
  const plain = new TrajectoryGroup([1, 0].map((reward) => new Trajectory({ messagesAndChoices: messages, reward })));
  await expect(server.backend.train(server.model, [plain])).rejects.toThrow(
    /group 0, trajectory 0: needs at least one sampled choice; push `completion.choices\[0\]`, not its message/,
  );
  // A capture takes the choices from the server: a framework that keeps messages alone is trained all the same.
  const rollouts = [1, 0].map(async (reward) => {
    const { trajectory } = await captureTrajectory(() => server.talk('hi', 1));
    trajectory.reward = reward;
    return trajectory;
  });
  const group = new TrajectoryGroup(await Promise.all(rollouts));
  const { metrics } = await server.backend.train(server.model, [group]);
  expect(metrics['data/step_num_groups_trainable']).toBe(1);
});
