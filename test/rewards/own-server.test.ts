/** RULER with a judge that our own server serves: a random model whose answers are held to the schema while they are sampled. */
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import {
  captureTrajectory,
  createJudge,
  JudgeHealth,
  type JudgeModel,
  LocalBackend,
  ruler,
  rulerScoreGroup,
  TrainableModel,
  Trajectory,
  TrajectoryGroup,
} from '../../src/index.ts';
import { createTinyModelFolder, type TinyModelFolder } from '../tiny-model-folder.ts';

let folder: TinyModelFolder;
let backend: LocalBackend;
let judge: TrainableModel;
let url = '';

beforeAll(async () => {
  folder = await createTinyModelFolder({ maxPositions: 4096 });
  backend = new LocalBackend({ path: folder.folder, engine: { cacheTokens: 16_384 } });
  judge = new TrainableModel({ name: 'judge', project: 'test', baseModel: folder.modelDirectory });
  await judge.register(backend);
  url = new URL(judge.openaiClient().baseURL).origin;
});
afterAll(async () => {
  await backend.close();
  await folder.remove();
});

const lists = ['yes', 'no', 'yes no'].map((content) => [
  { role: 'user' as const, content: 'Say yes.' },
  { role: 'assistant' as const, content },
]);

test.each<[string, () => JudgeModel]>([
  ['a model object', () => judge],
  ['chat completions at an address', () => ({ model: 'judge', baseURL: `${url}/v1` })],
  ["Anthropic's messages", () => ({ model: 'judge@0', baseURL: url, protocol: 'messages' })],
])('%s: whole answers at the first call', async (_what, judgeModel) => {
  const health = new JudgeHealth();
  const options = { judgeModel: judgeModel(), explanations: false, maxTokens: 400, cache: false, health } as const;
  const scores = await ruler(lists, options);
  for (const { score } of scores) expect(score >= 0 && score <= 1, String(score)).toBe(true);
  expect(health.report()).toMatchObject({ calls: 1, reasks: 0, retries: 0, problems: {} });
  expect(health.report().promptTokens).toBeGreaterThan(500);
  // Temperature 0: the same again.
  expect(await ruler(lists, options)).toEqual(scores);
});

test('the address and the key of art/NAME come from the environment, and a group is scored', async () => {
  const before = process.env.ART_URL;
  process.env.ART_URL = url;
  try {
    const group = new TrajectoryGroup(lists.map((messagesAndChoices) => new Trajectory({ messagesAndChoices })));
    const options = { explanations: false, maxTokens: 400, cache: false } as const;
    const scored = await rulerScoreGroup(group, createJudge('art/judge'), options);
    expect(scored.trajectories.map(({ reward }) => reward)).toEqual(
      (await ruler(lists, { judgeModel: judge, ...options })).map(({ score }) => score),
    );
  } finally {
    if (before === undefined) delete process.env.ART_URL;
    else process.env.ART_URL = before;
  }
});

test('a judge that is asked inside of a captured agent is no turn of the policy', async () => {
  const { trajectory } = await captureTrajectory(async () => {
    const model = judge.getInferenceName();
    await judge
      .openaiClient()
      .chat.completions.create({ model, messages: [{ role: 'user', content: 'yes' }], max_tokens: 4 });
    return ruler(lists, { judgeModel: judge, explanations: false, maxTokens: 400, cache: false });
  });
  expect(trajectory.allChoices()).toHaveLength(1);
  expect(JSON.stringify(trajectory.messages())).not.toContain('You judge');
});

test('scores of a model that is trained are cached for its step, and not by its name alone', async () => {
  const cache = join(folder.folder, 'cache');
  process.env.ART_URL = url;
  const count = async (judgeModel: JudgeModel): Promise<number> => {
    const health = new JudgeHealth();
    for (let time = 0; time < 2; time++) {
      await ruler(lists, { judgeModel, explanations: false, maxTokens: 400, cache, health });
    }
    return health.report().calls;
  };
  try {
    // The model object at step 0 and `judge@0` are the same policy.
    expect([await count(judge), await count('art/judge@0'), await count('art/judge')]).toEqual([1, 0, 2]);
  } finally {
    delete process.env.ART_URL;
  }
});
