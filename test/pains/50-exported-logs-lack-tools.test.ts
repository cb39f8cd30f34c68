/** Symptom: logs that were exported had lost the tools and all histories but the first. Here a tracker gets both, and no number vanishes in silence. */
import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, onTestFinished, test } from 'vitest';
import { Model, Trajectory, TrajectoryGroup } from '../../src/index.ts';
import { jsonlTracker } from '../../src/trackers/index.ts';

const search = { type: 'function', function: { name: 'search', parameters: { type: 'object' } } };
const user = (content: string) => ({ role: 'user', content }) as const;

test('tools, additional histories and values that are not finite arrive', async () => {
  const directory = await mkdtemp(join(tmpdir(), 'art-pain-50-'));
  onTestFinished(() => rm(directory, { recursive: true }));
  const model = new Model({
    name: 'baseline',
    project: 'pains',
    inferenceBaseURL: 'http://127.0.0.1:9/v1',
    inferenceApiKey: 'k',
    trackers: [jsonlTracker({ directory, texts: true })],
  });
  const trajectory = new Trajectory({
    messagesAndChoices: [user('Find it.')],
    tools: [search],
    additionalHistories: [{ messagesAndChoices: [user('You are a sub-agent.')], tools: [search, search] }],
    reward: 1,
  });
  model.log([new TrajectoryGroup([trajectory])], { metrics: { perplexity: Number.POSITIVE_INFINITY } });
  await model.trackers.close();

  const read = async (file: string) => JSON.parse(await readFile(join(directory, 'pains', 'baseline', file), 'utf8'));
  const { trajectories } = await read('trajectories.jsonl');
  expect(trajectories[0].texts.histories).toEqual([
    { messages: [{ isSampled: false, policyStep: null, message: user('Find it.') }], tools: [search] },
    {
      messages: [{ isSampled: false, policyStep: null, message: user('You are a sub-agent.') }],
      tools: [search, search],
    },
  ]);
  expect(await read('metrics.jsonl')).toMatchObject({ 'val/reward': 1, 'val/perplexity': 'Infinity' });
});
