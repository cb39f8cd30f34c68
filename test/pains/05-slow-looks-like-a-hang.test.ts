/** Pain 5: slow work looked like a hang. Here every train call tells its stage and how much of it is done. */
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { type ChatChoice, LocalBackend, TrainableModel, Trajectory, TrajectoryGroup } from '../../src/index.ts';
import { createTinyModelFolder } from '../tiny-model-folder.ts';

test('training reports stage by stage, and of the long one part by part', async () => {
  const tiny = await createTinyModelFolder();
  const backend = new LocalBackend({ path: join(tiny.folder, 'runs'), engine: { trainThreads: 1, cacheTokens: 4096 } });
  try {
    const model = new TrainableModel({ name: 'a', project: 'p', baseModel: tiny.modelDirectory });
    await model.register(backend);
    const messages = [{ role: 'user' as const, content: 'yes' }];
    const rollouts = Array.from({ length: 6 }, async (_, seed) => {
      const body = { model: model.getInferenceName(), messages, max_tokens: 4, seed };
      const { choices } = await model.openaiClient().chat.completions.create(body);
      return new Trajectory({ messagesAndChoices: [...messages, choices[0] as ChatChoice], reward: seed });
    });
    const seen: [string, number | undefined, number | undefined][] = [];
    const groups = [new TrajectoryGroup(await Promise.all(rollouts))];
    await backend.train(
      model,
      groups,
      { gradientSteps: 3 },
      {
        onProgress: ({ stage, done, total }) => seen.push([stage, done, total]),
      },
    );
    expect(new Set(seen.map(([stage]) => stage))).toEqual(
      new Set(['batch', 'train', 'publish', 'verify', 'checkpoint']),
    );
    expect(seen.filter(([stage, done]) => stage === 'train' && done !== 0)).toEqual([
      ['train', 1, 3],
      ['train', 2, 3],
      ['train', 3, 3],
    ]);
  } finally {
    await backend.close();
    await tiny.remove();
  }
});
