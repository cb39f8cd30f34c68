import { describe, expect, expectTypeOf, test } from 'vitest';
import { z } from 'zod';
import {
  applyReward,
  ConfigError,
  clipReward,
  costReward,
  DataError,
  exactMatch,
  formatCheck,
  fuzzyMatch,
  jsonSchemaReward,
  latencyReward,
  lengthPenalty,
  perTurn,
  type Reward,
  type SyncReward,
  Trajectory,
  TrajectoryGroup,
  toolCallAccuracy,
  weightedSum,
} from '../index.ts';

const turn = (content: string | null, calls: readonly { name: string; arguments: string }[] = []) => ({
  index: 0,
  finish_reason: 'stop',
  message: {
    role: 'assistant',
    content,
    ...(calls.length > 0 && {
      tool_calls: calls.map((call, at) => ({ id: `${at}`, type: 'function', function: call })),
    }),
  },
});
const said = (...texts: string[]): Trajectory =>
  new Trajectory({ messagesAndChoices: texts.map((text) => turn(text)) });
const called = (...calls: [name: string, args: string][]): Trajectory =>
  new Trajectory({
    messagesAndChoices: [
      turn(
        null,
        calls.map(([name, args]) => ({ name, arguments: args })),
      ),
    ],
  });

describe('texts', () => {
  test.each([
    [exactMatch(' yes '), 'yes', 1],
    [exactMatch('yes'), 'Yes', 0],
    [exactMatch('yes  please', { normalize: 'loose' }), ' Yes please', 1],
    [exactMatch(['ja', 'yes']), 'yes', 1],
    [exactMatch('yes', { normalize: 'none' }), 'yes ', 0],
    [fuzzyMatch('kitten'), 'sitting', 1 - 3 / 7],
    [fuzzyMatch('abc'), 'xyz', 0],
    [fuzzyMatch(''), '', 1],
    [fuzzyMatch(['a', 'ab']), 'ab', 1],
    [fuzzyMatch('a', { maxCharacters: 3 }), 'aaaa', 0],
    [formatCheck(/^<b>.*<\/b>$/), '<b>x</b>', 1],
    [formatCheck((text) => text.length > 3), 'abc', 0],
    [jsonSchemaReward(z.strictObject({ a: z.number() })), '{"a": 1}', 1],
    [jsonSchemaReward({ type: 'object', required: ['a'], properties: { a: { type: 'number' } } }), '{"a": "1"}', 0],
    [jsonSchemaReward(z.object({ a: z.number() }), { partial: 0.25 }), '```json\n{"a": null}\n```', 0.25],
    [jsonSchemaReward(z.number()), 'not json', 0],
  ])('%# gives what is said', (reward: SyncReward, text, expected) => {
    expect(reward(said('first', text), undefined)).toBeCloseTo(expected as number, 12);
  });

  test('a form is checked in all turns, and a regular expression with state in the same way each time', () => {
    const reward = formatCheck(/ok/g, { turns: 'all' });
    expect([1, 2, 3].map(() => reward(said('ok', 'ok', 'no', 'ok'), undefined))).toEqual([0.75, 0.75, 0.75]);
  });

  test('what is expected may come from the scenario', () => {
    const reward = exactMatch((scenario: { readonly answer: string }) => scenario.answer);
    expect(reward(said('4'), { answer: '4' })).toBe(1);
    expect(reward(said('4'), { answer: '5' })).toBe(0);
    expectTypeOf(reward).toExtend<Reward<{ readonly answer: string }>>();
  });
});

describe('tool calls', () => {
  const expected = [{ name: 'get', arguments: { a: 1, b: [2] } }, { name: 'stop' }];
  test.each([
    [called(['get', '{"b":[2],"a":1}'], ['stop', '{}']), 1, 1, 1],
    [called(['stop', ''], ['get', '{"a":1.0,"b":[2]}']), 1, 1, 1],
    [called(['get', '{"a":1,"b":[3]}'], ['stop', '{}']), 0.5, 0.5, 0.5],
    [called(['get', '{"a":1,"b":[2]}']), 2 / 3, 1, 0.5],
    [called(['get', '{"a":1,"b":[2]}'], ['get', '{"a":1,"b":[2]}']), 0.5, 0.5, 0.5],
    [called(['get', '{broken']), 0, 0, 0],
    [said('no calls'), 0, 1, 0],
  ])('%# F1, precision and recall', (trajectory, reward, precision, recall) => {
    const result = toolCallAccuracy(expected)(trajectory, undefined);
    expect(result).toEqual({
      reward: expect.closeTo(reward, 12),
      metrics: { tool_call_precision: precision, tool_call_recall: recall },
    });
  });

  test('none made and none expected is right; order counts where it is asked for', () => {
    expect(toolCallAccuracy([])(said('x'), undefined)).toMatchObject({ reward: 1 });
    const strict = toolCallAccuracy([{ name: 'a' }, { name: 'b' }, { name: 'c' }], { order: 'strict' });
    expect(strict(called(['a', '{}'], ['c', '{}'], ['b', '{}']), undefined)).toMatchObject({ reward: 2 / 3 });
  });

  test('an expected call with any arguments leaves the match of a specific one alone', () => {
    const reward = toolCallAccuracy([{ name: 'get' }, { name: 'get', arguments: { a: 1 } }]);
    expect(reward(called(['get', '{"a":1}'], ['get', '{"a":2}']), undefined)).toMatchObject({ reward: 1 });
  });
});

