/**
 * Calls written as a Python list, which is the whole reply: `[look_up(at=1, words=["a"]), other(**{"at": 1})]`. Layer 1.
 * Source: Llama 3.2 and Llama 4 model cards; vLLM pythonic_tool_parser.py. Left out: arguments without names.
 */
import type { CallPiece, CallReader, ReaderOptions } from './call-reader.ts';
import { PythonScanner } from './python-scanner.ts';

type Place =
  | 'start'
  | 'firstName'
  | 'name'
  | 'inName'
  | 'paren'
  | 'firstKey'
  | 'key'
  | 'inKey'
  | 'stars'
  | 'dict'
  | 'equals'
  | 'value'
  | 'nextKey'
  | 'nextCall'
  | 'end';

const word = /[\w.-]/;
/** Longer ones are no names. */
const maxName = 256;

export class PythonCalls implements CallReader {
  status: CallReader['status'] = 'reading';
  settled = 0;
  readonly #options: ReaderOptions;
  readonly #end: string;
  #place: Place = 'start';
  #pieces: CallPiece[] = [];
  #name = '';
  #key = '';
  #keys = new Set<string>();
  #arguments: string[] = [];
  #scanner = new PythonScanner();
  /** All arguments are one dict. */
  #isDict = false;
  #endRead = 0;
  #hasName = false;

  /** `end` may close the list, where the calls have a mark. */
  constructor(options: ReaderOptions, end: string) {
    this.#options = options;
    this.#end = end;
  }

  /** Without a mark a list is text until it has the name of a tool and a parenthesis. */
  get isCall(): boolean {
    return this.#options.isMarked || this.#hasName;
  }

  read(text: string, at: number): number {
    let place = at;
    while (place < text.length && this.status === 'reading') {
      place = this.#place === 'value' ? this.#readValue(text, place) : this.#readChar(text[place] as string, place);
    }
    return place;
  }

  finish(): void {
    if (this.status === 'reading') this.status = this.#place === 'end' && this.#endRead === 0 ? 'done' : 'broken';
  }

  takePieces(): readonly CallPiece[] {
    return this.status === 'done' ? this.#pieces.splice(0) : [];
  }

  #readValue(text: string, at: number): number {
    const end = this.#scanner.read(text, at);
    this.#arguments.push(this.#scanner.takeJson());
    if (this.#scanner.status === 'broken') this.status = 'broken';
    if (this.#scanner.status === 'done') this.#place = 'nextKey';
    return end;
  }

  #readChar(char: string, at: number): number {
    const place = this.#place;
    if (place === 'inName' || place === 'inKey') return this.#readWord(char, at);
    if (this.#endRead === 0 && /\s/.test(char)) return at + 1;
    switch (place) {
      case 'start':
        return char === '[' ? this.#to('firstName', at) : this.#break(at);
      case 'firstName':
      case 'name':
        this.#name = '';
        return word.test(char) ? this.#toWord('inName', at) : this.#break(at);
      case 'paren':
        if (char !== '(' || !(this.#options.isMarked || this.#options.toolNames.has(this.#name)))
          return this.#break(at);
        this.#hasName = true;
        this.#keys = new Set();
        this.#arguments = [];
        this.#isDict = false;
        return this.#to('firstKey', at);
      case 'firstKey':
      case 'key':
        this.#key = '';
        if (char === ')') return this.#endCall(at);
        if (char === '*' && place === 'firstKey') return this.#to('stars', at);
        return word.test(char) ? this.#toWord('inKey', at) : this.#break(at);
      case 'stars':
        return char === '*' ? this.#to('dict', at) : this.#break(at);
      case 'dict':
        this.#isDict = char === '{';
        this.#scanner = new PythonScanner();
        this.#place = 'value';
        return this.#isDict ? at : this.#break(at);
      case 'equals':
        return char === '=' && !this.#keys.has(this.#key) ? this.#startValue(at) : this.#break(at);
      case 'nextKey':
        if (char === ')') return this.#endCall(at);
        return char === ',' && !this.#isDict ? this.#to('key', at) : this.#break(at);
      case 'nextCall':
        if (char === ']') return this.#to('end', at);
        return char === ',' ? this.#to('name', at) : this.#break(at);
      default:
        if (!this.#options.isMarked || char !== this.#end[this.#endRead]) return this.#break(at);
        this.#endRead += 1;
        if (this.#endRead === this.#end.length) this.status = 'done';
        return at + 1;
    }
  }

  #readWord(char: string, at: number): number {
    const isName = this.#place === 'inName';
    if (!word.test(char)) {
      this.#place = isName ? 'paren' : 'equals';
      return at;
    }
    if (isName) this.#name += char;
    else this.#key += char;
    return (isName ? this.#name : this.#key).length > maxName ? this.#break(at) : at + 1;
  }

  #startValue(at: number): number {
    this.#arguments.push(`${this.#keys.size === 0 ? '' : ', '}${JSON.stringify(this.#key)}: `);
    this.#keys.add(this.#key);
    this.#scanner = new PythonScanner();
    return this.#to('value', at);
  }

  #endCall(at: number): number {
    const written = this.#arguments.join('');
    this.#pieces.push({
      index: this.#pieces.length,
      name: this.#name,
      arguments: this.#isDict ? written : `{${written}}`,
    });
    return this.#to('nextCall', at);
  }

  #to(place: Place, at: number): number {
    this.#place = place;
    return at + 1;
  }

  /** The first character is left for `#readWord`. */
  #toWord(place: 'inName' | 'inKey', at: number): number {
    this.#place = place;
    return at;
  }

  #break(at: number): number {
    this.status = 'broken';
    return at;
  }
}
