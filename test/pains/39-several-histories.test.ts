/** ART: rollouts with several histories were left out of judging and training. Here a capture keeps each, with its tools and turns. */
import { expect, test } from 'vitest';
import { captureTrajectory, TrajectoryGroup } from '../../src/index.ts';
import { startRepeatingServer } from '../repeating-agent.ts';

test('sub-agents and a history that is summed up: every conversation is kept, and each sampled turn stands once', async () => {
  await using server = await startRepeatingServer();
  const look = { type: 'function', function: { name: 'look', parameters: { type: 'object', properties: {} } } };
  const { trajectory } = await captureTrajectory(async () => {
    await server.talk('plan', 2);
    await Promise.all([server.talk('search', 2, server.client, { tools: [look] }), server.talk('read', 1)]);
    await server.talk('Summary so far: planned.', 1);
  });
  const histories = [trajectory, ...trajectory.additionalHistories];
  expect(histories.map(({ tools }) => tools).filter((tools) => tools !== null)).toEqual([[look]]);
  expect(trajectory.messages()[1]?.content).toBe('plan 0');
  expect(trajectory.additionalHistories.at(-1)?.messagesAndChoices[1]).toMatchObject({
    content: 'Summary so far: planned. 0',
  });
  const ids = trajectory.allChoices().map(({ art }) => art?.completion_id);
  expect([ids.length, new Set(ids).size]).toEqual([6, 6]);
  trajectory.reward = 1;
  const plain = await captureTrajectory(() => server.talk('plan', 1));
  plain.trajectory.reward = 0;
  const { metrics } = await server.backend.train(server.model, [new TrajectoryGroup([trajectory, plain.trajectory])]);
  const sampled = [trajectory, plain.trajectory].map((each) => Number(each.metrics.completion_tokens));
  expect(metrics['data/step_trainable_assistant_tokens']).toBe(sampled.reduce((sum, tokens) => sum + tokens, 0));
  expect(metrics['data/step_num_additional_histories']).toBe(3);
});
