/** ART PR #796, trl #6361: templates drop or move earlier thinking, so that what is trained was never sampled. Here sampled ids stay. */
import { readFileSync } from 'node:fs';
import { expect, test } from 'vitest';
import { captureTrajectory, TrainableModel } from '../../src/index.ts';
import { startScriptedBackend } from '../scripted-backend.ts';

const chatTemplate = readFileSync(new URL('../fixtures/templates/thinking.jinja', import.meta.url), 'utf8');

test('the next prompt repeats every sampled id, thinking too, and the rollout is one history', async () => {
  await using server = await startScriptedBackend(() => '<think>\nI think.\n</think>\n\nYes.');
  const model = new TrainableModel({
    name: 'thinker',
    project: 'tests',
    baseModel: server.model.baseModel,
    chatTemplate,
  });
  await model.register(server.backend);
  const client = model.openaiClient();
  const { trajectory } = await captureTrajectory(async () => {
    const messages: { role: 'user' | 'assistant'; content: string }[] = [];
    for (const content of ['One?', 'Two?', 'Three?']) {
      messages.push({ role: 'user', content });
      const { choices } = await client.chat.completions.create({ model: 'thinker', messages });
      // Most frameworks send the text back, and nothing else.
      messages.push({ role: 'assistant', content: choices[0]?.message.content ?? '' });
    }
  });
  expect(trajectory.additionalHistories).toEqual([]);
  expect(trajectory.allChoices().map(({ message }) => [message.reasoning_content, message.content])).toEqual(
    Array(3).fill([expect.stringContaining('I think.'), 'Yes.']),
  );
  const requests = server.engines.at(-1)?.requests.map(({ promptIds }) => promptIds) ?? [];
  for (const [index, prompt] of requests.entries()) {
    expect(requests[index + 1]?.slice(0, prompt.length) ?? prompt).toEqual(prompt);
  }
  expect(requests).toHaveLength(3);
});
