/** Tic-tac-toe: rules, a random opponent and a perfect one. Boards are text, so that a position is its own key. */
import { createRng } from '../../src/index.ts';

export type Side = 'X' | 'O';
/** Nine characters, row by row: `X`, `O`, or `.` for a free cell. X moves first. */
export type Board = string;
export type Outcome = Side | 'draw';
export type OpponentName = 'random' | 'perfect';

export const emptyBoard: Board = '.........';

const LINES = [
  [0, 1, 2],
  [3, 4, 5],
  [6, 7, 8],
  [0, 3, 6],
  [1, 4, 7],
  [2, 5, 8],
  [0, 4, 8],
  [2, 4, 6],
] as const;

/** Free cells, as numbers 1 to 9. */
export function freeCells(board: Board): number[] {
  return [...board].flatMap((mark, index) => (mark === '.' ? [index + 1] : []));
}

/** Whose turn it is. */
export function sideToMove(board: Board): Side {
  return freeCells(board).length % 2 === 1 ? 'X' : 'O';
}

/** The board after the side to move takes a free `cell` (1 to 9). */
export function play(board: Board, cell: number): Board {
  if (board[cell - 1] !== '.') throw new RangeError(`play: cell must be free, got ${cell} on ${board}`);
  return board.slice(0, cell - 1) + sideToMove(board) + board.slice(cell);
}

/** Null while the game goes on. */
export function outcome(board: Board): Outcome | null {
  for (const [a, b, c] of LINES) {
    const mark = board[a];
    if ((mark === 'X' || mark === 'O') && mark === board[b] && mark === board[c]) return mark;
  }
  return board.includes('.') ? null : 'draw';
}

/** Free cells with which a side completes three in a row. */
export function winningCells(board: Board, side: Side): number[] {
  return freeCells(board).filter((cell) =>
    LINES.some(
      (line) => line.includes((cell - 1) as never) && line.every((at) => at === cell - 1 || board[at] === side),
    ),
  );
}

/**
 * What the agent of `side` sees: three rows with free cells as their numbers, then the hot cells, where either side completes three in a
 * row, the agent's own first; `-` if there are none. For X, `X23\nXO6\n7O9\nhot 72`: it wins at 7, and O would at 2. A small model has
 * to learn what to do about hot cells, not how to find them.
 */
export function renderBoard(board: Board, side: Side): string {
  const cells = [...board].map((mark, index) => (mark === '.' ? String(index + 1) : mark));
  const rows = [cells.slice(0, 3), cells.slice(3, 6), cells.slice(6)].map((row) => row.join(''));
  const hot = new Set([...winningCells(board, side), ...winningCells(board, side === 'X' ? 'O' : 'X')]);
  return [...rows, `hot ${[...hot].join('') || '-'}`].join('\n');
}

const values = new Map<Board, number>();

/** 1, 0 or −1: what the side to move gets from here when both play perfectly. */
export function boardValue(board: Board): number {
  const known = values.get(board);
  if (known !== undefined) return known;
  const end = outcome(board);
  const value = end === 'draw' ? 0 : end === null ? Math.max(...moveValues(board).map((move) => move.value)) : -1;
  values.set(board, value);
  return value;
}

/** The cells that keep the value of the board. */
export function bestCells(board: Board): number[] {
  const moves = moveValues(board);
  const best = Math.max(...moves.map((move) => move.value));
  return moves.filter((move) => move.value === best).map((move) => move.cell);
}

/**
 * The opponent's cell: a function of (seed, board) alone, so that a game can be repeated exactly.
 * `random`: any free cell; `perfect`: any of the best.
 */
export function opponentCell(name: OpponentName, board: Board, seed: number): number {
  const cells = name === 'perfect' ? bestCells(board) : freeCells(board);
  return cells[createRng(seed, 'opponent', board).integer(cells.length)] as number;
}

function moveValues(board: Board): { readonly cell: number; readonly value: number }[] {
  return freeCells(board).map((cell) => ({ cell, value: 0 - boardValue(play(board, cell)) }));
}
