/** The agent: one whole game is one multi-turn trajectory through the OpenAI chat API. */
import { randomUUID } from 'node:crypto';
import type OpenAI from 'openai';
import { type ChatChoice, type ChatMessage, type ChatModel, deriveSeed, Trajectory } from '../../src/index.ts';
import {
  type Board,
  emptyBoard,
  freeCells,
  type OpponentName,
  opponentCell,
  outcome,
  play,
  renderBoard,
  type Side,
  sideToMove,
} from './game.ts';

/** What a game is played under. Games of a group share side and kind of opponent; each has a seed of its own. */
export interface Scenario {
  readonly side: Side;
  /** Decides the opponent's replies. */
  readonly seed: number;
  readonly opponent: OpponentName;
}

export interface RolloutOptions {
  readonly temperature: number;
  /** Seed of the policy's sampling; turn t uses `deriveSeed(seed, t)`. */
  readonly seed: number;
  readonly signal?: AbortSignal;
  /** Policy step to play; default the newest. */
  readonly step?: number;
}

export type Result = 'win' | 'draw' | 'loss' | 'illegal';

/** The one place that says what is good. An illegal move also counts as a loss in the metrics. */
export const rewards: Readonly<Record<Result, number>> = { win: 1, draw: 0, loss: -1, illegal: -1.5 };

/** Enough for a digit and the end of the turn; anything longer is no move. */
const MAX_MOVE_TOKENS = 4;

export function systemMessage(side: Side): ChatMessage {
  return { role: 'system', content: `Tic-tac-toe. You play ${side}. Answer with a free cell.` };
}

export function boardMessage(board: Board, side: Side): ChatMessage {
  return { role: 'user', content: renderBoard(board, side) };
}

/** The move in a reply: exactly one digit of a free cell, spaces around it allowed. Null otherwise. */
export function parseMove(content: unknown, board: Board): number | null {
  const text = typeof content === 'string' ? content.trim() : '';
  if (!/^[1-9]$/.test(text)) return null;
  return freeCells(board).includes(Number(text)) ? Number(text) : null;
}

/** Plays one game and scores it. */
export async function rollout(model: ChatModel, scenario: Scenario, options: RolloutOptions): Promise<Trajectory> {
  const { side, seed, opponent } = scenario;
  const trajectory = new Trajectory({
    messagesAndChoices: [systemMessage(side)],
    metadata: { side, seed, opponent },
  });
  // Tells the server which turns belong together: two games of a group may have the same text so far.
  const headers = { 'x-art-rollout': randomUUID() };
  let board = emptyBoard;
  let turns = 0;
  let completionTokens = 0;
  for (;;) {
    if (outcome(board) === null && sideToMove(board) !== side) board = play(board, opponentCell(opponent, board, seed));
    const end = outcome(board);
    if (end !== null)
      return score(trajectory, end === side ? 'win' : end === 'draw' ? 'draw' : 'loss', turns, completionTokens);
    trajectory.messagesAndChoices.push(boardMessage(board, side));
    const completion = await ask(model, trajectory, options, turns, headers);
    const choice = completion.choices[0] as ChatChoice;
    trajectory.messagesAndChoices.push(choice);
    turns++;
    completionTokens += completion.usage?.completion_tokens ?? 0;
    const move = parseMove(choice.message.content, board);
    if (move === null) return score(trajectory, 'illegal', turns, completionTokens);
    board = play(board, move);
  }
}

function ask(
  model: ChatModel,
  trajectory: Trajectory,
  { temperature, seed, signal, step }: RolloutOptions,
  turn: number,
  headers: Readonly<Record<string, string>>,
): Promise<OpenAI.ChatCompletion> {
  return model.openaiClient().chat.completions.create(
    {
      model: model.getInferenceName(step),
      messages: trajectory.messages() as OpenAI.ChatCompletionMessageParam[],
      temperature,
      seed: deriveSeed(seed, turn),
      max_tokens: MAX_MOVE_TOKENS,
    },
    { signal, headers },
  );
}

function score(trajectory: Trajectory, result: Result, turns: number, completionTokens: number): Trajectory {
  trajectory.reward = rewards[result];
  trajectory.metrics = {
    win: Number(result === 'win'),
    draw: Number(result === 'draw'),
    loss: Number(result === 'loss' || result === 'illegal'),
    illegal: Number(result === 'illegal'),
    turns,
    completion_tokens: completionTokens,
  };
  return trajectory;
}
