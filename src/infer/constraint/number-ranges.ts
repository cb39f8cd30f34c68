/** Decimal numbers between bounds as EBNF. Layer 3. */
import { DataError } from '../../core/errors.ts';
import type { CharRange, Rules } from './ebnf.ts';
import { anyOfTexts, type ByteTexts } from './finite.ts';

export interface Bounds {
  readonly minimum?: number;
  readonly maximum?: number;
  readonly exclusiveMinimum?: number;
  readonly exclusiveMaximum?: number;
}

/** Digits before and after the point of numbers without a bound on that side: JavaScript reads them without loss. */
const MAX_INTEGER_DIGITS = 15;
const MAX_DECIMALS = 15;

/** Of a side: the value times 10^scale, and whether it belongs to the range; null = no bound. */
interface Edge {
  readonly value: bigint;
  readonly isOpen: boolean;
}

export const anyInteger = `("0" | "-"? [1-9] [0-9]{0,${MAX_INTEGER_DIGITS - 1}})`;
export const anyNumber = `"-"? ("0" | [1-9] [0-9]{0,${MAX_DECIMALS - 1}}) ("." [0-9]{1,${MAX_DECIMALS}})? ([eE] [-+]? [0-9]{1,2})?`;

/** Throws DataError, with `path`, if no number lies between the bounds or a bound has too many digits. */
export function numberRange(rules: Rules, bounds: Bounds, isInteger: boolean, path: string): string {
  const scale = isInteger ? 0 : Math.max(...Object.values(bounds).map((bound) => decimals(bound as number, path)));
  const low = edge([bounds.minimum, bounds.exclusiveMinimum], scale, 1n, isInteger, path);
  const high = edge([bounds.maximum, bounds.exclusiveMaximum], scale, -1n, isInteger, path);
  const options: ByteTexts[] = [];
  if (!high || high.value > 0n || (high.value === 0n && !high.isOpen)) {
    options.push(...positive(low && low.value >= 0n ? low : { value: 0n, isOpen: false }, high, scale, isInteger));
  }
  if (!low || low.value < 0n) {
    const flip = ({ value, isOpen }: Edge): Edge => ({ value: -value, isOpen });
    const least = high && high.value <= 0n ? flip(high) : { value: 0n, isOpen: isInteger };
    options.push(...positive(least, low && flip(low), scale, isInteger).map((text) => behind(minus, text)));
  }
  if (options.length === 0) throw new DataError(`${path}: must leave a number between its bounds, got none`);
  return anyOfTexts(rules, options);
}

/** Numbers of `low` … `high`, both not negative. */
function positive(low: Edge, high: Edge | null, scale: number, isInteger: boolean): ByteTexts[] {
  const options: ByteTexts[] = [];
  for (let places = 0; places <= scale; places++) {
    const step = 10n ** BigInt(scale - places);
    const top = 10n ** BigInt(MAX_INTEGER_DIGITS - 1 + places) - 1n;
    options.push(...written(above(low, step), high ? below(high, step) : top, places));
  }
  if (isInteger) return options;
  // With more places than the bounds have: anything behind a number that is not the last one.
  const top = 10n ** BigInt(MAX_INTEGER_DIGITS - 1 + scale) - 1n;
  const stems = written(above(low, 1n), high ? high.value - 1n : top, scale);
  const tail: CharRange[] = new Array(Math.max(1, MAX_DECIMALS - scale)).fill(digit);
  const more = { bytes: scale === 0 ? [point, ...tail] : tail, least: scale === 0 ? 2 : 1 };
  options.push(...stems.map(({ bytes }) => ({ bytes: [...bytes, ...more.bytes], least: bytes.length + more.least })));
  return options;
}

const digit: CharRange = [0x30, 0x39];
const point: CharRange = [0x2e, 0x2e];
const minus: CharRange = [0x2d, 0x2d];

function behind(first: CharRange, { bytes, least }: ByteTexts): ByteTexts {
  return { bytes: [first, ...bytes], least: least + 1 };
}

