/** NeMo-Agent-Toolkit #1649: requests went to the base model's name, and training did nothing. Here that is an error of the rollout. */
import { expect, test } from 'vitest';
import { captureTrajectory } from '../../src/index.ts';
import { startRepeatingServer } from '../repeating-agent.ts';

test('a name that is not served is refused, and calls of another model than the one in training fail the rollout', async () => {
  await using server = await startRepeatingServer();
  const { model } = server;
  const talkTo = (name: string) => () => server.talk('hi', 1, server.client, { model: name });
  await expect(captureTrajectory(talkTo(model.baseModel), { model })).rejects.toThrow(/404.*must be .*agent/s);
  await server.register('other');
  await expect(captureTrajectory(talkTo('other'), { model })).rejects.toThrow(
    'the agent must call agent, got calls of other, of which only those of agent are trained',
  );
  const { trajectory } = await captureTrajectory(talkTo(model.getInferenceName()), { model });
  expect(trajectory.allChoices()).toHaveLength(1);
});
