/**
 * Methods of Python's str, dict and list that templates call. Layer 1.
 * Source: the Python library reference, "Built-in Types". Left out, and refused by name: formatting, encoding, methods that change
 * their object (the sandbox of transformers refuses those as well).
 */
import { checkLength, spend, spendText } from './jinja-budget.ts';
import {
  type Callable,
  isEqual,
  iterate,
  Tuple,
  templateError,
  toNumber,
  typeName,
  type Value,
} from './jinja-values.ts';

/** White space of `str.strip` and `str.split`: unlike JavaScript's it holds U+001C to U+001F and U+0085, and not U+FEFF. */
export const space = '\\t-\\r\\x1c-\\x20\\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000';
const anySpace = new RegExp(`[${space}]`);
const controls = '\n\r\v\f\x1c-\x1e\x85\u2028\u2029';
const lineEnd = new RegExp(`\r\n|[${controls}]`);
const onlySpace = new RegExp(`^[${space}]+$`);

/** Which ends of a text are stripped. */
type Sides = 'both' | 'left' | 'right';

/** `str.strip`: of white space, or of any of the given characters. */
export function strip(text: string, sides: Sides = 'both', characters: Value = null): string {
  if (characters !== null && characters !== undefined) {
    const given = new Set(textArgument('strip', characters));
    const all = [...text];
    const isKept = (character: string): boolean => !given.has(character);
    const start = sides === 'right' ? 0 : all.findIndex(isKept);
    if (start === -1) return '';
    const end = sides === 'left' ? all.length : all.findLastIndex(isKept) + 1;
    return all.slice(start, Math.max(end, start)).join('');
  }
  let start = 0;
  let end = text.length;
  while (sides !== 'right' && start < end && anySpace.test(text[start] as string)) start += 1;
  while (sides !== 'left' && end > start && anySpace.test(text[end - 1] as string)) end -= 1;
  return text.slice(start, end);
}

/** `str.splitlines()`. */
export function splitLines(text: string): string[] {
  const lines = text.split(lineEnd);
  if (lines.at(-1) === '') lines.pop();
  return lines;
}

/** `separator.join(texts)`. */
export function joinAll(texts: readonly string[], separator: string): string {
  checkLength(texts.reduce((sum, text) => sum + text.length + separator.length, 0));
  return texts.join(separator);
}

/** Letters whose title case is not their upper case. */
const titleCase: Readonly<Record<string, string>> = { Ǆ: 'ǅ', Ǉ: 'ǈ', Ǌ: 'ǋ', Ǳ: 'ǲ' };

/** `str.capitalize`. */
export function capitalize(text: string): string {
  const [first = ''] = text;
  // In one piece: the last sigma of a word has a small letter of its own.
  const rest = text.toLowerCase().slice(first.toLowerCase().length);
  // One letter may have two as its upper case, of which the second stays small: ß, Ss.
  const [head = '', ...tail] = first.toUpperCase();
  return (titleCase[head] ?? head) + tail.join('').toLowerCase() + rest;
}

/** `str.islower` and `str.isupper`: no letter of the other case, and at least one of this. */
export const isLower = (text: string): boolean => /\p{Lowercase}/u.test(text) && !/[\p{Uppercase}\p{Lt}]/u.test(text);
export const isUpper = (text: string): boolean => /\p{Uppercase}/u.test(text) && !/[\p{Lowercase}\p{Lt}]/u.test(text);

type Method<T> = (self: T, args: readonly Value[], keywords: ReadonlyMap<string, Value>) => Value;
type Methods<T> = ReadonlyMap<string, Method<T>>;

function textArgument(method: string, value: Value): string {
  if (typeof value === 'string') return value;
  throw templateError(`${method} arg must be None or str, got ${typeName(value)}`);
}

/** Argument by place or by name; undefined if it is not given. */
function argument(args: readonly Value[], keywords: ReadonlyMap<string, Value>, place: number, name: string): Value {
  return place < args.length ? args[place] : keywords.get(name);
}

