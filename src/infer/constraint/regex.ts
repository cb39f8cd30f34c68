/**
 * Regular expressions as EBNF, character by character. Layer 3. The syntax is JavaScript's (ECMA-262, "Patterns").
 * Left out, and refused by name: look-around, back references, named groups, word borders, property escapes, and anchors but at the ends.
 */
import { DataError } from '../../core/errors.ts';
import { type CharRange, complement, intersect, LAST_CODE_POINT, literal, type Rules, repeat } from './ebnf.ts';
import { anyNumberOf, charOptions } from './finite.ts';

/** Writes one character out of ranges, as alternatives; none if no text has it. */
export type WriteChar = (rules: Rules, ranges: readonly CharRange[]) => string[];

export interface RegexOptions {
  /** `whole`: the text is the match; `anywhere`: a match stands somewhere in the text, as in JSON schema. */
  readonly match: 'whole' | 'anywhere';
  readonly writeChar: WriteChar;
  /** Names the field in errors. */
  readonly path: string;
}

const MAX_REPEAT = 1000;
const MAX_DEPTH = 64;

const digits: readonly CharRange[] = [[0x30, 0x39]];
const words: readonly CharRange[] = [[0x30, 0x39], [0x41, 0x5a], [0x5f, 0x5f], [0x61, 0x7a]]; // biome-ignore format: one class a line
const spaces: readonly CharRange[] = [
  [0x09, 0x0d],
  [0x20, 0x20],
  [0xa0, 0xa0],
  [0x1680, 0x1680],
  [0x2000, 0x200a],
  [0x2028, 0x2029],
  [0x202f, 0x202f],
  [0x205f, 0x205f],
  [0x3000, 0x3000],
  [0xfeff, 0xfeff],
];
/** `.` takes no line terminator. */
const lineEnds: readonly CharRange[] = [
  [0x0a, 0x0a],
  [0x0d, 0x0d],
  [0x2028, 0x2029],
];
/** Characters of one UTF-16 unit: of others, expressions with and without the flag u have different counts. */
const every: readonly CharRange[] = intersect(complement([]), [[0, 0xffff]]);
const not = (ranges: readonly CharRange[]): CharRange[] => intersect(complement(ranges), every);
const classes: Readonly<Record<string, readonly CharRange[]>> = {
  d: digits,
  D: not(digits),
  w: words,
  W: not(words),
  s: spaces,
  S: not(spaces),
};
const controls: Readonly<Record<string, number>> = { n: 0x0a, r: 0x0d, t: 0x09, f: 0x0c, v: 0x0b, 0: 0 };

/** A character of text, not of a JSON string. */
export const plainChar: WriteChar = charOptions;

/** A character inside a JSON string: as itself, or escaped where JSON asks for that. */
export function jsonChar(rules: Rules, ranges: readonly CharRange[]): string[] {
  const raw = intersect(ranges, complement(notPlain));
  const escapes = jsonEscapes.filter(([char]) => ranges.some(([first, last]) => first <= char && char <= last));
  return [...charOptions(rules, raw), ...escapes.map(([, letter]) => literal(`\\${letter}`))];
}

const notPlain: readonly CharRange[] = [
  [0, 0x1f],
  [0x22, 0x22],
  [0x5c, 0x5c],
];
const jsonEscapes: readonly (readonly [number, string])[] = [
  [0x22, '"'],
  [0x5c, '\\'],
  [0x08, 'b'],
  [0x0c, 'f'],
  [0x0a, 'n'],
  [0x0d, 'r'],
  [0x09, 't'],
];

/** An EBNF expression of what the pattern matches. Throws DataError that names what is not supported. */
export function regexToEbnf(rules: Rules, pattern: string, options: RegexOptions): string {
  return new RegexReader(rules, pattern, options).read();
}

class RegexReader {
  readonly #chars: readonly string[];
  readonly #pattern: string;
  readonly #options: RegexOptions;
  readonly #rules: Rules;
  /** Alternatives of a character that a rule stands for. */
  readonly #classOf = new Map<string, readonly string[]>();
  #at = 0;
  #depth = 0;

  constructor(rules: Rules, pattern: string, options: RegexOptions) {
    this.#rules = rules;
    this.#pattern = pattern;
    this.#chars = [...pattern];
    this.#options = options;
  }

