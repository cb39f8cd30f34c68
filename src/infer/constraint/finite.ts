/**
 * Finitely many texts, character classes and digit ranges among them, as rules in which the next byte decides. Layer 3.
 * Alternatives that begin alike share a rule up to where they differ: a deterministic automaton without cycles, one rule a state.
 */
import { byteClass, byteSequences, type CharRange, literal, type Rules } from './ebnf.ts';

/** Bytes one after the other; the text may end after `least` of them. */
export interface ByteTexts {
  readonly bytes: readonly CharRange[];
  readonly least: number;
}

/** Exactly this text. */
export function oneText(text: string): ByteTexts {
  const bytes = Array.from(new TextEncoder().encode(text), (byte): CharRange => [byte, byte]);
  return { bytes, least: bytes.length };
}

/** One character out of ranges, which must not be empty. */
export function charClass(rules: Rules, ranges: readonly CharRange[]): string {
  return anyOfTexts(rules, charTexts(ranges));
}

/** As `charClass`, as alternatives of which the next byte chooses one. */
export function charOptions(rules: Rules, ranges: readonly CharRange[]): string[] {
  return optionsOf(rules, charTexts(ranges));
}

/**
 * Any number of the options, then `end`: one rule that goes on in itself. xgrammar knows beforehand which tokens a rule admits, but tries
 * out those that reach beyond it at each mask: with a rule for each character, all tokens of two (of 49k: 40 ms a mask, not 0.04).
 */
export function anyNumberOf(rules: Rules, options: readonly string[], end = '""'): string {
  const name = rules.name();
  const key = `${options.join(' | ')} … ${end}`;
  return rules.once(key, () => [end, ...options.map((option) => `${option} ${name}`)].join(' | '), name);
}

function charTexts(ranges: readonly CharRange[]): ByteTexts[] {
  return ranges.flatMap(([first, last]): ByteTexts[] => [
    ...(first < 0x80 ? [{ bytes: [[first, Math.min(last, 0x7f)] as const], least: 1 }] : []),
    ...(last < 0x80 ? [] : byteSequences(Math.max(first, 0x80), last).map((bytes) => ({ bytes, least: bytes.length }))),
  ]);
}

/** An expression of any of the texts, which must be at least one. */
export function anyOfTexts(rules: Rules, texts: readonly ByteTexts[]): string {
  const states = new Map(texts.map((text) => [JSON.stringify(text), text]));
  const [only] = states.values();
  if (states.size === 1 && only!.least === only!.bytes.length) return sequence(only!.bytes);
  return rules.once([...states.keys()].sort().join(';'), () => {
    const list = [...states.values()];
    const options = optionsOf(rules, list);
    if (list.some(({ least }) => least <= 0)) options.push('""');
    return options.join(' | ');
  });
}

function optionsOf(rules: Rules, texts: readonly ByteTexts[]): string[] {
  return steps(texts).map(({ ranges, next }) => `${byteClass(ranges)} ${after(rules, next)}`.trim());
}

function after(rules: Rules, next: readonly ByteTexts[]): string {
  return next.every(({ bytes }) => bytes.length === 0) ? '' : anyOfTexts(rules, next);
}

interface Step {
  readonly ranges: CharRange[];
  readonly next: readonly ByteTexts[];
}

/** What may follow which byte; bytes that lead to the same are one step. */
function steps(texts: readonly ByteTexts[]): Step[] {
  const firsts = texts.flatMap(({ bytes }) => (bytes[0] ? [bytes[0]] : []));
  const borders = [...new Set(firsts.flatMap(([first, last]) => [first, last + 1]))].sort((a, b) => a - b);
  const found = new Map<string, Step>();
  for (const [i, start] of borders.slice(0, -1).entries()) {
    const next = texts
      .filter(({ bytes }) => bytes[0] && bytes[0][0] <= start && start <= bytes[0][1])
      .map(({ bytes, least }) => ({ bytes: bytes.slice(1), least: Math.max(0, least - 1) }));
    if (next.length === 0) continue;
    const key = [...new Set(next.map((text) => JSON.stringify(text)))].sort().join(';');
    const step = found.get(key) ?? { ranges: [], next };
    step.ranges.push([start, borders[i + 1]! - 1]);
    found.set(key, step);
  }
  return [...found.values()];
}

function sequence(bytes: readonly CharRange[]): string {
  const isText = bytes.every(([first, last]) => first === last && first < 0x80);
  if (isText) return literal(String.fromCharCode(...bytes.map(([byte]) => byte)));
  return bytes.map((range) => byteClass([range])).join(' ');
}
