/** Texts, characters and rules in the EBNF that xgrammar reads. Layer 3. Source: xgrammar docs, "EBNF grammar". */

import { DataError } from '../../core/errors.ts';

/** The time of a compile rises with the third power of the optional parts of one rule. */
const MAX_OPTIONAL = 200;
/** As `repeat` and our own rules write them. */
const optionalMark = /[?*]|\)\{0,/g;

/** Code points, both ends included. */
export type CharRange = readonly [first: number, last: number];

export const LAST_CODE_POINT = 0x10ffff;
/** No UTF-8 text has it. */
export const NEVER_BYTE = 0xff;

/** A text as one terminal. */
export function literal(text: string): string {
  let body = '';
  for (const char of text) body += escaped(char.codePointAt(0)!);
  return `"${body}"`;
}

/** Code points from 0x80 on as sequences of byte ranges. Source: RFC 3629; the split at borders is that of RE2. */
export function byteSequences(first: number, last: number): CharRange[][] {
  for (const border of [0x7ff, 0xffff]) {
    if (first <= border && last > border) return [...byteSequences(first, border), ...byteSequences(border + 1, last)];
  }
  for (let bits = 6; bits <= 18; bits += 6) {
    const mask = (1 << bits) - 1;
    if (first >> bits === last >> bits) continue;
    if ((first & mask) !== 0)
      return [...byteSequences(first, first | mask), ...byteSequences((first | mask) + 1, last)];
    if ((last & mask) !== mask)
      return [...byteSequences(first, (last & ~mask) - 1), ...byteSequences(last & ~mask, last)];
  }
  const [from, to] = [first, last].map((codePoint) => new TextEncoder().encode(String.fromCodePoint(codePoint)));
  return [Array.from(from!, (byte, i): CharRange => [byte, to![i]!])];
}

/** What the ranges leave out, without the halves of surrogate pairs, which no UTF-8 text has. */
export function complement(ranges: readonly CharRange[]): CharRange[] {
  const rest: CharRange[] = [];
  let next = 0;
  for (const [first, last] of [...ranges, surrogates].sort((a, b) => a[0] - b[0])) {
    if (first > next) rest.push([next, first - 1]);
    next = Math.max(next, last + 1);
  }
  if (next <= LAST_CODE_POINT) rest.push([next, LAST_CODE_POINT]);
  return rest;
}

/** What both have. */
export function intersect(a: readonly CharRange[], b: readonly CharRange[]): CharRange[] {
  return a.flatMap(([first, last]) =>
    b.flatMap(([from, to]): CharRange[] => {
      const range: CharRange = [Math.max(first, from), Math.min(last, to)];
      return range[0] <= range[1] ? [range] : [];
    }),
  );
}

/** One of several; `(…)` around more than one. */
export function oneOf(options: readonly string[]): string {
  return options.length === 1 ? options[0]! : `(${options.join(' | ')})`;
}

/** `count` times, or from `least` to `most` times (null = any number). */
export function repeat(expression: string, least: number, most: number | null): string {
  if (most === 0) return '""';
  const group = `(${expression})`;
  if (least === 1 && most === 1) return group;
  if (least === 0 && most === null) return `${group}*`;
  return `${group}{${least},${most ?? ''}}`;
}

/** Collects rules. */
export class Rules {
  readonly #lines: string[] = [];
  readonly #known = new Map<string, string>();
  #count = 0;

  /** Reserves a name, so that a rule may refer to itself. */
  name(): string {
    return `r${this.#count++}`;
  }

  define(name: string, body: string): string {
    this.#lines.push(`${name} ::= ${body}`);
    return name;
  }

  add(body: string): string {
    return this.define(this.name(), body);
  }

  /** A rule for this text, the same as for an equal text before; otherwise of the reserved name, if one is given. */
  once(key: string, body: () => string, name?: string): string {
    const known = this.#known.get(key) ?? this.define(name ?? this.name(), body());
    this.#known.set(key, known);
    return known;
  }

  /**
   * One of several that need not differ in how they begin. xgrammar 0.1.27 writes rules of characters alone into those that begin with
   * them, and then mixes up alternatives that share parts. A last rule that is empty keeps each from that: its other
   * alternative is a byte that no UTF-8 has, so tokens with it must never be allowed.
   */
  choice(options: readonly string[]): string {
    if (options.length === 1) return options[0]!;
    const end = this.once('end', () => `"" | ${byteClass([[NEVER_BYTE, NEVER_BYTE]])}`);
    return `(${options.map((option) => this.add(`${option} ${end}`)).join(' | ')})`;
  }

  /** The whole grammar. Throws DataError if a rule would take too long to compile. */
  grammar(root: string): string {
    const lines = [`root ::= ${root}`, ...this.#lines];
    for (const line of lines) {
      const count = line.match(optionalMark)?.length ?? 0;
      if (count <= MAX_OPTIONAL) continue;
      throw new DataError(`constraint: must have at most ${MAX_OPTIONAL} optional parts in a row, got ${count}`);
    }
    return lines.join('\n');
  }
}

const surrogates: CharRange = [0xd800, 0xdfff];

/** A class of single bytes. */
export function byteClass(ranges: readonly CharRange[]): string {
  // Beyond ASCII a class of one character would be that character's UTF-8, but for one that stands twice.
  const parts = ranges.map(([first, last]) => {
    if (first === last) return first < 0x80 ? escaped(first) : escaped(first).repeat(2);
    return `${escaped(first)}-${escaped(last)}`;
  });
  return `[${parts.join('')}]`;
}

function escaped(codePoint: number): string {
  const char = String.fromCodePoint(codePoint);
  if (/^[A-Za-z0-9 _:,.;<>=(){}/]$/.test(char)) return char;
  return `\\U${codePoint.toString(16).padStart(8, '0')}`;
}