  read(): string {
    try {
      new RegExp(this.#pattern, 'u');
    } catch {
      try {
        new RegExp(this.#pattern);
      } catch (cause) {
        throw new DataError(`${this.#options.path}: must be a regular expression, got ${this.#pattern}`, { cause });
      }
    }
    const anything = anyNumberOf(this.#rules, this.#options.writeChar(this.#rules, every));
    const isWhole = this.#options.match === 'whole';
    const branches: string[] = [];
    do {
      const isAtStart = this.#take('^');
      const body = this.#sequence();
      const isAtEnd = this.#take('$');
      branches.push([isAtStart || isWhole ? '' : anything, body, isAtEnd || isWhole ? '' : anything].join(' ').trim());
    } while (this.#take('|'));
    if (this.#at < this.#chars.length) throw this.#unsupported(this.#chars[this.#at]!);
    return this.#rules.choice(branches);
  }

  #take(char: string): boolean {
    if (this.#chars[this.#at] !== char) return false;
    this.#at++;
    return true;
  }

  #alternatives(): string {
    const branches: string[] = [];
    do branches.push(this.#sequence());
    while (this.#take('|'));
    return this.#rules.choice(branches);
  }

  #sequence(): string {
    const items: string[] = [];
    while (this.#at < this.#chars.length && !'|)'.includes(this.#chars[this.#at]!)) {
      if (this.#chars[this.#at] === '$') break;
      items.push(this.#quantified(this.#atom()));
    }
    return items.length === 0 ? '""' : items.join(' ');
  }

  #atom(): string {
    const char = this.#chars[this.#at++]!;
    if (char === '(') return this.#group();
    if (char === '[') return this.#write(this.#class());
    if (char === '.') return this.#write(not(lineEnds));
    if (char === '\\') return this.#write(this.#escape());
    if (char === '^') throw this.#unsupported('^ inside the expression');
    const codePoint = char.codePointAt(0)!;
    return this.#write([[codePoint, codePoint]]);
  }

  #write(ranges: readonly CharRange[]): string {
    const options = this.#options.writeChar(this.#rules, ranges);
    if (options.length === 0) throw this.#unsupported('a class that no character of the text can be of');
    const body = options.join(' | ');
    const char = this.#rules.once(body, () => body);
    this.#classOf.set(char, options);
    return char;
  }

  #group(): string {
    if (this.#take('?') && !this.#take(':')) throw this.#unsupported(`(?${this.#chars[this.#at] ?? ''}`);
    if (++this.#depth > MAX_DEPTH) throw this.#unsupported(`groups nested more than ${MAX_DEPTH} deep`);
    const inner = this.#alternatives();
    if (!this.#take(')')) throw this.#unsupported('$ inside the expression');
    this.#depth--;
    return `(${inner})`;
  }

  #quantified(atom: string): string {
    const next = this.#chars[this.#at];
    if (next !== '*' && next !== '+' && next !== '?' && next !== '{') return atom;
    this.#at++;
    let [least, most]: [number, number | null] = next === '?' ? [0, 1] : [next === '+' ? 1 : 0, null];
    if (next === '{') {
      const counts = /^(\d+)(,?)(\d*)\}/.exec(this.#chars.slice(this.#at).join(''));
      if (!counts) return `${atom} ${this.#write([[0x7b, 0x7b]])}`;
      this.#at += counts[0].length;
      least = Number(counts[1]);
      most = counts[2] === '' ? least : counts[3] === '' ? null : Number(counts[3]);
      if (Math.max(least, most ?? 0) > MAX_REPEAT) throw this.#unsupported(`more than ${MAX_REPEAT} repetitions`);
    }
    this.#take('?'); // Lazy or greedy is the same set of texts.
    const options = this.#classOf.get(atom);
    if (most !== null || !options) return repeat(atom, least, most);
    return `${repeat(atom, least, least)} ${anyNumberOf(this.#rules, options)}`;
  }

  #class(): readonly CharRange[] {
    const isNegated = this.#take('^');
    const ranges: CharRange[] = [];
    while (!this.#take(']')) {
      const first = this.#classItem();
      const isRange = this.#chars[this.#at] === '-' && this.#chars[this.#at + 1] !== ']';
      if (isRange && first.length === 1 && first[0]![0] === first[0]![1]) {
        this.#at++;
        const last = this.#classItem();
        ranges.push([first[0]![0], last[0]![1]]);
      } else ranges.push(...first);
    }
    return isNegated ? not(ranges) : intersect(ranges, every);
  }

  #classItem(): readonly CharRange[] {
    const char = this.#chars[this.#at++]!;
    if (char === '\\') return this.#take('b') ? [[8, 8]] : this.#escape();
    const codePoint = char.codePointAt(0)!;
    return [[codePoint, codePoint]];
  }

  #escape(): readonly CharRange[] {
    const char = this.#chars[this.#at++]!;
    const known = classes[char];
    if (known) return known;
    const hexLength = char === 'x' ? 2 : char === 'u' ? 4 : 0;
    if (hexLength > 0) {
      const hex = this.#chars.slice(this.#at, this.#at + hexLength).join('');
      if (!/^[0-9a-f]+$/i.test(hex) || hex.length < hexLength) throw this.#unsupported(`\\${char}${hex}`);
      this.#at += hexLength;
      return this.#point(Number.parseInt(hex, 16));
    }
    const control = controls[char];
    if (control !== undefined) return this.#point(control);
    if (/[A-Za-z1-9]/.test(char)) throw this.#unsupported(`\\${char}`);
    return this.#point(char.codePointAt(0)!);
  }

  #point(codePoint: number): readonly CharRange[] {
    if (codePoint > LAST_CODE_POINT || (codePoint >= 0xd800 && codePoint <= 0xdfff)) {
      throw this.#unsupported('half a surrogate pair');
    }
    return [[codePoint, codePoint]];
  }

  #unsupported(what: string): DataError {
    const { path } = this.#options;
    return new DataError(
      `${path}: must be a regular expression without look-around, back references and inner anchors, got ${what} in ${this.#pattern}`,
    );
  }
}
