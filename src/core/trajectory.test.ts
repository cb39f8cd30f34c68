import { expect, test } from 'vitest';
import { type ChatChoice, Trajectory } from './trajectory.ts';

const choice = (content: string): ChatChoice => ({
  index: 0,
  finish_reason: 'stop',
  message: { role: 'assistant', content },
  art: { completion_id: content, policy_step: 0 },
});
const user = { role: 'user', content: 'Go.' } as const;
const tools = [{ type: 'function', function: { name: 'look' } }];

test('choices of all histories come in order, and the histories belong to the trajectory alone', () => {
  const other = { messagesAndChoices: [user, choice('c'), choice('d')] };
  const trajectory = new Trajectory({
    messagesAndChoices: [user, choice('a'), user, choice('b')],
    tools,
    additionalHistories: [other, { messagesAndChoices: [choice('e')], tools }],
    turnRewards: [1, 2, 3, 4, 5],
  });
  other.messagesAndChoices.length = 0;
  expect(trajectory.allChoices().map(({ message }) => message.content)).toEqual(['a', 'b', 'c', 'd', 'e']);
  expect(trajectory.additionalHistories.map((history) => history.tools)).toEqual([null, tools]);
  expect(trajectory).toMatchObject({ tools, turnRewards: [1, 2, 3, 4, 5] });
  expect(new Trajectory()).toMatchObject({ tools: null, additionalHistories: [], turnRewards: [], reward: 0 });
});

test('trackDuration adds up the seconds of each name, of failures too, and gives back the result', async () => {
  const trajectory = new Trajectory();
  const wait = () => new Promise<string>((resolve) => setTimeout(() => resolve('done'), 30));
  expect(await trajectory.trackDuration('tool', wait)).toBe('done');
  const once = Number(trajectory.metrics.tool_duration);
  const failing = trajectory.trackDuration('tool', async () => {
    await wait();
    throw new TypeError('no tool');
  });
  await expect(failing).rejects.toThrow('no tool');
  expect(once).toBeGreaterThan(0.02);
  expect(trajectory.metrics.tool_duration).toBeGreaterThan(once + 0.02);
  expect(await trajectory.trackDuration('judge', () => 1)).toBe(1);
  expect(Object.keys(trajectory.metrics)).toEqual(['tool_duration', 'judge_duration']);
});
