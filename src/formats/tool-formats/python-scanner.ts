/**
 * Reads a Python literal from text that comes in pieces and writes it as JSON: in linear time, without recursion. Layer 1.
 * Source: Python reference, "Literals". Texts, numbers, True, False, None, lists, tuples, and dicts whose keys are texts; JSON's
 * own words for the constants too. Left out, and broken: prefixes of strings, triple quotes, complex numbers, other bases,
 * expressions.
 */
import { maxDepth, type ScanStatus } from './json-scanner.ts';

type State = 'value' | 'firstItem' | 'item' | 'firstKey' | 'key' | 'colon' | 'next' | 'string' | 'escape' | 'atom';

const constants: Readonly<Record<string, string>> = {
  True: 'true',
  False: 'false',
  None: 'null',
  true: 'true',
  false: 'false',
  null: 'null',
};
const escapes: Readonly<Record<string, string>> = {
  '\\': '\\',
  "'": "'",
  '"': '"',
  a: '\x07',
  b: '\b',
  f: '\f',
  n: '\n',
  r: '\r',
  t: '\t',
  v: '\v',
  '\n': '',
};
const hexLengths: Readonly<Record<string, number>> = { x: 2, u: 4, U: 8 };
const number = /^([+-]?)(\d+(?:_\d+)*)?(?:(\.)(\d+(?:_\d+)*)?)?(?:[eE]([+-]?\d+(?:_\d+)*))?$/;
/** Longer ones are no constants or numbers. */
const maxAtom = 512;

export class PythonScanner {
  status: ScanStatus = 'reading';
  #state: State = 'value';
  readonly #closers: (']' | ')' | '}')[] = [];
  #json: string[] = [];
  #isKey = false;
  #quote = '';
  #escape = '';
  #atom = '';

  /** Reads on from `at`; stops behind the value, or at the character that cannot belong to it. */
  read(text: string, at: number): number {
    let place = at;
    while (place < text.length && this.status === 'reading') {
      place = this.#state === 'string' ? this.#readString(text, place) : this.#readChar(text[place] as string, place);
    }
    return place;
  }

  takeJson(): string {
    return this.#json.splice(0).join('');
  }

  #readString(text: string, at: number): number {
    let end = at;
    let char = text[end] as string;
    while (char !== this.#quote && char !== '\\' && char !== '\n') {
      end += 1;
      if (end === text.length) break;
      char = text[end] as string;
    }
    this.#json.push(quoted(text.slice(at, end)));
    if (end === text.length) return end;
    if (char === '\n') return this.#break(end);
    if (char === '\\') return this.#to('escape', end);
    this.#json.push('"');
    if (!this.#isKey) return this.#endValue(end + 1);
    return this.#to('colon', end);
  }

  #readChar(char: string, at: number): number {
    const isSpace = /\s/.test(char);
    switch (this.#state) {
      case 'escape':
        return this.#readEscape(char, at);
      case 'atom':
        if (/[\w.+-]/.test(char) && this.#atom.length < maxAtom) {
          this.#atom += char;
          return at + 1;
        }
        return this.#endAtom(at);
      case 'firstKey':
      case 'key':
        if (isSpace) return at + 1;
        if (char === '}') return this.#close(at);
        return char === '"' || char === "'" ? this.#startString(char, at, true) : this.#break(at);
      case 'colon':
        if (isSpace) return at + 1;
        if (char !== ':') return this.#break(at);
        this.#json.push(': ');
        return this.#to('value', at);
      case 'next':
        if (isSpace) return at + 1;
        if (char === this.#closers.at(-1)) return this.#close(at);
        return char === ',' ? this.#to(this.#closers.at(-1) === '}' ? 'key' : 'item', at) : this.#break(at);
      default:
        if (isSpace) return at + 1;
        return this.#startValue(char, at);
    }
  }

  #startValue(char: string, at: number): number {
    if (this.#state !== 'value' && char === this.#closers.at(-1)) return this.#close(at);
    this.#separate();
    if (char === '[' || char === '(' || char === '{') {
      if (this.#closers.length === maxDepth) return this.#break(at);
      this.#closers.push(char === '[' ? ']' : char === '(' ? ')' : '}');
      this.#json.push(char === '{' ? '{' : '[');
      return this.#to(char === '{' ? 'firstKey' : 'firstItem', at);
    }
    if (char === '"' || char === "'") return this.#startString(char, at, false);
    if (!/[\w.+-]/.test(char)) return this.#break(at);
    this.#atom = char;
    return this.#to('atom', at);
  }

  #startString(quote: string, at: number, isKey: boolean): number {
    if (isKey) this.#separate();
    this.#isKey = isKey;
    this.#quote = quote;
    this.#json.push('"');
    return this.#to('string', at);
  }

  /** The comma is written with what follows it: Python allows one at the end. */
  #separate(): void {
    if (this.#state === 'item' || this.#state === 'key') this.#json.push(', ');
  }

  #readEscape(char: string, at: number): number {
    if (this.#escape === '' && hexLengths[char] !== undefined) {
      this.#escape = char;
      return at + 1;
    }
    if (this.#escape === '') {
      // Python keeps the backslash of an escape that it does not know.
      this.#json.push(quoted(escapes[char] ?? `\\${char}`));
      return this.#to('string', at);
    }
    if (!/[0-9a-fA-F]/.test(char)) return this.#break(at);
    this.#escape += char;
    if (this.#escape.length <= (hexLengths[this.#escape[0] as string] as number)) return at + 1;
    const code = Number.parseInt(this.#escape.slice(1), 16);
    this.#escape = '';
    if (code > 0x10ffff) return this.#break(at);
    this.#json.push(quoted(String.fromCodePoint(code)));
    return this.#to('string', at);
  }

  /** The character behind the atom is read again, unless the atom is the value. */
  #endAtom(at: number): number {
    const json = constants[this.#atom] ?? toJsonNumber(this.#atom);
    if (json === null) return this.#break(at);
    this.#json.push(json);
    return this.#endValue(at);
  }

  #close(at: number): number {
    this.#json.push(this.#closers.pop() === '}' ? '}' : ']');
    return this.#endValue(at + 1);
  }

  #endValue(next: number): number {
    if (this.#closers.length === 0) this.status = 'done';
    this.#state = 'next';
    return next;
  }

  #to(state: State, at: number): number {
    this.#state = state;
    return at + 1;
  }

  #break(at: number): number {
    this.status = 'broken';
    return at;
  }
}

/** A part of a string as JSON writes it, without quotes. */
function quoted(text: string): string {
  return JSON.stringify(text).slice(1, -1);
}

/** Null if it is no number of Python's. A float stays one: `1.` is 1.0. */
function toJsonNumber(atom: string): string | null {
  const [, sign = '', integer, point, fraction, exponent] = number.exec(atom) ?? [];
  if (integer === undefined && fraction === undefined) return null;
  const digits = (integer ?? '0').replaceAll('_', '');
  const isFloat = point !== undefined || exponent !== undefined;
  if (!isFloat && /^0+[1-9]/.test(digits)) return null;
  const whole = digits.replace(/^0+(?=\d)/, '');
  const part = point === undefined ? '' : `.${(fraction ?? '0').replaceAll('_', '')}`;
  return `${sign === '-' ? '-' : ''}${whole}${part}${exponent === undefined ? '' : `e${exponent.replaceAll('_', '')}`}`;
}
