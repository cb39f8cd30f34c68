/**
 * Values of Jinja templates with the meaning that Python gives them: text, equality, order, JSON. Layer 1.
 * Source: Python's str, repr, comparison and json.dumps; jinja2.runtime.Undefined.
 * Strings are indexed, measured and ordered by code points, not by UTF-16 units.
 */
import { DataError } from '../core/errors.ts';
import { codePoints, spend, spendText } from './jinja-budget.ts';

/** A float of Python; a plain number is an int. */
export class Float {
  readonly value: number;

  constructor(value: number) {
    this.value = value;
  }
}

/** A tuple, which only differs from a list in how it prints. */
export class Tuple extends Array<Value> {}

/** An object of attributes alone: a namespace, or `loop`. */
export class Attributes {
  readonly values: Map<string, Value>;

  constructor(values: Iterable<readonly [string, Value]>) {
    this.values = new Map(values);
  }
}

export type Callable = (args: readonly Value[], keywords: ReadonlyMap<string, Value>) => Value;

/** `undefined` is Jinja's Undefined, `null` Python's None, `bigint` an int beyond 2^53. */
export type Value =
  | undefined
  | null
  | boolean
  | number
  | bigint
  | Float
  | string
  | Value[]
  | Map<Value, Value>
  | Attributes
  | Callable;

/** What the template or its input did wrong; the message is shown to the user as it is. */
export function templateError(message: string): DataError {
  return new DataError(`chat template: ${message}`);
}

/** Plain data as values of a template. Numbers that are whole are ints, as in JSON that has no point. */
export function toValue(data: unknown): Value {
  if (
    data === null ||
    data === undefined ||
    typeof data === 'boolean' ||
    typeof data === 'string' ||
    typeof data === 'bigint'
  ) {
    return data;
  }
  // From 10^21 on JavaScript writes an exponent, which JSON and Python have for floats alone.
  if (typeof data === 'number') return Number.isInteger(data) && Math.abs(data) < 1e21 ? data : new Float(data);
  if (Array.isArray(data)) return data.map(toValue);
  if (data instanceof Map || data instanceof Float) return data as Value;
  if (typeof data === 'object') {
    const given = Object.entries(data).filter(([, value]) => value !== undefined);
    return new Map(given.map(([key, value]) => [key, toValue(value)]));
  }
  throw templateError(`input must be plain data, got a ${typeof data}`);
}

export function typeName(value: Value): string {
  if (value === undefined) return 'Undefined';
  if (value === null) return 'NoneType';
  if (typeof value === 'boolean') return 'bool';
  if (typeof value === 'number' || typeof value === 'bigint') return 'int';
  if (value instanceof Float) return 'float';
  if (typeof value === 'string') return 'str';
  if (Array.isArray(value)) return value instanceof Tuple ? 'tuple' : 'list';
  if (value instanceof Map) return 'dict';
  return value instanceof Attributes ? 'Namespace' : 'function';
}

export function isTruthy(value: Value): boolean {
  if (value instanceof Float) return value.value !== 0;
  if (Array.isArray(value)) return value.length > 0;
  return value instanceof Map ? value.size > 0 : Boolean(value);
}

/** A bool is the int 0 or 1; null for what is no number. */
export function toNumber(value: Value): number | null {
  if (typeof value === 'number') return value;
  if (typeof value === 'boolean') return Number(value);
  if (typeof value === 'bigint') return Number(value);
  return value instanceof Float ? value.value : null;
}

export function isEqual(left: Value, right: Value): boolean {
  spend();
  const numbers = [toNumber(left), toNumber(right)] as const;
  if (numbers[0] !== null && numbers[1] !== null) return numbers[0] === numbers[1];
  if (Array.isArray(left) && Array.isArray(right)) {
    if (left instanceof Tuple !== right instanceof Tuple) return false;
    return left.length === right.length && left.every((item, index) => isEqual(item, right[index]));
  }
  if (left instanceof Map && right instanceof Map) {
    return (
      left.size === right.size && [...left].every(([key, item]) => right.has(key) && isEqual(item, right.get(key)))
    );
  }
  return left === right;
}

/** Negative, 0 or positive. Throws DataError if Python does not order the two. */
export function compare(left: Value, right: Value): number {
  spend();
  const numbers = [toNumber(left), toNumber(right)] as const;
  if (numbers[0] !== null && numbers[1] !== null) return numbers[0] - numbers[1];
  if (typeof left === 'string' && typeof right === 'string') return compareText(left, right);
  if (Array.isArray(left) && Array.isArray(right)) {
    for (let index = 0; index < Math.min(left.length, right.length); index++) {
      if (!isEqual(left[index], right[index])) return compare(left[index], right[index]);
    }
    return left.length - right.length;
  }
  throw templateError(`'<' not supported between instances of '${typeName(left)}' and '${typeName(right)}'`);
}

function compareText(left: string, right: string): number {
  const [a, b] = [codePoints(left), codePoints(right)];
  const at = a.findIndex((character, index) => character !== b[index]);
  if (at === -1) return a.length - b.length;
  return at >= b.length ? 1 : (a[at]?.codePointAt(0) ?? 0) - (b[at]?.codePointAt(0) ?? 0);
}

