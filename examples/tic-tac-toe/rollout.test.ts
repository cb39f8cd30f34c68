import type OpenAI from 'openai';
import { expect, test } from 'vitest';
import type { ChatModel } from '../../src/index.ts';
import { evaluate } from './evaluate.ts';
import { emptyBoard, type OpponentName } from './game.ts';
import { parseMove, type RolloutOptions, rewards, rollout, type Scenario } from './rollout.ts';
import { randomGames } from './warm-up-data.ts';

type Request = OpenAI.ChatCompletionCreateParamsNonStreaming;

/** An agent that plays what `answer` says. */
function scriptedModel(answer: (request: Request) => string): ChatModel & { readonly requests: Request[] } {
  const requests: Request[] = [];
  const create = async (request: Request): Promise<unknown> => {
    requests.push(structuredClone(request));
    return {
      usage: { completion_tokens: 2 },
      choices: [{ index: 0, finish_reason: 'stop', message: { role: 'assistant', content: answer(request) } }],
    };
  };
  const client = { chat: { completions: { create } } } as unknown as OpenAI;
  return {
    name: 'scripted',
    project: 'test',
    requests,
    openaiClient: () => client,
    getInferenceName: () => 'scripted',
  };
}

const firstFree = (request: Request): string => String(request.messages.at(-1)?.content).match(/[1-9]/)?.[0] ?? '';
const scenario: Scenario = { side: 'X', seed: 1, opponent: 'random' };
const options: RolloutOptions = { temperature: 1, seed: 5 };

test('a move is exactly one digit of a free cell', () => {
  expect(parseMove(' 5\n', emptyBoard)).toBe(5);
  for (const text of ['', '0', '55', '5.', 'X', null]) expect(parseMove(text, emptyBoard)).toBeNull();
  expect(parseMove('1', 'X........')).toBeNull();
});

test('the conversation grows through the whole game, with a seed for every turn', async () => {
  const model = scriptedModel(firstFree);
  const trajectory = await rollout(model, scenario, options);
  expect(model.requests[0]?.messages).toEqual([
    { role: 'system', content: 'Tic-tac-toe. You play X. Answer with a free cell.' },
    { role: 'user', content: '123\n456\n789\nhot -' },
  ]);
  for (const [turn, request] of model.requests.entries()) {
    expect(request.messages).toHaveLength(2 + 2 * turn);
    expect(request.max_tokens).toBe(4);
  }
  expect(new Set(model.requests.map((request) => request.seed)).size).toBe(model.requests.length);
  expect(trajectory.metrics).toMatchObject({
    turns: model.requests.length,
    completion_tokens: 2 * model.requests.length,
  });
  expect(trajectory.metadata).toEqual(scenario);
});

test('the same replies give the same game; as O the opponent moves first', async () => {
  const play = async (side: 'X' | 'O'): Promise<unknown> =>
    (await rollout(scriptedModel(firstFree), { ...scenario, side }, options)).messagesAndChoices;
  expect(await play('X')).toEqual(await play('X'));
  const model = scriptedModel(firstFree);
  await rollout(model, { ...scenario, side: 'O' }, options);
  expect(model.requests[0]?.messages[1]?.content).toMatch(/^[^X]*X[^X]*\nhot -$/);
});

test('an illegal move ends the game as a loss with its own reward', async () => {
  const trajectory = await rollout(
    scriptedModel(() => 'centre'),
    scenario,
    options,
  );
  expect(trajectory.reward).toBe(rewards.illegal);
  expect(trajectory.metrics).toMatchObject({ win: 0, draw: 0, loss: 1, illegal: 1, turns: 1 });
});

test('evaluation plays both sides equally at temperature 0 and gives shares', async () => {
  const model = scriptedModel(firstFree);
  const evaluateAgainst = (opponent: OpponentName): ReturnType<typeof evaluate> =>
    evaluate(model, { opponent, games: 40 });
  const { win, draw, loss, illegal, trajectories } = await evaluateAgainst('random');
  expect(win + draw + loss).toBeCloseTo(1, 12);
  expect(illegal).toBe(0);
  expect(trajectories.filter(({ metadata }) => metadata.side === 'X')).toHaveLength(20);
  expect(model.requests.every((request) => request.temperature === 0)).toBe(true);
  expect((await evaluateAgainst('random')).win).toBe(win);
  expect((await evaluateAgainst('perfect')).win).toBe(0);
});

test('warm-up games are legal, seeded, and ask for a move before every answer', () => {
  const games = randomGames(50, 3);
  expect(games).toEqual(randomGames(50, 3));
  expect(games).not.toEqual(randomGames(50, 4));
  for (const [game, messages] of games.entries()) {
    expect(messages[0]?.content).toContain(game % 2 === 0 ? 'play X' : 'play O');
    for (let i = 1; i < messages.length; i += 2) {
      expect(messages[i]?.role).toBe('user');
      expect(messages[i]?.content).toContain(messages[i + 1]?.content);
    }
  }
});
