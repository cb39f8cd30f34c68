/**
 * Reads one JSON object from text that comes in pieces: strict, in linear time, without recursion. Layer 1.
 * Source: RFC 8259. Left out: values. The scanner says where the fields of the outer object lie, and `JSON.parse` reads those.
 */

/** Place in the scanned text: the first character is 0, `end` is one behind the last. */
export interface Span {
  readonly start: number;
  readonly end: number;
}

export type ScanStatus = 'reading' | 'done' | 'broken';

/** No tool takes arguments nested deeper; what reads them after us may recurse. */
export const maxDepth = 128;

/** What may come next. */
type State =
  | 'value'
  | 'firstItem'
  | 'firstKey'
  | 'key'
  | 'colon'
  | 'next'
  | 'string'
  | 'escape'
  | 'unicode'
  | 'word'
  | 'sign'
  | 'zero'
  | 'integer'
  | 'point'
  | 'fraction'
  | 'exponent'
  | 'exponentSign'
  | 'exponentDigits';

const endsOfNumbers: ReadonlySet<State> = new Set<State>(['zero', 'integer', 'fraction', 'exponentDigits']);

const isSpace = (char: string): boolean => char === ' ' || char === '\n' || char === '\r' || char === '\t';
const isDigit = (char: string): boolean => char >= '0' && char <= '9';
const words: Readonly<Record<string, string>> = { t: 'rue', f: 'alse', n: 'ull' };

export class JsonScanner {
  status: ScanStatus = 'reading';
  /** Characters read so far. */
  length = 0;
  /** Value of each field of the outer object that is complete. A repeated key breaks the object. */
  readonly fields = new Map<string, Span>();
  /** The field of the outer object that is being read, and where its value starts. */
  openField: { readonly key: string; readonly start: number } | null = null;
  #state: State = 'value';
  readonly #closers: ('}' | ']')[] = [];
  #isKey = false;
  #key = '';
  #word = '';
  #hexDigits = 0;
  #isPaused = false;

  /**
   * Reads `text` from `at`, which must be what follows the text so far. Returns where it stopped: behind the object, at the
   * character that cannot stand there, at the end of the text, or where the value of a field of the outer object begins or ends
   * (behind its first character, and behind the comma or brace that follows it).
   */
  read(text: string, at: number): number {
    let place = at;
    this.#isPaused = false;
    while (place < text.length && this.status === 'reading' && !this.#isPaused) {
      const before = place;
      place = this.#state === 'string' ? this.#readString(text, place) : this.#readChar(text, place);
      this.length += place - before;
    }
    return place;
  }

