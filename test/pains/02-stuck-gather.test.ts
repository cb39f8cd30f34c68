/** Pains 2 and 4: stuck in "gather" behind a server that had died. Here a dead engine fails rollouts at once, and the error names it. */
import { join } from 'node:path';
import { expect, test } from 'vitest';
import {
  type ChatChoice,
  gatherTrajectoryGroups,
  LocalBackend,
  RolloutError,
  TrainableModel,
  Trajectory,
  trajectoryGroup,
} from '../../src/index.ts';
import { childPids } from '../child-processes.ts';
import { createTinyModelFolder } from '../tiny-model-folder.ts';

test('an engine that dies during a gather, and cannot be started again, ends the gather within seconds', async () => {
  const tiny = await createTinyModelFolder({ maxPositions: 2048 });
  const before = childPids(process.pid);
  const backend = new LocalBackend({
    path: join(tiny.folder, 'runs'),
    engine: { trainThreads: 1, cacheTokens: 16_384 },
    engineRestart: { maxQuickDeaths: 1, quickDeathMs: 600_000, requestWaitMs: 1000 },
    onWarning: () => {},
  });
  try {
    const model = new TrainableModel({ name: 'a', project: 'p', baseModel: tiny.modelDirectory });
    await model.register(backend);
    const engines = childPids(process.pid).filter((pid) => !before.includes(pid));
    const messages = [{ role: 'user' as const, content: 'yes' }];
    const rollout = async ({ signal }: { signal: AbortSignal }): Promise<Trajectory> => {
      const body = { model: model.getInferenceName(), messages, max_tokens: 1900 };
      const { choices } = await model.openaiClient().chat.completions.create(body, { signal });
      return new Trajectory({ messagesAndChoices: [...messages, choices[0] as ChatChoice] });
    };
    const startedAt = performance.now();
    setTimeout(() => {
      for (const pid of engines) process.kill(pid, 'SIGKILL');
    }, 200);
    const gather = gatherTrajectoryGroups([trajectoryGroup([rollout, rollout, rollout, rollout])]);
    const error = await gather.catch((reason: unknown) => reason);
    expect(error).toBeInstanceOf(RolloutError);
    expect((error as RolloutError).message).toMatch(/rollout \d of group 0 failed with .*engine/);
    expect(performance.now() - startedAt).toBeLessThan(45_000);
  } finally {
    await backend.close();
    await tiny.remove();
  }
});