describe('budgets', () => {
  test.each([
    [5, 0],
    [10, 0],
    [15, -0.5],
    [20, -1],
    [99, -1],
  ])('a length of %d is worth %d', (length, expected) => {
    const reward = lengthPenalty({ target: 10, limit: 20 });
    expect(reward(said('x'.repeat(length - 1), 'y'), undefined)).toBe(expected);
  });

  test('time and money come from metrics, and a missing one is an error that names it', () => {
    const trajectory = new Trajectory({ metrics: { duration: 3, prompt_tokens: 1000, completion_tokens: 500 } });
    expect(latencyReward({ target: 2, limit: 4 })(trajectory, undefined)).toBe(0.5);
    const prices = { promptPerMillion: 1000, completionPerMillion: 2000 };
    expect(costReward({ target: 1, limit: 3, prices })(trajectory, undefined)).toEqual({
      reward: 0.5,
      metrics: { cost: 2 },
    });
    expect(() => latencyReward({ target: 2, limit: 4 })(new Trajectory(), undefined)).toThrow(
      'latencyReward: the trajectory must have the metric duration, got undefined',
    );
    expect(() => latencyReward({ target: 4, limit: 4 })).toThrow(ConfigError);
  });
});

describe('sums', () => {
  test('weigh their parts, and show each as a metric', () => {
    const reward = weightedSum({ right: [2, exactMatch('yes')], brief: [0.5, lengthPenalty({ target: 1, limit: 3 })] });
    expectTypeOf(reward).toEqualTypeOf<SyncReward<unknown>>();
    expect(reward(said('yes'), undefined)).toEqual({ reward: 1.5, metrics: { 'reward/right': 1, 'reward/brief': -1 } });
  });

  test('wait for a part that waits', async () => {
    const slow: Reward = async () => ({ reward: 3, metrics: { checked: true } });
    const reward = weightedSum({ slow: [2, slow], fast: [1, () => 1] });
    await expect(reward(said('x'), undefined)).resolves.toEqual({
      reward: 7,
      metrics: { 'reward/slow': 3, 'reward/fast': 1, checked: true },
    });
    await expect(clipReward(reward, { max: 5 })(said('x'), undefined)).resolves.toMatchObject({
      reward: 5,
      metrics: { reward_clipped: true },
    });
  });

  test('inside sums keep their names apart', () => {
    const inner = weightedSum({ a: [1, () => 1] });
    expect(weightedSum({ x: [1, inner], y: [2, inner] })(said('x'), undefined)).toEqual({
      reward: 3,
      metrics: { 'reward/x': 1, 'reward/x/a': 1, 'reward/y': 1, 'reward/y/a': 1 },
    });
    const twice = (): { reward: number; metrics: { m: number } } => ({ reward: 0, metrics: { m: 1 } });
    expect(() => weightedSum({ x: [1, twice], y: [1, twice] })(said('x'), undefined)).toThrow(
      'weightedSum: metric m must come from one part, got another of y',
    );
  });

  test.each([Number.NaN, Number.POSITIVE_INFINITY, undefined as never, '1' as never])(
    'name the part that gives %s',
    (value) => {
      const reward = weightedSum({ fine: [1, () => 1], odd: [1, () => value] });
      expect(() => reward(said('x'), undefined)).toThrow(DataError);
      expect(() => reward(said('x'), undefined)).toThrow(/^reward odd: must be a finite number, got /);
    },
  );
});

describe('applyReward', () => {
  test('writes reward, metrics and turn rewards into every trajectory of a group', async () => {
    const group = new TrajectoryGroup([said('yes', 'no'), said('no')], { metrics: { g: 1 } });
    const reward = weightedSum({
      outcome: [1, exactMatch('no')],
      turns: [0.5, perTurn((choice) => (choice.message.content === 'yes' ? 1 : -1))],
    });
    expect(await applyReward(group, reward)).toBe(group);
    expect(group.trajectories.map(({ reward, turnRewards }) => ({ reward, turnRewards }))).toEqual([
      { reward: 1, turnRewards: [0.5, -0.5] },
      { reward: 1, turnRewards: [-0.5] },
    ]);
    expect(group.trajectories[1]?.metrics).toEqual({ 'reward/outcome': 1, 'reward/turns': 0, turn_reward: -1 });
  });

  test('refuses what is not finite, and turn rewards that are too few', async () => {
    await expect(applyReward(said('x'), () => Number.NaN)).rejects.toThrow('reward: must be a finite number, got NaN');
    await expect(applyReward(said('x', 'y'), () => ({ reward: 1, turnRewards: [1] }))).rejects.toThrow(
      'reward: turnRewards must be 2 finite numbers, got 1',
    );
  });

  test('takes the scenario that the reward needs', async () => {
    const reward = exactMatch((scenario: { readonly answer: string }) => scenario.answer);
    const trajectory = await applyReward(said('4'), reward, { answer: '4' });
    expect(trajectory.reward).toBe(1);
    // @ts-expect-error the scenario is missing
    await expect(applyReward(said('4'), reward)).rejects.toThrow(TypeError);
  });
});

test('a misspelt option is refused by name: it would change what is trained in silence', () => {
  const odd = { maxCharacter: 5 } as object;
  const limits = { target: 1, limit: 2, metric: 'completion_tokens' };
  const makers = [
    () => exactMatch('x', odd),
    () => fuzzyMatch('x', odd),
    () => formatCheck(/x/, odd),
    () => jsonSchemaReward({}, odd),
    () => toolCallAccuracy([], odd),
    () => clipReward(exactMatch('x'), odd),
    () => lengthPenalty(limits),
    () => latencyReward(limits),
    () => costReward({ ...limits, measure: 'characters' }),
  ];
  for (const make of makers) expect(make).toThrow(/: known options are .*; got (maxCharacter|metric)$/);
});
