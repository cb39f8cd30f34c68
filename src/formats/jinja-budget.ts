/**
 * What one rendering of a template may take: steps, time, and text. Layer 1. Templates come with models, from anyone.
 * Rendering is synchronous and never nested, so that one budget at a time is enough, and what spends it needs no parameter for it.
 */
import { DataError } from '../core/errors.ts';

/** A conversation of 10,000 messages takes about a million. One is a node of the tree, a value compared, or 8 characters. */
const maxSteps = 5_000_000;
const maxMs = 1000;
/** Characters of any text, and of all that is written: more than the body of a request may have. */
export const maxText = 16 * 2 ** 20;

let steps = 0;
let written = 0;
let startedAt = 0;
/** Microseconds of the process, which a busy machine does not count against a template. */
let cpuAtStart = 0;
let untilClock = 0;

/** Calls that spend between two looks at the clock. */
const clockEvery = 256;

/** For one compilation or rendering. */
export function startBudget(): void {
  steps = maxSteps;
  written = maxText;
  startedAt = performance.now();
  cpuAtStart = cpuTime();
  untilClock = clockEvery;
}

function cpuTime(): number {
  const { user, system } = process.cpuUsage();
  return user + system;
}

/** Throws DataError if no steps or no time are left. */
export function spend(count = 1): void {
  steps -= count;
  untilClock -= 1;
  if (steps < 0) throw tooMuch(`must end within ${maxSteps} steps`);
  if (untilClock > 0 && count < 10_000) return;
  untilClock = clockEvery;
  if (performance.now() - startedAt < maxMs) return;
  if (cpuTime() - cpuAtStart > maxMs * 1000) throw tooMuch(`must end within ${maxMs} ms`);
}

/** The text, which is about to be read or copied. Throws DataError if it is too long. */
export function spendText(text: string): string {
  checkLength(text.length);
  spend(1 + (text.length >> 3));
  return text;
}

/** Its characters; a copy of this kind is slow. Throws DataError if it is too long. */
export function codePoints(text: string): string[] {
  spend(1 + (text.length >> 1));
  return [...text];
}

/** Call before a text of this length is made. */
export function checkLength(length: number): void {
  if (length > maxText) throw tooMuch(`texts must have at most ${maxText} characters, got ${length}`);
}

/** Counts what is written to the output. */
export function spendOutput(text: string): string {
  written -= text.length;
  if (written < 0) throw tooMuch(`must write at most ${maxText} characters`);
  return text;
}

function tooMuch(rule: string): DataError {
  return new DataError(`chat template: ${rule}`, { details: { code: 'template_limit' } });
}
