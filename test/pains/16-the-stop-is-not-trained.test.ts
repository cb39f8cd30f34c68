/** ART PR #924: a sampled reply lost its closing token, or its markup was trained twice. Here it reaches through the token that ended it. */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { loadTokenizer } from '../../src/formats/tokenizer.ts';
import { captureTrajectory, TrajectoryGroup } from '../../src/index.ts';
import { startRepeatingServer } from '../repeating-agent.ts';

test('each turn is stored and trained with its end of turn, once, however often later prompts repeat it', async () => {
  await using server = await startRepeatingServer();
  const { model, backend } = server;
  const rollouts = [1, 0].map(async (reward) => {
    const { trajectory } = await captureTrajectory(() => server.talk('go', 3));
    trajectory.reward = reward;
    return trajectory;
  });
  const group = new TrajectoryGroup(await Promise.all(rollouts));
  const { metrics } = await backend.train(model, [group]);
  const { directory } = await backend.getState(model);
  const tokenizer = await loadTokenizer(model.baseModel);
  const lines = readFileSync(join(directory, 'trajectories', 'train', '0001.jsonl'), 'utf8')
    .trim()
    .split('\n');
  const turns = lines
    .flatMap((line) => JSON.parse(line).entries ?? [])
    .flatMap(({ tokens }) => (tokens === undefined ? [] : [tokens.token_ids as number[]]));
  expect(turns).toHaveLength(6);
  for (const ids of turns) {
    expect(ids.filter((id) => id === tokenizer.eosId)).toEqual([ids.at(-1)]);
  }
  expect(metrics['data/step_trainable_assistant_tokens']).toBe(turns.flat().length);
});
