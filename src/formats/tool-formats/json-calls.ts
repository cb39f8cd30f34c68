/**
 * Calls written as JSON objects, alone, as a list, or one after another. Layer 1.
 *   hermes       <tool_call>{"name": …, "arguments": {…}}</tool_call>
 *   smollm       <tool_call>[{"name": …, "arguments": {…}}, …]</tool_call>
 *   mistral      [TOOL_CALLS][{"name": …, "arguments": {…}, "id": "9 letters or digits"}, …]
 *   llama3_json  {"name": …, "parameters": {…}}; {"name": …, "parameters": {…}}
 * Source: chat templates of Qwen2.5, SmolLM2, Mistral 7B v0.3 and Llama 3.1; vLLM vllm/tool_parsers.
 */
import type { CallPiece, CallReader, ReaderOptions } from './call-reader.ts';
import { JsonScanner } from './json-scanner.ts';

export interface JsonCallSyntax {
  readonly shape: 'object' | 'list' | 'objectOrList';
  readonly argumentKeys: readonly string[];
  /** Closes the calls. At the end of a reply it may be missing, since some policies stop before it. */
  readonly end: string | null;
  /** Stands between calls that are no list; they then go on to the end of the reply. */
  readonly separator: string | null;
}

/** What may come next, outside the objects. */
type Place = 'start' | 'object' | 'firstItem' | 'item' | 'nextItem' | 'nextObject' | 'end';

const space = /\s/;

export class JsonCalls implements CallReader {
  status: CallReader['status'] = 'reading';
  readonly #syntax: JsonCallSyntax;
  readonly #options: ReaderOptions;
  settled = 0;
  /** Characters read so far. */
  #length = 0;
  #place: Place = 'start';
  #isList = false;
  #isEmpty = false;
  #endRead = 0;
  #count = 0;
  #pieces: CallPiece[] = [];
  #scanner = new JsonScanner();
  /** Text of the object that is being read, and what is known of it. */
  #object = '';
  #name: string | null = null;
  /** Characters of its arguments that have been given, with the white space that is held back behind them. */
  #given = 0;
  #space = '';
  #isStreaming = false;

  constructor(syntax: JsonCallSyntax, options: ReaderOptions) {
    this.#syntax = syntax;
    this.#options = options;
  }

