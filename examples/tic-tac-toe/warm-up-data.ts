/** Conversations for the supervised warm-up: legal games in which both sides play at random. They teach the format and little else. */
import { type ChatMessage, createRng } from '../../src/index.ts';
import { emptyBoard, freeCells, outcome, play, sideToMove } from './game.ts';
import { boardMessage, systemMessage } from './rollout.ts';

/** `count` games as chat messages, seen from X in the even ones; assistant messages are what is learned. */
export function randomGames(count: number, seed: number): ChatMessage[][] {
  return Array.from({ length: count }, (_, game) => randomGame(game % 2 === 0 ? 'X' : 'O', seed, game));
}

function randomGame(side: 'X' | 'O', seed: number, game: number): ChatMessage[] {
  const rng = createRng(seed, 'warm-up', game);
  const messages: ChatMessage[] = [systemMessage(side)];
  let board = emptyBoard;
  while (outcome(board) === null) {
    const cells = freeCells(board);
    const cell = cells[rng.integer(cells.length)] as number;
    if (sideToMove(board) === side)
      messages.push(boardMessage(board, side), { role: 'assistant', content: String(cell) });
    board = play(board, cell);
  }
  return messages;
}