function split(text: string, separator: Value, most: Value, isFromRight: boolean): Value[] {
  const limit = most === undefined ? -1 : (toNumber(most) ?? -1);
  const count = limit < 0 ? Number.POSITIVE_INFINITY : limit;
  if (separator === undefined || separator === null) return splitSpace(text, count, isFromRight);
  const given = textArgument('split', separator);
  if (given === '') throw templateError('empty separator');
  const parts = text.split(given);
  if (parts.length <= count + 1) return parts;
  return isFromRight
    ? [parts.slice(0, parts.length - count).join(given), ...parts.slice(parts.length - count)]
    : [...parts.slice(0, count), parts.slice(count).join(given)];
}

/** Where the last word starts; the text has no white space at its end. */
function lastWordStart(text: string): number {
  let start = text.length;
  while (start > 0 && !anySpace.test(text[start - 1] as string)) start -= 1;
  return start;
}

function splitSpace(text: string, count: number, isFromRight: boolean): Value[] {
  const side = isFromRight ? 'right' : 'left';
  const parts: string[] = [];
  let rest = strip(text, side);
  while (rest !== '') {
    const at = parts.length >= count ? -1 : isFromRight ? lastWordStart(rest) : rest.search(anySpace);
    // The part that is not split further keeps the white space at its outer end.
    if (at === -1 || (isFromRight && at === 0)) {
      parts.push(rest);
      break;
    }
    parts.push(isFromRight ? rest.slice(at) : rest.slice(0, at));
    rest = strip(isFromRight ? rest.slice(0, at) : rest.slice(at), side);
  }
  return isFromRight ? parts.reverse() : parts;
}

/** `str.replace`. */
export function replace(text: string, old: Value, replacement: Value, most: Value): string {
  const [from, to] = [textArgument('replace', old), textArgument('replace', replacement)];
  const limit = toNumber(most ?? -1) ?? -1;
  let left = limit < 0 ? Number.POSITIVE_INFINITY : limit;
  const parts = from === '' ? ['', ...text, ''] : text.split(from);
  return parts.reduce((joined, part, index) => {
    if (index === 0) return part;
    left--;
    return joined + (left >= 0 ? to : from) + part;
  }, '');
}

/** The range that `start` and `end` of `find`, `startswith` and others select, in code points. */
function part(text: string, args: readonly Value[]): string {
  if (args.length < 2) return text;
  const all = [...text];
  return all.slice(toNumber(args[1]) ?? 0, toNumber(args[2]) ?? all.length).join('');
}

function hasAffix(method: 'startsWith' | 'endsWith'): Method<string> {
  return (text, args) => {
    const [affix] = args;
    const affixes = affix instanceof Tuple ? affix : [affix];
    return affixes.some((item) => part(text, args)[method](textArgument(method.toLowerCase(), item)));
  };
}

function find(text: string, args: readonly Value[], method: 'indexOf' | 'lastIndexOf'): number {
  if ((toNumber(args[1]) ?? 0) > [...text].length) return -1;
  const at = part(text, args)[method](textArgument('find', args[0]));
  const offset = args.length < 2 ? 0 : [...text].slice(0, toNumber(args[1]) ?? 0).length;
  return at === -1 ? -1 : offset + [...part(text, args).slice(0, at)].length;
}

function partition(text: string, separator: Value, isLast: boolean): Value {
  const given = textArgument('partition', separator);
  const at = isLast ? text.lastIndexOf(given) : text.indexOf(given);
  if (at === -1) return Tuple.from(isLast ? ['', '', text] : [text, '', '']);
  return Tuple.from([text.slice(0, at), given, text.slice(at + given.length)]);
}

const all =
  (pattern: RegExp): Method<string> =>
  (text) =>
    text !== '' && [...text].every((character) => pattern.test(character));

