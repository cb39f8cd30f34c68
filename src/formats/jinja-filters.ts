/**
 * Filters and tests of Jinja. Layer 1.
 * Source: jinja2 3.1 filters.py and tests.py; `tojson` is that of transformers. Left out, and refused by name: filters that write
 * HTML or URLs, wrap text, group, batch, or draw at random.
 */
import { checkLength, codePoints, spend, spendText } from './jinja-budget.ts';
import { capitalize, isLower, isUpper, joinAll, replace, space, splitLines, strip } from './jinja-methods.ts';
import {
  Attributes,
  compare,
  Float,
  isEqual,
  isTruthy,
  iterate,
  represent,
  Tuple,
  templateError,
  toJson,
  toNumber,
  toText,
  typeName,
  type Value,
} from './jinja-values.ts';

/** Arguments of a call: by place, then by the names given. */
class Arguments {
  readonly #args: readonly Value[];
  readonly #keywords: ReadonlyMap<string, Value>;

  constructor(args: readonly Value[], keywords: ReadonlyMap<string, Value>) {
    this.#args = args;
    this.#keywords = keywords;
  }

  get(place: number, name: string, fallback: Value = undefined): Value {
    if (place < this.#args.length) return this.#args[place];
    return this.#keywords.has(name) ? this.#keywords.get(name) : fallback;
  }

  rest(place: number): readonly Value[] {
    return this.#args.slice(place);
  }

  get count(): number {
    return this.#args.length;
  }
}

type Filter = (value: Value, given: Arguments) => Value;
type Test = (value: Value, args: readonly Value[]) => boolean;

/** An attribute of an item by a path such as `function.name` or `0`; undefined where there is none. */
function attributeOf(item: Value, path: Value): Value {
  let value = item;
  for (const name of typeof path === 'number' ? [path] : toText(path).split('.')) {
    if (Array.isArray(value)) value = value.at(Number(name));
    else if (value instanceof Map) value = value.get(name);
    else value = value instanceof Attributes ? value.values.get(String(name)) : undefined;
  }
  return value;
}

function foldCase(value: Value, isSensitive: Value): Value {
  return typeof value === 'string' && !isTruthy(isSensitive) ? value.toLowerCase() : value;
}

function sort(items: readonly Value[], keyOf: (item: Value) => Value, isReversed: Value): Value[] {
  const sign = isTruthy(isReversed) ? -1 : 1;
  return [...items].sort((a, b) => sign * compare(keyOf(a), keyOf(b)));
}

function keyFunction(given: Arguments, place: number, isSensitive: Value): (item: Value) => Value {
  const attribute = given.get(place, 'attribute', null);
  return (item) => foldCase(attribute === null ? item : attributeOf(item, attribute), isSensitive);
}

/** `select`, `reject` and their kind: by a named test of the value, or by its truth. */
function selection(given: Arguments, firstPlace: number): (value: Value) => boolean {
  const [name, ...args] = given.rest(firstPlace);
  if (name === undefined) return isTruthy;
  return (value) => applyTest(toText(name), value, args);
}

// Words begin after white space, hyphens and opening brackets; white space is Python's.
const titleWord = new RegExp(`[^-({\\[<${space}]+`, 'g');

function upperFirst(word: string): string {
  const [first = '', ...rest] = word;
  return first.toUpperCase() + rest.join('').toLowerCase();
}

function toInt(value: Value, fallback: Value): Value {
  if (typeof value === 'bigint') return value;
  const number = toNumber(value);
  if (number !== null && Number.isFinite(number)) return wholeNumber(Math.trunc(number));
  if (typeof value !== 'string') return fallback;
  const text = strip(value).replace(/(?<=\d)_(?=\d)/g, '');
  return /^[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?$/i.test(text) ? wholeNumber(Math.trunc(Number(text))) : fallback;
}

const wholeNumber = (number: number): Value => (Number.isSafeInteger(number) ? number + 0 : BigInt(number));

function toFloat(value: Value, fallback: Value): Value {
  const number = toNumber(value);
  if (number !== null) return new Float(number);
  const isNumber = typeof value === 'string' && /^[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?$/i.test(strip(value));
  return isNumber ? new Float(Number(value)) : fallback;
}

function spaces(count: number): string {
  checkLength(count);
  return ' '.repeat(count);
}

function indent(text: string, given: Arguments): string {
  const width = given.get(0, 'width', 4);
  const prefix = typeof width === 'string' ? width : spaces(toNumber(width) ?? 4);
  const isBlankIndented = isTruthy(given.get(2, 'blank', false));
  const lines = splitLines(`${text}\n`);
  checkLength(text.length + lines.length * prefix.length);
  const indented = lines.map((line, index) => (index > 0 && (line !== '' || isBlankIndented) ? prefix + line : line));
  return (isTruthy(given.get(1, 'first', false)) ? prefix : '') + indented.join('\n');
}

function toJsonFilter(value: Value, given: Arguments): string {
  const indentation = given.get(1, 'indent', null);
  const width = toNumber(indentation);
  const isLined = indentation !== null;
  const separators = given.get(2, 'separators', null);
  const [item, key] = separators === null ? [isLined ? ',' : ', ', ': '] : iterate(separators).map(toText);
  return toJson(value, {
    isAscii: isTruthy(given.get(0, 'ensure_ascii', false)),
    indent: isLined ? (width === null ? toText(indentation) : spaces(width)) : null,
    separators: [item ?? '', key ?? ''],
    isSorted: isTruthy(given.get(3, 'sort_keys', false)),
  });
}

function round(value: Value, given: Arguments): Value {
  const method = toText(given.get(1, 'method', 'common'));
  if (method === 'common' && typeof value === 'number') return value;
  const factor = 10 ** (toNumber(given.get(0, 'precision', 0)) ?? 0);
  const scaled = (toNumber(value) ?? Number.NaN) * factor;
  if (method === 'ceil') return new Float(Math.ceil(scaled) / factor);
  if (method === 'floor') return new Float(Math.floor(scaled) / factor);
  const floor = Math.floor(scaled);
  // Python rounds halves to the even neighbour.
  const isUp = scaled - floor === 0.5 ? floor % 2 !== 0 : scaled - floor > 0.5;
  return new Float((isUp ? floor + 1 : floor) / factor);
}

function mapFilter(value: Value, given: Arguments): Value {
  if (given.count === 0) {
    const attribute = given.get(0, 'attribute');
    const fallback = given.get(1, 'default');
    if (attribute === undefined) throw templateError('map requires a filter argument');
    return iterate(value).map((item) => attributeOf(item, attribute) ?? fallback);
  }
  const [name, ...args] = given.rest(0);
  return iterate(value).map((item) => applyFilter(toText(name), item, args, new Map()));
}

function lengthOf(value: Value): number {
  if (typeof value === 'string') {
    let count = 0;
    for (const _ of value) count += 1;
    return count;
  }
  if (Array.isArray(value)) return value.length;
  if (value instanceof Map) return value.size;
  if (value === undefined) return 0;
  throw templateError(`object of type '${typeName(value)}' has no len()`);
}

function dictItems(value: Value): Value[] {
  if (value === undefined) return [];
  if (!(value instanceof Map)) throw templateError('Can only get item pairs from a mapping.');
  return [...value].map((entry) => Tuple.from<Value>(entry));
}

function dictSort(value: Value, given: Arguments): Value[] {
  const place = toText(given.get(1, 'by', 'key')) === 'value' ? 1 : 0;
  const keyOf = (item: Value): Value => foldCase((item as Tuple)[place], given.get(0, 'case_sensitive', false));
  return sort(dictItems(value), keyOf, given.get(2, 'reverse', false));
}

function unique(value: Value, given: Arguments): Value[] {
  const keyOf = keyFunction(given, 1, given.get(0, 'case_sensitive', false));
  const kept: Value[] = [];
  for (const item of iterate(value)) if (!kept.some((other) => isEqual(keyOf(other), keyOf(item)))) kept.push(item);
  return kept;
}

function extreme(sign: 1 | -1): Filter {
  return (value, given) => {
    const keyOf = keyFunction(given, 1, given.get(0, 'case_sensitive', false));
    return iterate(value).reduce<Value>(
      (best, item, index) => (index > 0 && sign * compare(keyOf(item), keyOf(best)) >= 0 ? best : item),
      undefined,
    );
  };
}

function sum(value: Value, given: Arguments): Value {
  const attribute = given.get(0, 'attribute', null);
  const items = iterate(value).map((item) => (attribute === null ? item : attributeOf(item, attribute)));
  const all = [given.get(1, 'start', 0), ...items];
  const total = all.reduce<number>((before, item) => before + (toNumber(item) ?? Number.NaN), 0);
  return all.some((item) => item instanceof Float) ? new Float(total) : total;
}

const select =
  (isKept: boolean): Filter =>
  (value, given) => {
    const isSelected = selection(given, 0);
    return iterate(value).filter((item) => isSelected(item) === isKept);
  };

const selectAttribute =
  (isKept: boolean): Filter =>
  (value, given) => {
    const isSelected = selection(given, 1);
    return iterate(value).filter((item) => isSelected(attributeOf(item, given.get(0, 'attribute'))) === isKept);
  };

const withDefault: Filter = (value, given) => {
  const isReplaced = value === undefined || (isTruthy(given.get(1, 'boolean', false)) && !isTruthy(value));
  return isReplaced ? given.get(0, 'default_value', '') : value;
};

const filters: ReadonlyMap<string, Filter> = new Map<string, Filter>([
  [
    'abs',
    (value) => (value instanceof Float ? new Float(Math.abs(value.value)) : Math.abs(toNumber(value) ?? Number.NaN)),
  ],
  [
    'attr',
    (value, given) => (value instanceof Attributes ? value.values.get(toText(given.get(0, 'name'))) : undefined),
  ],
  ['capitalize', (value) => capitalize(toText(value))],
  ['count', lengthOf],
  ['d', withDefault],
  ['default', withDefault],
  ['dictsort', dictSort],
  ['first', (value) => iterate(value)[0]],
  ['float', (value, given) => toFloat(value, given.get(0, 'default', new Float(0)))],
  ['indent', (value, given) => indent(toText(value), given)],
  ['int', (value, given) => toInt(value, given.get(0, 'default', 0))],
  ['items', dictItems],
  [
    'join',
    (value, given) => {
      const attribute = given.get(1, 'attribute', null);
      const items = iterate(value).map((item) => (attribute === null ? item : attributeOf(item, attribute)));
      return joinAll(items.map(toText), toText(given.get(0, 'd', '')));
    },
  ],
  ['last', (value) => iterate(value).at(-1)],
  ['length', lengthOf],
  ['list', (value) => [...iterate(value)]],
  ['lower', (value) => toText(value).toLowerCase()],
  ['map', mapFilter],
  ['max', extreme(-1)],
  ['min', extreme(1)],
  ['reject', select(false)],
  ['rejectattr', selectAttribute(false)],
  [
    'replace',
    (value, given) =>
      replace(toText(value), toText(given.get(0, 'old')), toText(given.get(1, 'new')), given.get(2, 'count', -1)),
  ],
  [
    'reverse',
    (value) => (typeof value === 'string' ? codePoints(value).reverse().join('') : [...iterate(value)].reverse()),
  ],
  ['round', round],
  ['safe', (value) => value],
  ['select', select(true)],
  ['selectattr', selectAttribute(true)],
  [
    'sort',
    (value, given) =>
      sort(
        iterate(value),
        keyFunction(given, 2, given.get(1, 'case_sensitive', false)),
        given.get(0, 'reverse', false),
      ),
  ],
  ['string', toText],
  ['sum', sum],
  ['title', (value) => toText(value).replace(titleWord, (word) => upperFirst(word))],
  ['tojson', toJsonFilter],
  ['trim', (value, given) => strip(toText(value), 'both', given.get(0, 'chars', null))],
  ['unique', unique],
  ['upper', (value) => toText(value).toUpperCase()],
]);

const isText = (value: Value): value is string => typeof value === 'string';
const isInteger = (value: Value): boolean => typeof value === 'number' || typeof value === 'bigint';
const equal: Test = (value, [other]) => isEqual(value, other);

const tests: ReadonlyMap<string, Test> = new Map<string, Test>([
  ['boolean', (value) => typeof value === 'boolean'],
  ['callable', (value) => typeof value === 'function'],
  ['defined', (value) => value !== undefined],
  ['divisibleby', (value, [by]) => (toNumber(value) ?? Number.NaN) % (toNumber(by) ?? Number.NaN) === 0],
  ['eq', equal],
  ['equalto', equal],
  ['==', equal],
  ['even', (value) => (toNumber(value) ?? Number.NaN) % 2 === 0],
  ['false', (value) => value === false],
  ['float', (value) => value instanceof Float],
  ['ge', (value, [other]) => compare(value, other) >= 0],
  ['gt', (value, [other]) => compare(value, other) > 0],
  ['in', (value, [all]) => contains(all, value)],
  ['integer', isInteger],
  ['iterable', (value) => value === undefined || isText(value) || Array.isArray(value) || value instanceof Map],
  ['le', (value, [other]) => compare(value, other) <= 0],
  ['lower', (value) => isLower(toText(value))],
  ['lt', (value, [other]) => compare(value, other) < 0],
  ['mapping', (value) => value instanceof Map],
  ['ne', (value, [other]) => !isEqual(value, other)],
  ['!=', (value, [other]) => !isEqual(value, other)],
  ['none', (value) => value === null],
  ['number', (value) => toNumber(value) !== null],
  ['odd', (value) => Math.abs((toNumber(value) ?? Number.NaN) % 2) === 1],
  ['sequence', (value) => isText(value) || Array.isArray(value) || value instanceof Map],
  ['string', isText],
  ['true', (value) => value === true],
  ['undefined', (value) => value === undefined],
  ['upper', (value) => isUpper(toText(value))],
]);

/** `item in all`. Throws DataError if Python could not tell. */
export function contains(all: Value, item: Value): boolean {
  if (typeof all === 'string') {
    if (typeof item === 'string') return all.includes(item);
    throw templateError(`'in <string>' requires string as left operand, not ${typeName(item)}`);
  }
  if (all instanceof Map) return all.has(item);
  return iterate(all).some((other) => isEqual(other, item));
}

/** Throws DataError if there is no such filter. */
export function applyFilter(
  name: string,
  value: Value,
  args: readonly Value[],
  keywords: ReadonlyMap<string, Value>,
): Value {
  checkFilter(name);
  if (typeof value === 'string') spendText(value);
  else spend(Array.isArray(value) ? 1 + value.length : 1);
  const result = (filters.get(name) as Filter)(value, new Arguments(args, keywords));
  return typeof result === 'string' ? spendText(result) : result;
}

/** Throws DataError if there is no such test. */
export function applyTest(name: string, value: Value, args: readonly Value[]): boolean {
  checkTest(name);
  spend();
  return (tests.get(name) as Test)(value, args);
}

export function checkFilter(name: string): void {
  if (!filters.has(name))
    throw templateError(`filter must be one of ${[...filters.keys()].join(', ')}, got ${represent(name)}`);
}

export function checkTest(name: string): void {
  if (!tests.has(name))
    throw templateError(`test must be one of ${[...tests.keys()].join(', ')}, got ${represent(name)}`);
}