/** What `for` goes over. Throws DataError if Python could not. */
export function iterate(value: Value): readonly Value[] {
  if (Array.isArray(value)) return value;
  if (typeof value === 'string') return codePoints(value);
  if (value instanceof Map) {
    spend(value.size);
    return [...value.keys()];
  }
  if (value === undefined) return [];
  throw templateError(`'${typeName(value)}' object is not iterable`);
}

/** `str(value)`, as `{{ value }}` prints it. */
export function toText(value: Value): string {
  if (typeof value === 'string') return value;
  if (value === undefined) return '';
  return represent(value);
}

/** `repr(value)`. */
export function represent(value: Value): string {
  spend();
  if (value === undefined) return 'Undefined';
  if (value === null) return 'None';
  if (typeof value === 'boolean') return value ? 'True' : 'False';
  if (typeof value === 'number' || typeof value === 'bigint') return String(value);
  if (value instanceof Float) return floatText(value.value, 'inf', 'nan');
  if (typeof value === 'string') return representText(value);
  if (value instanceof Tuple) {
    return value.length === 1 ? `(${represent(value[0])},)` : `(${value.map(represent).join(', ')})`;
  }
  if (Array.isArray(value)) return `[${value.map(represent).join(', ')}]`;
  if (value instanceof Map) {
    return `{${[...value].map(([key, item]) => `${represent(key)}: ${represent(item)}`).join(', ')}}`;
  }
  throw templateError(`a ${typeName(value)} has no text`);
}

function representText(text: string): string {
  const quote = text.includes("'") && !text.includes('"') ? '"' : "'";
  let out = '';
  for (const character of spendText(text)) {
    const code = character.codePointAt(0) as number;
    const named = { '\n': '\\n', '\r': '\\r', '\t': '\\t', '\\': '\\\\', [quote]: `\\${quote}` }[character];
    if (named !== undefined) out += named;
    else if (character === ' ' || !/[\p{C}\p{Z}]/u.test(character)) out += character;
    else if (code <= 0xff) out += `\\x${code.toString(16).padStart(2, '0')}`;
    else if (code <= 0xffff) out += `\\u${code.toString(16).padStart(4, '0')}`;
    else out += `\\U${code.toString(16).padStart(8, '0')}`;
  }
  return quote + out + quote;
}

/** The shortest digits that read back as the same number, in Python's notation. */
function floatText(value: number, infinity: string, notANumber: string): string {
  if (Number.isNaN(value)) return notANumber;
  if (!Number.isFinite(value)) return value < 0 ? `-${infinity}` : infinity;
  if (Object.is(value, -0)) return '-0.0';
  const [mantissa = '', exponentText = '0'] = value.toExponential().split('e');
  const exponent = Number(exponentText);
  if (value !== 0 && (exponent < -4 || exponent >= 16)) {
    return `${mantissa}e${exponent < 0 ? '-' : '+'}${String(Math.abs(exponent)).padStart(2, '0')}`;
  }
  const sign = value < 0 ? '-' : '';
  const digits = mantissa.replace(/[-.]/g, '');
  if (exponent < 0) return `${sign}0.${'0'.repeat(-exponent - 1)}${digits}`;
  const whole = digits.slice(0, exponent + 1).padEnd(exponent + 1, '0');
  return `${sign}${whole}.${digits.slice(exponent + 1) || '0'}`;
}

export interface JsonOptions {
  readonly isAscii: boolean;
  /** Text of one level; null writes one line. */
  readonly indent: string | null;
  readonly separators: readonly [item: string, key: string];
  readonly isSorted: boolean;
}

/** `json.dumps(value)`. Throws DataError for what is not JSON. */
export function toJson(value: Value, options: JsonOptions, level = 0): string {
  spend(1 + level * ((options.indent?.length ?? 0) >> 3));
  if (value === null) return 'null';
  if (typeof value === 'boolean' || typeof value === 'number' || typeof value === 'bigint') return String(value);
  if (value instanceof Float) return floatText(value.value, 'Infinity', 'NaN');
  if (typeof value === 'string') return jsonText(value, options.isAscii);
  const isList = Array.isArray(value);
  if (!isList && !(value instanceof Map)) {
    throw templateError(`Object of type ${typeName(value)} is not JSON serializable`);
  }
  const [itemSeparator, keySeparator] = options.separators;
  const parts = isList
    ? value.map((item) => toJson(item, options, level + 1))
    : (options.isSorted ? [...value].sort(([a], [b]) => compare(a, b)) : [...value]).map(
        ([key, item]) => jsonText(jsonKey(key), options.isAscii) + keySeparator + toJson(item, options, level + 1),
      );
  const [open, close] = isList ? '[]' : '{}';
  if (parts.length === 0 || options.indent === null) return open + parts.join(itemSeparator) + close;
  const line = `\n${options.indent.repeat(level)}`;
  return open + line + options.indent + parts.join(itemSeparator + line + options.indent) + line + close;
}

function jsonKey(key: Value): string {
  if (typeof key === 'string') return key;
  if (key === null || toNumber(key) !== null)
    return toJson(key, { isAscii: false, indent: null, separators: ['', ''], isSorted: false });
  throw templateError(`keys must be str, int, float, bool or None, not ${typeName(key)}`);
}

function jsonText(text: string, isAscii: boolean): string {
  const quoted = JSON.stringify(spendText(text));
  if (!isAscii) return quoted;
  return quoted.replace(/[\x7f-\uffff]/g, (unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, '0')}`);
}
