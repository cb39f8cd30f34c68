/** Symptom: trajectories reloaded from Parquet were empty, and branched ones were refused. Here what is read back is what was written. */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { type ChatChoice, Trajectory, TrajectoryGroup } from '../../src/index.ts';
import { readTrajectories, toRows, toTrajectoryGroups, writeTrajectories } from '../../src/parquet/index.ts';

const question = { role: 'user', content: 'Two or three?' } as const;
const answer = (content: string, id: string): ChatChoice => ({
  index: 0,
  finish_reason: 'stop',
  message: { role: 'assistant', content },
  art: { completion_id: id, policy_step: 4 },
});

test('histories, choices and rewards of each turn are there after a round trip', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'art-pain-17-'));
  try {
    // One question answered twice: the second answer branches off into a history of its own.
    const branched = new Trajectory({
      messagesAndChoices: [question, answer('two', 'chatcmpl-1')],
      additionalHistories: [{ messagesAndChoices: [question, answer('three', 'chatcmpl-2')] }],
      reward: 1,
      turnRewards: [0.25, 0.75],
    });
    const path = join(folder, 'trajectories.parquet');
    await writeTrajectories(
      path,
      toRows([new TrajectoryGroup([branched])], { model: 'agent', split: 'train', step: 4 }),
    );

    const reloaded = toTrajectoryGroups(await readTrajectories(path)).flatMap((group) => group.trajectories);
    expect(reloaded).toEqual([branched]);
    expect(reloaded[0]?.allChoices().map(({ art }) => art?.completion_id)).toEqual(['chatcmpl-1', 'chatcmpl-2']);
  } finally {
    rmSync(folder, { recursive: true });
  }
});