const stringMethods: Methods<string> = new Map<string, Method<string>>([
  ['strip', (text, [characters]) => strip(text, 'both', characters)],
  ['lstrip', (text, [characters]) => strip(text, 'left', characters)],
  ['rstrip', (text, [characters]) => strip(text, 'right', characters)],
  ['upper', (text) => text.toUpperCase()],
  ['lower', (text) => text.toLowerCase()],
  ['capitalize', capitalize],
  ['title', (text) => text.replace(/\p{L}+/gu, capitalize)],
  ['startswith', hasAffix('startsWith')],
  ['endswith', hasAffix('endsWith')],
  [
    'split',
    (text, args, keys) => split(text, argument(args, keys, 0, 'sep'), argument(args, keys, 1, 'maxsplit'), false),
  ],
  [
    'rsplit',
    (text, args, keys) => split(text, argument(args, keys, 0, 'sep'), argument(args, keys, 1, 'maxsplit'), true),
  ],
  ['splitlines', (text) => splitLines(text)],
  ['replace', (text, args, keys) => replace(text, args[0], args[1], argument(args, keys, 2, 'count'))],
  ['find', (text, args) => find(text, args, 'indexOf')],
  ['rfind', (text, args) => find(text, args, 'lastIndexOf')],
  ['count', (text, [given]) => text.split(textArgument('count', given)).length - 1],
  [
    'join',
    (text, [items]) =>
      joinAll(
        iterate(items).map((item) => textArgument('join', item)),
        text,
      ),
  ],
  ['partition', (text, [separator]) => partition(text, separator, false)],
  ['rpartition', (text, [separator]) => partition(text, separator, true)],
  [
    'removeprefix',
    (text, [prefix]) =>
      text.startsWith(textArgument('removeprefix', prefix)) ? text.slice((prefix as string).length) : text,
  ],
  [
    'removesuffix',
    (text, [suffix]) =>
      suffix !== '' && text.endsWith(textArgument('removesuffix', suffix))
        ? text.slice(0, -(suffix as string).length)
        : text,
  ],
  ['isdigit', all(/[\p{Nd}²³¹⁰-⁹₀-₉]/u)],
  ['isdecimal', all(/\p{Nd}/u)],
  ['isnumeric', all(/\p{N}/u)],
  ['isalpha', all(/\p{L}/u)],
  ['isalnum', all(/[\p{L}\p{N}]/u)],
  ['isspace', (text) => onlySpace.test(text)],
  ['islower', isLower],
  ['isupper', isUpper],
]);

const dictMethods: Methods<Map<Value, Value>> = new Map<string, Method<Map<Value, Value>>>([
  ['items', (dict) => [...dict].map((entry) => Tuple.from<Value>(entry))],
  ['keys', (dict) => [...dict.keys()]],
  ['values', (dict) => [...dict.values()]],
  ['get', (dict, [key, fallback]) => (dict.has(key) ? dict.get(key) : (fallback ?? null))],
  ['copy', (dict) => new Map(dict)],
]);

const listMethods: Methods<Value[]> = new Map<string, Method<Value[]>>([
  [
    'index',
    (list, [item]) => {
      const at = list.findIndex((other) => isEqual(other, item));
      if (at === -1) throw templateError('list.index(x): x not in list');
      return at;
    },
  ],
  ['count', (list, [item]) => list.filter((other) => isEqual(other, item)).length],
  ['copy', (list) => [...list]],
]);

/** Names that Python's types have and that hide an equal key of a dict; a template that needs one is refused. */
const missing: ReadonlyMap<string, readonly string[]> = new Map([
  [
    'str',
    'casefold center encode expandtabs format format_map index isascii isidentifier isprintable istitle ljust maketrans rindex rjust swapcase translate zfill'.split(
      ' ',
    ),
  ],
  ['dict', 'clear fromkeys pop popitem setdefault update'.split(' ')],
  ['list', 'append clear extend insert pop remove reverse sort'.split(' ')],
]);

/** The method of a value, bound to it; null if Python has none of that name. Throws DataError if it has one that is not implemented. */
export function methodOf(value: Value, name: string): Callable | null {
  const bind = <T extends Value>(self: T, methods: Methods<T>, type: string): Callable | null => {
    const method = methods.get(name);
    if (method !== undefined) {
      return (args, keywords) => {
        if (typeof self === 'string') spendText(self);
        else spend(self instanceof Map ? self.size : (self as Value[]).length);
        const result = method(self, args, keywords);
        return typeof result === 'string' ? spendText(result) : result;
      };
    }
    if (!missing.get(type)?.includes(name)) return null;
    throw templateError(`${type}.${name} is not implemented, only ${[...methods.keys()].join(', ')}`);
  };
  if (typeof value === 'string') return bind(value, stringMethods, 'str');
  if (value instanceof Map) return bind(value, dictMethods, 'dict');
  return Array.isArray(value) ? bind(value, listMethods, 'list') : null;
}