  /** A run of plain characters of a string, and what ends it. */
  #readString(text: string, at: number): number {
    let end = at;
    let char = text[end] as string;
    while (char !== '"' && char !== '\\' && char >= ' ') {
      end += 1;
      if (end === text.length) break;
      char = text[end] as string;
    }
    const isKept = this.#isKey && this.#closers.length === 1;
    if (isKept) this.#key += text.slice(at, end);
    if (end === text.length) return end;
    if (char < ' ') return this.#break(end);
    if (char === '\\') {
      if (isKept) this.#key += char;
      this.#state = 'escape';
    } else this.#state = this.#isKey ? 'colon' : 'next';
    return end + 1;
  }

  #isRepeated(): boolean {
    return this.#closers.length === 1 && this.fields.has(keyOf(this.#key));
  }

  #readChar(text: string, at: number): number {
    const char = text[at] as string;
    switch (this.#state) {
      case 'value':
      case 'firstItem':
        if (isSpace(char)) return at + 1;
        if (this.#state === 'firstItem' && char === ']') return this.#close(at);
        return this.#startValue(char, at);
      case 'firstKey':
      case 'key':
        if (isSpace(char)) return at + 1;
        if (this.#state === 'firstKey' && char === '}') return this.#close(at);
        if (char !== '"') return this.#break(at);
        this.#isKey = true;
        this.#key = '';
        return this.#to('string', at);
      case 'colon':
        if (isSpace(char)) return at + 1;
        return char === ':' && !this.#isRepeated() ? this.#to('value', at) : this.#break(at);
      case 'next':
        return this.#readNext(char, at);
      case 'escape':
      case 'unicode':
        return this.#readEscape(char, at);
      case 'word':
        if (char !== this.#word[0]) return this.#break(at);
        this.#word = this.#word.slice(1);
        return this.#to(this.#word === '' ? 'next' : 'word', at);
      default:
        return this.#readNumber(char, at);
    }
  }

  #startValue(char: string, at: number): number {
    const isOuter = this.#closers.length === 0;
    if (this.#closers.length === 1 && this.#closers[0] === '}') {
      this.openField = { key: this.#key, start: this.length };
      this.#isPaused = true;
    }
    if (char === '{' || (char === '[' && !isOuter)) {
      if (this.#closers.length === maxDepth) return this.#break(at);
      this.#closers.push(char === '{' ? '}' : ']');
      return this.#to(char === '{' ? 'firstKey' : 'firstItem', at);
    }
    if (isOuter) return this.#break(at);
    if (char === '"') {
      this.#isKey = false;
      return this.#to('string', at);
    }
    if (char === '-') return this.#to('sign', at);
    if (isDigit(char)) return this.#to(char === '0' ? 'zero' : 'integer', at);
    this.#word = words[char] ?? '';
    return this.#word === '' ? this.#break(at) : this.#to('word', at);
  }

  #readNext(char: string, at: number): number {
    if (isSpace(char)) return at + 1;
    const closer = this.#closers.at(-1);
    if (char === closer) return this.#close(at);
    if (char !== ',') return this.#break(at);
    this.#endField();
    return this.#to(closer === '}' ? 'key' : 'value', at);
  }

  #close(at: number): number {
    if (this.#closers.length === 1) {
      this.#endField();
      this.status = 'done';
    }
    this.#closers.pop();
    this.#state = 'next';
    return at + 1;
  }

  /** White space behind a value counts as part of it. */
  #endField(): void {
    if (this.#closers.length !== 1 || this.openField === null) return;
    this.fields.set(keyOf(this.openField.key), { start: this.openField.start, end: this.length });
    this.openField = null;
    this.#isPaused = true;
  }

  #readEscape(char: string, at: number): number {
    const isKept = this.#isKey && this.#closers.length === 1;
    if (this.#state === 'unicode') {
      if (!/[0-9a-fA-F]/.test(char)) return this.#break(at);
      if (isKept) this.#key += char;
      this.#hexDigits -= 1;
      return this.#to(this.#hexDigits === 0 ? 'string' : 'unicode', at);
    }
    if (!'"\\/bfnrtu'.includes(char)) return this.#break(at);
    if (isKept) this.#key += char;
    this.#hexDigits = 4;
    return this.#to(char === 'u' ? 'unicode' : 'string', at);
  }

  #readNumber(char: string, at: number): number {
    const state = this.#state;
    if (isDigit(char)) {
      if (state === 'zero') return this.#break(at);
      if (state === 'sign') return this.#to(char === '0' ? 'zero' : 'integer', at);
      if (state === 'point' || state === 'fraction') return this.#to('fraction', at);
      return this.#to(state === 'integer' ? 'integer' : 'exponentDigits', at);
    }
    if (char === '.' && (state === 'zero' || state === 'integer')) return this.#to('point', at);
    const hasMantissa = state === 'zero' || state === 'integer' || state === 'fraction';
    if ((char === 'e' || char === 'E') && hasMantissa) return this.#to('exponent', at);
    if ((char === '+' || char === '-') && state === 'exponent') return this.#to('exponentSign', at);
    if (!endsOfNumbers.has(state)) return this.#break(at);
    this.#state = 'next';
    return at;
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

function keyOf(written: string): string {
  return written.includes('\\') ? (JSON.parse(`"${written}"`) as string) : written;
}
