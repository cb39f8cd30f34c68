/**
 * Mistral's calls: a list of JSON objects, or a name and its arguments. Layer 1.
 *   [TOOL_CALLS][{"name": …, "arguments": {…}, "id": "9 letters or digits"}, …]
 *   [TOOL_CALLS]name[ARGS]{…}     [TOOL_CALLS]name[CALL_ID]id[ARGS]{…}     [TOOL_CALLS]name{…}
 * Source: chat templates of Mistral 7B v0.3 and Mistral Small 3.2; vLLM mistral_tool_parser.py.
 */
import type { CallPiece, CallReader, ReaderOptions } from './call-reader.ts';
import { JsonCalls } from './json-calls.ts';
import { JsonScanner } from './json-scanner.ts';

/** Longer ones are no names. */
const maxHead = 256;

const head = /^\s*([\w.-]+)\s*(?:\[CALL_ID\]\s*([A-Za-z0-9]+)\s*)?(?:\[ARGS\]\s*)?$/;
const headCharacter = /[\w.\-\s[\]]/;

/** Decides by the first character that is no white space. */
export class MistralCalls implements CallReader {
  readonly #options: ReaderOptions;
  #reader: CallReader | null = null;
  /** White space before that character. */
  #skipped = 0;

  constructor(options: ReaderOptions) {
    this.#options = options;
  }

  get status(): CallReader['status'] {
    return this.#reader?.status ?? (this.#isOver ? 'broken' : 'reading');
  }
  #isOver = false;

  get isCall(): boolean {
    return this.#reader?.isCall ?? true;
  }

  get settled(): number {
    const settled = this.#reader?.settled ?? 0;
    return settled === 0 ? 0 : this.#skipped + settled;
  }

  read(text: string, at: number): number {
    let start = at;
    while (this.#reader === null && start < text.length) {
      if (/\s/.test(text[start] as string)) start += 1;
      else if (text[start] === '[') {
        const syntax = { shape: 'list', argumentKeys: ['arguments'], end: null, separator: null } as const;
        this.#reader = new JsonCalls(syntax, this.#options);
      } else this.#reader = new NamedCall(this.#options);
    }
    this.#skipped += start - at;
    return this.#reader === null ? start : this.#reader.read(text, start);
  }

  finish(): void {
    this.#isOver = true;
    this.#reader?.finish();
  }

  takePieces(): readonly CallPiece[] {
    return this.#reader?.takePieces() ?? [];
  }
}

class NamedCall implements CallReader {
  status: CallReader['status'] = 'reading';
  settled = 0;
  readonly isCall = true;
  readonly #isStreamed: boolean;
  readonly #scanner = new JsonScanner();
  #head = '';
  #named: Pick<CallPiece, 'id' | 'name'> | null = null;
  #held: string[] = [];
  #isGiven = false;

  constructor(options: ReaderOptions) {
    this.#isStreamed = options.isStreamed;
  }

  read(text: string, at: number): number {
    let place = at;
    while (place < text.length && this.#named === null && this.status === 'reading') {
      place = this.#readHead(text[place] as string, place);
    }
    while (place < text.length && this.#named !== null && this.status === 'reading') {
      const end = this.#scanner.read(text, place);
      this.#held.push(text.slice(place, end));
      if (this.#scanner.status !== 'reading') this.status = this.#scanner.status;
      place = end;
    }
    return place;
  }

  finish(): void {
    if (this.status === 'reading') this.status = 'broken';
  }

  takePieces(): readonly CallPiece[] {
    if (this.#held.length === 0 || (!this.#isStreamed && this.status !== 'done')) return [];
    const written = this.#held.splice(0).join('');
    const start = this.#isGiven ? {} : this.#named;
    this.#isGiven = true;
    if (this.#isStreamed) this.settled = this.#head.length + this.#scanner.length;
    return [{ index: 0, ...start, arguments: written }];
  }

  /** The brace is left for the scanner. */
  #readHead(char: string, at: number): number {
    if (char === '{') {
      const [, name, id] = head.exec(this.#head) ?? [];
      if (name === undefined) this.status = 'broken';
      else this.#named = { name, ...(id !== undefined && { id }) };
      return at;
    }
    if (this.#head.length === maxHead || !headCharacter.test(char)) {
      this.status = 'broken';
      return at;
    }
    this.#head += char;
    return at + 1;
  }
}