  /** Without a mark an object is the JSON of an answer until it has the name of a tool. */
  get isCall(): boolean {
    if (this.#options.isMarked) return !this.#isEmpty;
    return this.#count > 0 || (this.#name !== null && this.#options.toolNames.has(this.#name));
  }

  read(text: string, at: number): number {
    let place = at;
    while (place < text.length && this.status === 'reading') {
      const before = place;
      place =
        this.#place === 'object' ? this.#readObject(text, place) : this.#readBetween(text[place] as string, place);
      this.#length += place - before;
    }
    return place;
  }

  finish(): void {
    if (this.status !== 'reading') return;
    const isOver = this.#isList ? this.#place === 'end' : ['end', 'nextObject', 'item'].includes(this.#place);
    this.status = isOver && this.#endRead === 0 ? 'done' : 'broken';
  }

  takePieces(): readonly CallPiece[] {
    return this.#options.isStreamed || this.status === 'done' ? this.#pieces.splice(0) : [];
  }

  #readObject(text: string, at: number): number {
    const scanner = this.#scanner;
    const wasOpen = scanner.openField;
    const end = scanner.read(text, at);
    const read = text.slice(at, end);
    this.#object += read;
    if (this.#name === null && scanner.fields.has('name')) {
      const name = this.#valueOf('name');
      this.#name = typeof name === 'string' ? name : '';
    }
    const isNext = wasOpen === null && scanner.openField !== null;
    if (this.#options.isStreamed) {
      if (isNext) this.#startStream(scanner.openField?.key ?? '', read);
      else if (this.#isStreaming && scanner.openField !== null) this.#stream(read, end - at);
      else if (this.#isStreaming && wasOpen !== null) this.#endStream(wasOpen.key, end - at - 1);
    }
    if (scanner.status === 'broken') this.status = 'broken';
    else if (scanner.status === 'done') this.#endObject(end - at);
    return end;
  }

  /** Arguments that begin before the name is known are given when the object is complete. */
  #startStream(key: string, read: string): void {
    if (!read.endsWith('{') || !this.#syntax.argumentKeys.includes(key) || !this.#isNameValid()) return;
    const id = this.#valueOf('id');
    const start = { index: this.#count, name: this.#name as string, arguments: '{' };
    this.#give(typeof id === 'string' ? { ...start, id } : start, read.length);
    this.#isStreaming = true;
  }

  #stream(read: string, length: number): void {
    const trimmed = read.trimEnd();
    const space = read.slice(trimmed.length);
    if (trimmed !== '') {
      this.#give({ index: this.#count, arguments: this.#space + trimmed }, length - space.length);
      this.#space = '';
    }
    this.#space += space;
  }

  #endStream(key: string, read: number): void {
    const rest = this.#textOf(key).slice(this.#given);
    if (rest !== '') this.#give({ index: this.#count, arguments: rest }, read);
    this.#isStreaming = false;
  }

  #isNameValid(): boolean {
    if (this.#name === null || this.#name === '') return false;
    return this.#options.isMarked || this.#options.toolNames.has(this.#name);
  }

  /** `read` characters of the object have been read since `#length` was counted. */
  #give(piece: CallPiece, read: number): void {
    this.#pieces.push(piece);
    this.#given += piece.arguments.length;
    if (this.#options.isStreamed) this.settled = this.#length + read;
  }

  #endObject(read: number): void {
    const keys = this.#syntax.argumentKeys.filter((key) => this.#scanner.fields.has(key));
    const written = keys.length === 1 ? this.#textOf(keys[0] as string) : '';
    if (!this.#isNameValid() || !written.startsWith('{')) {
      this.status = 'broken';
      return;
    }
    if (this.#given === 0) {
      const id = this.#valueOf('id');
      const call = { index: this.#count, name: this.#name as string, arguments: written };
      this.#give(typeof id === 'string' ? { ...call, id } : call, read);
    } else this.settled = this.#length + read;
    this.#count += 1;
    this.#scanner = new JsonScanner();
    this.#object = '';
    this.#name = null;
    this.#given = 0;
    this.#space = '';
    this.#place = this.#isList ? 'nextItem' : this.#syntax.separator === null ? 'end' : 'nextObject';
  }

  #textOf(key: string): string {
    const span = this.#scanner.fields.get(key);
    return span === undefined ? '' : this.#object.slice(span.start, span.end).trim();
  }

  /** Undefined unless it is a string. */
  #valueOf(key: string): unknown {
    const written = this.#textOf(key);
    return written.startsWith('"') ? JSON.parse(written) : undefined;
  }

  #readBetween(char: string, at: number): number {
    const { end, shape, separator } = this.#syntax;
    if (this.#endRead === 0 && space.test(char)) return at + 1;
    switch (this.#place) {
      case 'start':
        this.#isList = char === '[';
        if (char === '[' && shape !== 'object') return this.#to('firstItem', at);
        return char === '{' && shape !== 'list' ? this.#startObject(at) : this.#break(at);
      case 'firstItem':
      case 'item':
        this.#isEmpty = char === ']' && this.#place === 'firstItem';
        return char === '{' ? this.#startObject(at) : this.#break(at);
      case 'nextItem':
        if (char === ',') return this.#to('item', at);
        if (char !== ']') return this.#break(at);
        if (end === null) this.status = 'done';
        return this.#to('end', at);
      case 'nextObject':
        return char === separator ? this.#to('item', at) : this.#break(at);
      default:
        if (char !== end?.[this.#endRead]) return this.#break(at);
        this.#endRead += 1;
        if (this.#endRead === end.length) this.status = 'done';
        return at + 1;
    }
  }

  /** The brace is left for the scanner. */
  #startObject(at: number): number {
    this.#place = 'object';
    return at;
  }

  #to(place: Place, at: number): number {
    this.#place = place;
    return at + 1;
  }

  #break(at: number): number {
    this.status = 'broken';
    return at;
  }
}
