import { expect, test } from 'vitest';
import { completion, lookup } from '../../../test/server/training-fixtures.ts';
import type { WireGroup } from '../../wire/training.ts';
import { createStoragePolicy } from '../security/storage-policy.ts';
import { formatTrajectories } from './trajectory-files.ts';

const tools = [{ type: 'function', function: { name: 'look', description: 'Mail me at a@example.org' } }];
const question = { message: { role: 'user', content: 'Where?' } };
const turn = (id: string) => ({
  message: { role: 'assistant', content: id, tool_calls: [{ id: 'c1', type: 'function', function: { name: 'look' } }] },
  choice: { completion_id: id, choice_index: 0 },
});
const group: WireGroup = {
  trajectories: [
    {
      entries: [question, turn('a')],
      tools,
      additional_histories: [{ entries: [question, turn('b')] }, { entries: [turn('gone')], tools }],
      reward: 1,
      turn_rewards: [0.25, -1, 0],
      metrics: { moves: 3 },
      metadata: { scenario: 's' },
      logs: ['a log line'],
    },
  ],
  exceptions: [],
  metrics: {},
  metadata: {},
  logs: [],
};
const model = {
  completions: { ...lookup(completion('a'), completion('b', { tokenIds: [9], logprobs: [-2] })) },
  tokenizer: { decode: () => '' },
} as unknown as Parameters<typeof formatTrajectories>[1];
const linesOf = (policy: Parameters<typeof createStoragePolicy>[0]) =>
  formatTrajectories([group], model, createStoragePolicy(policy))
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line));

test('a line has everything of its trajectory: every history with its tools, rewards of turns, what was sampled', () => {
  const [line] = linesOf({});
  const sampled = (id: string, tokenIds: number[], logprobs: number[]) => ({
    message: turn(id).message,
    tokens: { policy_step: 0, temperature: 1, finish_reason: 'stop', token_ids: tokenIds, logprobs },
  });
  expect(line).toMatchObject({
    group: 0,
    trajectory: 0,
    reward: 1,
    turn_rewards: [0.25, -1, 0],
    metrics: { moves: 3 },
    metadata: { scenario: 's' },
    logs: ['a log line'],
    tools,
    entries: [question, sampled('a', completion('a').tokenIds as number[], completion('a').logprobs as number[])],
    additional_histories: [
      { entries: [question, sampled('b', [9], [-2])] },
      { entries: [{ message: turn('gone').message, tokens: null }], tools },
    ],
  });
});

test('tools and further histories are texts: redacted, and left out where texts are not stored', () => {
  const [redacted] = linesOf({ redact: true });
  expect(JSON.stringify(redacted)).not.toContain('a@example.org');
  expect(redacted.additional_histories[1].tools[0].function.name).toBe('look');
  const [numbers] = linesOf({ store: 'none' });
  expect(numbers).toEqual({
    group: 0,
    trajectory: 0,
    reward: 1,
    turn_rewards: [0.25, -1, 0],
    metrics: { moves: 3 },
  });
});