/** Whole numbers `first` … `last` with a point before the last `places` digits. */
function written(first: bigint, last: bigint, places: number): ByteTexts[] {
  const texts: ByteTexts[] = [];
  const digitsOf = (value: bigint): string => String(value).padStart(places + 1, '0');
  for (let length = digitsOf(first).length; first <= last && length <= digitsOf(last).length; length++) {
    const lowest = length > places + 1 ? 10n ** BigInt(length - 1) : 0n;
    const from = first > lowest ? first : lowest;
    const highest = 10n ** BigInt(length) - 1n;
    const to = last < highest ? last : highest;
    if (from > to) continue;
    for (const digits of between(digitsOf(from), digitsOf(to))) {
      const bytes =
        places === 0 ? digits : [...digits.slice(0, length - places), point, ...digits.slice(length - places)];
      texts.push({ bytes, least: bytes.length });
    }
  }
  return texts;
}

/** Digit strings of equal length from `low` to `high`. */
function between(low: string, high: string): CharRange[][] {
  if (low === '') return [[]];
  const [first, last] = [low.charCodeAt(0), high.charCodeAt(0)];
  const [rest, top] = [low.slice(1), high.slice(1)];
  const then = (byte: number, tails: CharRange[][]): CharRange[][] => tails.map((tail) => [[byte, byte], ...tail]);
  if (first === last) return then(first, between(rest, top));
  const nines = '9'.repeat(rest.length);
  const zeros = '0'.repeat(rest.length);
  const from = rest === zeros ? first : first + 1;
  const to = top === nines ? last : last - 1;
  return [
    ...(rest === zeros ? [] : then(first, between(rest, nines))),
    ...(from <= to ? [[[from, to] as CharRange, ...new Array<CharRange>(rest.length).fill(digit)]] : []),
    ...(top === nines ? [] : then(last, between(zeros, top))),
  ];
}

/** Least multiple of `step` inside. */
function above({ value, isOpen }: Edge, step: bigint): bigint {
  const up = (value + step - 1n) / step;
  return isOpen && up * step === value ? up + 1n : up;
}

/** Greatest multiple of `step` inside. */
function below({ value, isOpen }: Edge, step: bigint): bigint {
  const down = value / step;
  return isOpen && down * step === value ? down - 1n : down;
}

/** The tighter of an inclusive and an exclusive bound; `direction` is 1 where the greater is tighter. */
function edge(
  [closed, open]: readonly [number | undefined, number | undefined],
  scale: number,
  direction: 1n | -1n,
  isInteger: boolean,
  path: string,
): Edge | null {
  const edges: Edge[] = [];
  if (closed !== undefined) edges.push({ value: scaled(closed, scale, direction, isInteger, path), isOpen: false });
  if (open !== undefined) {
    const isExact = !isInteger || Number.isInteger(open);
    edges.push({ value: scaled(open, scale, direction, isInteger, path), isOpen: isExact });
  }
  const [first, second] = edges;
  if (!first || !second) return first ?? null;
  const difference = (second.value - first.value) * direction;
  return difference > 0n || (difference === 0n && second.isOpen) ? second : first;
}

/** An integer's bound that is none itself is rounded inwards. */
function scaled(bound: number, scale: number, direction: 1n | -1n, isInteger: boolean, path: string): bigint {
  const text = plainDecimal(isInteger ? (direction === 1n ? Math.ceil(bound) : Math.floor(bound)) : bound, path);
  const [whole = '', fraction = ''] = text.split('.');
  return BigInt(whole + fraction.padEnd(scale, '0'));
}

function decimals(bound: number, path: string): number {
  return plainDecimal(bound, path).split('.')[1]?.length ?? 0;
}

function plainDecimal(bound: number, path: string): string {
  const text = Object.is(bound, -0) ? '0' : String(bound);
  if (/^-?\d{1,17}(\.\d{1,12})?$/.test(text)) return text;
  throw new DataError(`${path}: bounds must have at most 17 digits before and 12 after the point, got ${text}`);
}
