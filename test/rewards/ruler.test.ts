/** RULER against a judge that behaves: what is sent, what comes back, what is counted. */
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, describe, expect, test } from 'vitest';
import {
  ConfigError,
  createJudge,
  DataError,
  JudgeHealth,
  ruler,
  rulerScoreGroup,
  Trajectory,
  TrajectoryGroup,
} from '../../src/index.ts';
import { goodAnswer, type JudgeCall, type ScriptedJudge, startScriptedJudge } from './scripted-judge.ts';

const folders: string[] = [];
afterEach(() => {
  for (const folder of folders.splice(0)) rmSync(folder, { recursive: true });
});

const question = { role: 'user', content: 'Is it wet?' } as const;
const answers = ['yes 0.9', 'no 0.2', 'maybe 0.5'];
const lists = answers.map((content) => [question, { role: 'assistant' as const, content }]);

/** The number that a trajectory says of itself. */
const scoreOf = (text: string): number => Number(/ (0\.\d+)"/.exec(text)?.[1]);
const wellBehaved = (): Promise<ScriptedJudge> => startScriptedJudge((call) => ({ text: goodAnswer(call, scoreOf) }));
const judgeAt = ({ baseURL }: ScriptedJudge) => createJudge({ model: 'judge', baseURL, apiKey: 'key' });
const scoresOf = (scores: readonly { readonly score: number }[]): number[] => scores.map(({ score }) => score);

test('scores come back in the order of the input, with ids from 1 and explanations', async () => {
  const server = await wellBehaved();
  const scores = await ruler(lists, { judgeModel: judgeAt(server), cache: false });
  expect(scoresOf(scores)).toEqual([0.9, 0.2, 0.5]);
  expect(scores.map(({ trajectoryId }) => trajectoryId)).toEqual(['1', '2', '3']);
  for (const { explanation } of scores) expect(explanation).toMatch(/^about trajectory_[123]$/);
});

test('what all begin with is sent once, trajectories are numbered, tools are shown', async () => {
  const server = await wellBehaved();
  const tools = [{ type: 'function', function: { name: 'look_outside' } }];
  await ruler(lists, { judgeModel: judgeAt(server), tools, cache: false });
  const { user } = server.calls[0] as JudgeCall;
  expect(user.match(/Is it wet\?/g)).toHaveLength(1);
  expect(user).toContain(`<context>\n${JSON.stringify([question])}\n</context>`);
  expect(user.match(/<trajectory id="[123]">/g)).toEqual([
    '<trajectory id="1">',
    '<trajectory id="2">',
    '<trajectory id="3">',
  ]);
  expect(user.match(/look_outside/g)).toHaveLength(1);
  expect(user).toContain('<available_tools>');
});

test('a schema with exactly these trajectories, temperature 0 and the rubric are sent', async () => {
  const server = await wellBehaved();
  await ruler(lists, {
    judgeModel: judgeAt(server),
    rubric: 'Short is good.',
    extraBody: { top_p: 0.5 },
    cache: false,
  });
  const { body, system } = server.calls[0] as JudgeCall;
  expect(body).toMatchObject({ model: 'judge', temperature: 0, max_tokens: 4096, top_p: 0.5 });
  expect(system).toContain('Short is good.');
  const { schema, strict } = (
    body.response_format as { json_schema: { schema: Record<string, unknown>; strict: boolean } }
  ).json_schema;
  expect(strict).toBe(true);
  expect(schema.required).toEqual(['trajectory_1', 'trajectory_2', 'trajectory_3']);
  expect(schema).toHaveProperty('properties.trajectory_2.properties.score', { type: 'number', minimum: 0, maximum: 1 });
});

test('the order is shuffled by the seed, and does not depend on the order of the input', async () => {
  const server = await wellBehaved();
  const many = Array.from({ length: 6 }, (_, index) => [
    question,
    { role: 'assistant' as const, content: `say 0.${index + 1}` },
  ]);
  const options = { judgeModel: judgeAt(server), cache: false } as const;
  const users: string[] = [];
  for (const [list, seed] of [
    [many, 1],
    [many, 1],
    [many.toReversed(), 1],
    [many, 2],
  ] as const) {
    const scores = await ruler(list, { ...options, seed });
    expect(scoresOf(scores)).toEqual(list.map((entry) => scoreOf(JSON.stringify(entry))));
    users.push((server.calls.at(-1) as JudgeCall).user);
  }
  expect(users[1]).toBe(users[0]);
  expect(users[2]).toBe(users[0]);
  expect(users[3]).not.toBe(users[0]);
});

test('identical trajectories are scored once, whatever the ids of their tool calls', async () => {
  const server = await wellBehaved();
  const withCall = (id: string) => [
    question,
    {
      role: 'assistant' as const,
      content: 'look 0.7',
      tool_calls: [{ id, type: 'function', function: { name: 'look' } }],
    },
    { role: 'tool' as const, tool_call_id: id, content: 'rain' },
  ];
  const health = new JudgeHealth();
  const scores = await ruler([withCall('a1'), withCall('b2'), lists[1] as (typeof lists)[1]], {
    judgeModel: judgeAt(server),
    cache: false,
    health,
  });
  expect(scoresOf(scores)).toEqual([0.7, 0.7, 0.2]);
  expect((server.calls[0] as JudgeCall).shown.size).toBe(2);
  expect(health.report().repeatedTrajectories).toBe(1);
});

test('where all are identical one whole copy is sent', async () => {
  const server = await wellBehaved();
  const scores = await ruler([lists[0] ?? [], lists[0] ?? []], { judgeModel: judgeAt(server), cache: false });
  expect(scoresOf(scores)).toEqual([0.9, 0.9]);
  expect((server.calls[0] as JudgeCall).shown.get('trajectory_1')).toContain('Is it wet?');
});

test('additional histories, ground truth and the state of the environment are shown', async () => {
  const server = await wellBehaved();
  const trajectories = answers.map(
    (content, index) =>
      new Trajectory({
        messagesAndChoices: [question, { role: 'assistant', content }],
        additionalHistories: [
          { messagesAndChoices: [{ role: 'user', content: `sub-agent ${index}` }], tools: [{ name: `tool ${index}` }] },
        ],
      }),
  );
  await ruler(trajectories, {
    judgeModel: judgeAt(server),
    groundTruth: { rain: true },
    environmentState: (_trajectory, index) => `ticket ${index} closed`,
    cache: false,
  });
  const { user, shown } = server.calls[0] as JudgeCall;
  for (const index of [0, 1, 2]) {
    const text = [...shown.values()].find((candidate) => candidate.includes(`sub-agent ${index}`));
    expect(text).toContain(`"environment_state":"ticket ${index} closed"`);
    expect(text).toContain(`"tool ${index}"`);
  }
  expect(user).toContain('<ground_truth>\n{"rain":true}\n</ground_truth>');
});

describe('rulerScoreGroup', () => {
  const group = (): TrajectoryGroup =>
    new TrajectoryGroup(
      answers.map(
        (content, index) =>
          new Trajectory({
            messagesAndChoices: [question, { role: 'assistant', content }],
            reward: index,
            metrics: { win: 1 },
          }),
      ),
      { metadata: { scenario: 's' }, exceptions: [{ type: 'Error', message: 'one failed' }] },
    );

  test('gives a new group: reward, metrics, explanation; the old one stays', async () => {
    const server = await wellBehaved();
    const before = group();
    const scored = await rulerScoreGroup(before, judgeAt(server), { cache: false });
    expect(scored.trajectories.map(({ reward }) => reward)).toEqual([0.9, 0.2, 0.5]);
    expect(scored.trajectories[1]?.metrics).toEqual({ win: 1, independent_reward: 1, ruler_score: 0.2 });
    expect(scored.trajectories[1]?.logs[0]).toMatch(/^RULER: about trajectory_\d$/);
    expect(scored).toMatchObject({ metadata: { scenario: 's' }, exceptions: before.exceptions });
    expect(scored.metrics).toMatchObject({ ruler_calls: 1, ruler_reasks: 0, ruler_prompt_tokens: 1000 });
    expect(before.trajectories.map(({ reward, metrics, logs }) => [reward, metrics, logs.length])).toEqual(
      [0, 1, 2].map((reward) => [reward, { win: 1 }, 0]),
    );
  });

  test('a judge that fails is a JudgeError with the counts, or null', async () => {
    const server = await startScriptedJudge(() => ({ text: 'no' }));
    const health = new JudgeHealth();
    const options = { cache: false, maxReasks: 1, health } as const;
    await expect(rulerScoreGroup(group(), judgeAt(server), options)).rejects.toMatchObject({
      code: 'judge_error',
      details: { problems: { invalid_json: 2 }, reasks: 1, missing: ['trajectory_1', 'trajectory_2', 'trajectory_3'] },
    });
    await expect(
      rulerScoreGroup(group(), judgeAt(server), { ...options, swallowExceptions: true }),
    ).resolves.toBeNull();
    expect(health.report()).toMatchObject({
      groups: 2,
      failedGroups: 2,
      calls: 4,
      reasks: 2,
      problems: { invalid_json: 4 },
    });
  });

  test('an empty group asks nobody', async () => {
    const server = await wellBehaved();
    expect((await rulerScoreGroup(new TrajectoryGroup([]), judgeAt(server))).length).toBe(0);
    expect(server.calls).toHaveLength(0);
  });
});

describe('repeats', () => {
  test('the mean of the orders is the score, and their agreement is reported', async () => {
    // Prefers what stands first, beside what it should see.
    const server = await startScriptedJudge((call) => {
      const bonus = (text: string): number => ([...call.shown.values()][0] === text ? 0.1 : 0);
      return { text: goodAnswer(call, (text) => scoreOf(text) + bonus(text)) };
    });
    const health = new JudgeHealth();
    const scores = await ruler(lists, { judgeModel: judgeAt(server), repeats: 4, seed: 3, cache: false, health });
    expect(server.calls).toHaveLength(4);
    expect(new Set(server.calls.map(({ user }) => user)).size).toBeGreaterThan(1);
    expect(scoresOf(scores).reduce((sum, score) => sum + score, 0)).toBeCloseTo(1.6 + 0.1, 10);
    expect(health.report().agreement?.kendallTau).toBe(1);
    expect(health.report().agreement?.meanAbsoluteDifference).toBeGreaterThan(0);
  });

  test('one that fails leaves the others', async () => {
    const server = await startScriptedJudge((call) =>
      call.index % 2 === 0 ? { text: 'no' } : { text: goodAnswer(call, scoreOf) },
    );
    const health = new JudgeHealth();
    const scores = await ruler(lists, { judgeModel: judgeAt(server), repeats: 2, maxReasks: 0, cache: false, health });
    expect(scoresOf(scores)).toEqual([0.9, 0.2, 0.5]);
    expect(health.report()).toMatchObject({ groups: 1, failedGroups: 0, failedRepeats: 1 });
  });
});

describe('the cache', () => {
  const temporary = (): string => {
    const folder = mkdtempSync(join(tmpdir(), 'art-judge-'));
    folders.push(folder);
    return folder;
  };

  test('the same trajectories in another order are not asked for again; another rubric is', async () => {
    const server = await wellBehaved();
    const [judgeModel, cache, health] = [judgeAt(server), temporary(), new JudgeHealth()];
    await ruler(lists, { judgeModel, cache, health });
    const scores = await ruler(lists.toReversed(), { judgeModel, cache, health });
    expect(scoresOf(scores)).toEqual([0.5, 0.2, 0.9]);
    expect(server.calls).toHaveLength(1);
    await ruler(lists, { judgeModel, cache, health, rubric: 'other' });
    expect(server.calls).toHaveLength(2);
    expect(health.report()).toMatchObject({ cacheHits: 1, cacheMisses: 2, calls: 2 });
    expect(readdirSync(cache).every((name) => /^[0-9a-f]{64}\.json$/.test(name))).toBe(true);
  });

  test.each([
    ['cut short', (text: string) => text.slice(0, -10)],
    ['with another score', (text: string) => text.replace('"score":0.9', '"score":0.1')],
    ['empty', () => ''],
  ])('an entry that is %s is a miss, and is written anew', async (_what, damage) => {
    const server = await wellBehaved();
    const [judgeModel, cache] = [judgeAt(server), temporary()];
    await ruler(lists, { judgeModel, cache });
    const path = join(cache, readdirSync(cache)[0] as string);
    writeFileSync(path, damage(readFileSync(path, 'utf8')));
    for (let time = 0; time < 2; time++)
      expect(scoresOf(await ruler(lists, { judgeModel, cache }))).toEqual([0.9, 0.2, 0.5]);
    expect(server.calls).toHaveLength(2);
  });

  test('a folder that cannot be written fails nothing', async () => {
    const server = await wellBehaved();
    const file = join(temporary(), 'file');
    writeFileSync(file, '');
    const health = new JudgeHealth();
    await ruler(lists, { judgeModel: judgeAt(server), cache: join(file, 'folder'), health });
    expect(health.report().cacheErrors).toBe(1);
  });
});

describe('long trajectories', () => {
  const long = lists.map((list) => [...list, { role: 'tool' as const, content: `start ${'x'.repeat(5000)} end` }]);

  test('are refused by default, with place, limit and size', async () => {
    const server = await wellBehaved();
    const judging = ruler(long, { judgeModel: judgeAt(server), maxCharacters: 2000, cache: false });
    await expect(judging).rejects.toThrow(DataError);
    await expect(judging).rejects.toThrow(/trajectory [123] must have at most 2000 characters.*got 5\d\d\d/);
    expect(server.calls).toHaveLength(0);
  });

  test('may lose their middle, which is said and counted', async () => {
    const server = await wellBehaved();
    const health = new JudgeHealth();
    await ruler(long, { judgeModel: judgeAt(server), maxCharacters: 2000, onTooLong: 'elide', cache: false, health });
    const { shown } = server.calls[0] as JudgeCall;
    for (const text of shown.values()) {
      expect(text).toMatch(/start x+ \[… \d+ characters left out …\] x+ end/);
      expect(text.length).toBeLessThan(2100);
    }
    expect(health.report()).toMatchObject({ elidedHistories: 3 });
    expect(health.report().elidedCharacters).toBeGreaterThan(3 * 3000);
  });

  test('of many short messages lose those in the middle', async () => {
    const server = await wellBehaved();
    const many = lists.map((list) => [
      ...list,
      ...Array.from({ length: 200 }, (_, index) => ({ role: 'user' as const, content: `turn ${index}` })),
    ]);
    await ruler(many, { judgeModel: judgeAt(server), maxCharacters: 2000, onTooLong: 'elide', cache: false });
    const text = (server.calls[0] as JudgeCall).shown.get('trajectory_1');
    expect(text).toContain('turn 199');
    expect(text).toContain('turn 0');
    expect(text).toMatch(/"left_out":"\d+ messages"/);
  });
});

test('unknown and senseless options are refused by name', async () => {
  const judgeModel = createJudge({ model: 'judge', baseURL: 'http://127.0.0.1:9/v1' });
  await expect(ruler(lists, { judgeModel, rubrik: '' } as never)).rejects.toThrow(
    /^ruler: known options are .*got rubrik$/,
  );
  await expect(ruler(lists, { judgeModel, repeats: 0 })).rejects.toThrow(
    'ruler: repeats must be an integer from 1, got 0',
  );
  await expect(ruler(lists, { judgeModel, maxCharacters: 10 })).rejects.toThrow(ConfigError);
});
