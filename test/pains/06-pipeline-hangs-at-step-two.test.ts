/** Pains 6 and 51: the pipeline hung at step 2, and ran on one backend only. Here it runs on any: through the real engine, for many steps. */
import { join } from 'node:path';
import { expect, test } from 'vitest';
import {
  type ChatChoice,
  createGroupRollout,
  LocalBackend,
  PipelineTrainer,
  RemoteBackend,
  TrainableModel,
  Trajectory,
} from '../../src/index.ts';
import { createTinyModelFolder } from '../tiny-model-folder.ts';

test('25 steps on the embedded engine over HTTP, with evaluations on pinned steps beside them', async () => {
  const tiny = await createTinyModelFolder();
  const engine = { trainThreads: 1, cacheTokens: 8192, servedPolicies: 4 };
  const local = new LocalBackend({ path: join(tiny.folder, 'runs'), engine });
  try {
    const backend = new RemoteBackend({ baseURL: await local.url() });
    const model = new TrainableModel({ name: 'a', project: 'p', baseModel: tiny.modelDirectory });
    await model.register(backend);
    const ask = async (modelName: string, seed: number, signal: AbortSignal): Promise<ChatChoice> => {
      const messages = [{ role: 'user' as const, content: 'yes' }];
      const body = { model: modelName, messages, max_tokens: 3, seed };
      return (await model.openaiClient().chat.completions.create(body, { signal })).choices[0] as ChatChoice;
    };
    const play = async (modelName: string, seed: number, reward: number, signal: AbortSignal): Promise<Trajectory> => {
      const first = await ask(modelName, seed, signal);
      const second = await ask(modelName, seed + 1, signal);
      return new Trajectory({ messagesAndChoices: [{ role: 'user', content: 'yes' }, first, second], reward });
    };
    const evaluated: unknown[] = [];
    const warnings: string[] = [];
    const result = await new PipelineTrainer({
      ...{ model, scenarios: ['a', 'b', 'c'], untilStep: 25, minBatchSize: 2, evaluateEvery: 10, servedPolicies: 4 },
      trainOptions: { learningRate: 1e-4 },
      onWarning: (message) => warnings.push(message),
      rollout: createGroupRollout<string>(
        (_scenario, { seed, member, signal }) => play(model.getInferenceName(), seed, member, signal),
        { groupSize: 2 },
      ),
      evaluate: async ({ step, modelName, signal }) => {
        const trajectory = await play(modelName, 1, 1, signal);
        evaluated.push([step, trajectory.allChoices().map(({ art }) => art?.policy_step)]);
        return [trajectory];
      },
    }).run();
    expect(warnings).toEqual([]);
    expect(result).toMatchObject({ step: 25, reason: 'untilStep', evaluations: 4 });
    expect(evaluated).toEqual([0, 10, 20, 25].map((step) => [step, [step, step]]));
    const rows = (await backend.history(model)).filter((row) => 'offpolicy/group_age_steps_max' in row);
    expect(rows.map(({ step }) => step)).toEqual(Array.from({ length: 25 }, (_, index) => index + 1));
    for (const row of rows) expect(Number(row['offpolicy/group_age_steps_max'])).toBeLessThanOrEqual(2);
  } finally {
    await local.close();
    await tiny.remove();
  }
}, 180_000);
