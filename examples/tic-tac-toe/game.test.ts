import { expect, test } from 'vitest';
import { createRng } from '../../src/index.ts';
import {
  type Board,
  bestCells,
  boardValue,
  emptyBoard,
  freeCells,
  opponentCell,
  outcome,
  play,
  renderBoard,
  type Side,
  sideToMove,
} from './game.ts';

test('the game has 5,478 positions, of which 958 end it, and 255,168 courses', () => {
  const ends = new Map<Board, boolean>();
  const countCourses = (board: Board): number => {
    const isEnd = outcome(board) !== null;
    ends.set(board, isEnd);
    return isEnd ? 1 : freeCells(board).reduce((sum, cell) => sum + countCourses(play(board, cell)), 0);
  };
  expect(countCourses(emptyBoard)).toBe(255_168);
  expect(ends.size).toBe(5478);
  expect([...ends.values()].filter(Boolean)).toHaveLength(958);
});

test('perfect play draws against itself and never loses against any reply', () => {
  expect(boardValue(emptyBoard)).toBe(0);
  const neverLoses = (board: Board, side: Side): boolean => {
    const end = outcome(board);
    if (end !== null) return end === side || end === 'draw';
    const cells = sideToMove(board) === side ? bestCells(board) : freeCells(board);
    return cells.every((cell) => neverLoses(play(board, cell), side));
  };
  expect(neverLoses(emptyBoard, 'X')).toBe(true);
  expect(neverLoses(emptyBoard, 'O')).toBe(true);
});

test('a win is taken and a threat is met', () => {
  expect(bestCells('XX.OO....')).toEqual([3]);
  expect(bestCells('XX..O....')).toEqual([3]);
});

test('free cells are shown as their numbers, and after the rows where a side completes three in a row', () => {
  expect(renderBoard('X...O....', 'X')).toBe('X23\n4O6\n789\nhot -');
  expect(renderBoard('XX.OO....', 'X')).toBe('XX3\nOO6\n789\nhot 36');
  expect(renderBoard('X.X.X.O.O', 'O')).toBe('X2X\n4X6\nO8O\nhot 82');
  expect(renderBoard('X.XOXO...', 'X')).toBe('X2X\nOXO\n789\nhot 279');
  expect(freeCells('X...O....')).toEqual([2, 3, 4, 6, 7, 8, 9]);
});

test('sides take turns and a taken cell is refused', () => {
  expect(sideToMove(play(emptyBoard, 1))).toBe('O');
  expect(() => play(play(emptyBoard, 1), 1)).toThrow('play: cell must be free, got 1 on X........');
});

test("the opponent's reply depends on seed and board alone, and every free cell occurs", () => {
  const board = play(emptyBoard, 5);
  const reply = (seed: number): number => opponentCell('random', board, seed);
  expect(reply(7)).toBe(reply(7));
  expect(new Set(Array.from({ length: 200 }, (_, seed) => reply(seed)))).toEqual(new Set(freeCells(board)));
});

test('random games end within nine moves, X wins more of them than O', () => {
  const wins = { X: 0, O: 0, draw: 0 };
  for (let game = 0; game < 2000; game++) {
    const rng = createRng(game);
    let board = emptyBoard;
    while (outcome(board) === null) {
      const cells = freeCells(board);
      board = play(board, cells[rng.integer(cells.length)] as number);
    }
    wins[outcome(board) as 'X' | 'O' | 'draw']++;
  }
  // Exact shares of random play: 58.5 %, 28.8 %, 12.7 %; 2,000 games stay within 4 points with probability above 0.999.
  expect(wins.X / 2000).toBeCloseTo(0.585, 1);
  expect(Math.abs(wins.O / 2000 - 0.288)).toBeLessThan(0.04);
  expect(Math.abs(wins.draw / 2000 - 0.127)).toBeLessThan(0.04);
});
