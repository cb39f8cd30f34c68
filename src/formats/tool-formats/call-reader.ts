/** What the readers of all tool-call formats share. Layer 1. */

/** A piece of a call; the first of a call has its name. */
export interface CallPiece {
  /** Counts from 0 in each reader. */
  readonly index: number;
  /** Where the format writes ids. */
  readonly id?: string;
  readonly name?: string;
  /** All pieces of a call join to the text of a JSON object: what the policy wrote, where the format is JSON. */
  readonly arguments: string;
}

export interface ReaderOptions {
  /** Tools of the request. Calls without a mark must be of these. */
  readonly toolNames: ReadonlySet<string>;
  /** Whether the calls begin with a mark, or are what the reply begins with. */
  readonly isMarked: boolean;
  /** Gives the arguments of a call while they are read. Otherwise a call is given when all calls of the reader are complete. */
  readonly isStreamed: boolean;
}

/** Reads the calls of one place in a reply, behind their mark. */
export interface CallReader {
  /** `done`: all calls have been given; `broken`: what was read is no call, but text. */
  readonly status: 'reading' | 'done' | 'broken';
  /** Whether this was meant as a call, so that `broken` counts as malformed. */
  readonly isCall: boolean;
  /** Of the characters read so far, those that the pieces say; the others are text if it breaks. */
  readonly settled: number;
  /** Reads on from `at` and returns where it stopped. The character at which it breaks is not read. */
  read(text: string, at: number): number;
  /** The reply is over. */
  finish(): void;
  /** Pieces that were completed since the last time. */
  takePieces(): readonly CallPiece[];
}
