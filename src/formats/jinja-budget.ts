/**
 * What one rendering may use: time, and sizes of what it builds. Layer 1.
 * A template may come with a request. It reaches nothing but its variables, so all that it can do is take time and memory.
 */
import { templateError, type Value } from './jinja-values.ts';

/** Prompts of real conversations take milliseconds. */
const limitMs = 2_000;
/** Far above the context of any model. */
const maxCharacters = 4 * 2 ** 20;
const maxItems = 2 ** 20;
/** The clock is read once in so many steps. */
const stepsPerLook = 256;

export class Budget {
  readonly #endsAt = performance.now() + limitMs;
  #steps = 0;

  /** Counts one step. Throws DataError when the time is over. */
  spend(): void {
    this.#steps += 1;
    if (this.#steps % stepsPerLook === 0 && performance.now() > this.#endsAt) {
      throw templateError(`must render within ${limitMs} ms, got more after ${this.#steps} steps`);
    }
  }

  /** The value, if it is small enough to build others from. */
  allow(value: Value): Value {
    if (typeof value === 'string' || Array.isArray(value)) checkLength(typeof value, value.length);
    return value;
  }
}

/** Also called before something long is built at once. Throws DataError. */
export function checkLength(kind: string, length: number): void {
  const [limit, what] = kind === 'string' ? [maxCharacters, 'characters'] : [maxItems, 'items'];
  if (length > limit) throw templateError(`text and lists must have at most ${limit} ${what}, got ${length}`);
}
