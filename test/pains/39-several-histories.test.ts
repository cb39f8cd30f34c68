/** ART: rollouts with several histories were left out of judging and training. Here a capture keeps each, with its tools and turns. */
import { expect, test } from 'vitest';
import { captureTrajectory } from '../../src/index.ts';
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
});
