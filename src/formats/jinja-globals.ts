/**
 * Functions that transformers and jinja2 give to every template. Layer 1.
 * Source: jinja2 defaults.py; transformers utils/chat_template_utils.py. Left out: lipsum, cycler, joiner.
 */
import { spend } from './jinja-budget.ts';
import { Attributes, type Callable, iterate, templateError, toNumber, toText, type Value } from './jinja-values.ts';

/** `now` is what `strftime_now` writes, in local time. */
export function globals(now: Date): readonly (readonly [string, Value])[] {
  return [
    ['true', true],
    ['false', false],
    ['none', null],
    ['True', true],
    ['False', false],
    ['None', null],
    ['namespace', (args, keywords) => new Attributes(entriesOf(args, keywords))],
    ['dict', (args, keywords) => new Map<Value, Value>(entriesOf(args, keywords))],
    ['range', range],
    ['raise_exception', raiseException],
    ['strftime_now', ([format]) => formatTime(now, toText(format))],
  ];
}

const raiseException: Callable = ([message]) => {
  throw templateError(toText(message));
};

function entriesOf(args: readonly Value[], keywords: ReadonlyMap<string, Value>): [string, Value][] {
  const [source] = args;
  const given: readonly Value[] = source instanceof Map ? [...source].map((entry) => [...entry]) : iterate(source);
  const pairs = given.map((pair): [string, Value] => [toText(iterate(pair)[0]), iterate(pair)[1]]);
  return [...pairs, ...keywords];
}

const range: Callable = (args) => {
  const numbers = args.map((arg) => toNumber(arg) ?? Number.NaN);
  const [start = 0, stop = 0, step = 1] = numbers.length === 1 ? [0, numbers[0]] : numbers;
  if (step === 0 || numbers.some((number) => !Number.isInteger(number)))
    throw templateError('range() takes integers, its step not 0');
  const count = Math.max(Math.ceil((stop - start) / step), 0);
  // The sandbox of jinja2 has the same limit.
  if (count > 100_000) throw templateError('range() must have at most 100000 items');
  spend(count);
  return Array.from({ length: count }, (_, index) => start + index * step);
};

const days = ['Sunday', 'Monday', 'Tuesday', 'Wednesday', 'Thursday', 'Friday', 'Saturday'];
const months = 'January February March April May June July August September October November December'.split(' ');

/** `datetime.strftime` in the C locale. Throws DataError for a directive that is not implemented. */
function formatTime(time: Date, format: string): string {
  const pad = (number: number, width = 2): string => String(number).padStart(width, '0');
  const month = months[time.getMonth()] as string;
  const day = days[time.getDay()] as string;
  const hour = time.getHours() % 12 || 12;
  const dayOfYear =
    Math.round(
      (new Date(time.getFullYear(), time.getMonth(), time.getDate(), 12).getTime() -
        new Date(time.getFullYear(), 0, 1, 12).getTime()) /
        86_400_000,
    ) + 1;
  const directives: Readonly<Record<string, string>> = {
    Y: pad(time.getFullYear(), 4),
    y: pad(time.getFullYear() % 100),
    m: pad(time.getMonth() + 1),
    d: pad(time.getDate()),
    e: String(time.getDate()).padStart(2, ' '),
    B: month,
    b: month.slice(0, 3),
    h: month.slice(0, 3),
    A: day,
    a: day.slice(0, 3),
    w: String(time.getDay()),
    u: String(time.getDay() || 7),
    j: pad(dayOfYear, 3),
    H: pad(time.getHours()),
    I: pad(hour),
    M: pad(time.getMinutes()),
    S: pad(time.getSeconds()),
    p: time.getHours() < 12 ? 'AM' : 'PM',
    F: `${pad(time.getFullYear(), 4)}-${pad(time.getMonth() + 1)}-${pad(time.getDate())}`,
    T: `${pad(time.getHours())}:${pad(time.getMinutes())}:${pad(time.getSeconds())}`,
    R: `${pad(time.getHours())}:${pad(time.getMinutes())}`,
    D: `${pad(time.getMonth() + 1)}/${pad(time.getDate())}/${pad(time.getFullYear() % 100)}`,
    n: '\n',
    t: '\t',
    '%': '%',
  };
  // glibc: a minus takes the padding away.
  return format.replaceAll(/%(-?)([a-zA-Z%])/g, (all, minus: string, letter: string) => {
    const text = directives[letter];
    if (text === undefined) throw templateError(`strftime_now must use known directives, got ${all}`);
    return minus === '' ? text : text.replace(/^[0 ]+(?=.)/, '');
  });
}
