/**
 * The text of a reply as it is sampled, to content, reasoning and tool calls. Layer 1.
 * However the text is cut into pieces, the deltas join to the same reply. Malformed calls stay text; nothing throws.
 */
import type { ReasoningFormat } from './reasoning-format.ts';
import type { CallReader } from './tool-formats/call-reader.ts';
import { type ToolFormat, type ToolFormatRow, toolFormats } from './tool-formats/tool-format.ts';

export type ReplyDelta =
  | { readonly type: 'text'; readonly text: string }
  | { readonly type: 'reasoning'; readonly text: string }
  /** The first delta of a call has its name, and an id where the policy wrote one. `argumentsDelta`s join to a JSON object. */
  | {
      readonly type: 'toolCall';
      readonly index: number;
      readonly id?: string;
      readonly name?: string;
      readonly argumentsDelta: string;
    };

export interface ReplyParserOptions {
  /** null = no calls are looked for. */
  readonly toolFormat: ToolFormat | null;
  /** Names of the tools that may be called; empty = no calls are looked for. */
  readonly toolNames: readonly string[];
  /** null = no reasoning is looked for. */
  readonly reasoning: ReasoningFormat | null;
  /** The prompt ended with the mark that begins reasoning (`isReasoningOpen`). Default false. */
  readonly isReasoningOpen?: boolean;
  /**
   * Gives arguments while they are sampled. A call that breaks later, or is cut, then stays a call with the arguments so far, and
   * counts as malformed, and an id behind the arguments is left out. By default a call is given when it is complete, and else is text. Formats whose calls begin without a mark
   * are known at the end of the reply alone.
   */
  readonly isArgumentStreamed?: boolean;
}

export interface ReplyParser {
  push(text: string): readonly ReplyDelta[];
  /** What was held back, at the end of the reply. */
  finish(): readonly ReplyDelta[];
  /** Calls so far that were meant as such and could not be read. */
  readonly malformedToolCalls: number;
}

export function createReplyParser(options: ReplyParserOptions): ReplyParser {
  return new Parser(options);
}

/** `reasoningBegin`: behind the mark that begins reasoning; `textStart`: nothing but white space has been read of the text. */
type Stage = 'reasoningStart' | 'reasoningBegin' | 'reasoning' | 'textStart' | 'text' | 'calls';

class Parser implements ReplyParser {
  malformedToolCalls = 0;
  readonly #options: ReplyParserOptions;
  readonly #row: ToolFormatRow | null;
  readonly #toolNames: ReadonlySet<string>;
  #stage: Stage;
  #deltas: ReplyDelta[] = [];
  /** Text that may be the beginning of a mark. */
  #held = '';
  /** White space that counts if text of the same kind follows. */
  #space = '';
  #hasReasoned = false;
  #reader: CallReader | null = null;
  #mark = '';
  /** What the reader has read, behind the mark. */
  #read: string[] = [];
  /** Calls of the readers before, and of this one. */
  #callsBefore = 0;
  #calls = 0;
  #isAfterCall = false;

  constructor(options: ReplyParserOptions) {
    this.#options = options;
    this.#toolNames = new Set(options.toolNames);
    this.#row = options.toolFormat === null || options.toolNames.length === 0 ? null : toolFormats[options.toolFormat];
    if (options.reasoning === null) this.#stage = 'textStart';
    else this.#stage = options.isReasoningOpen ? 'reasoningBegin' : 'reasoningStart';
  }

  push(piece: string): readonly ReplyDelta[] {
    return this.#parse(this.#held + piece, false);
  }

  finish(): readonly ReplyDelta[] {
    const deltas = this.#parse(this.#held, true);
    if (this.#reader !== null) {
      this.#reader.finish();
      this.#takePieces(this.#reader);
    }
    const isText = this.#stage === 'text' || (this.#stage !== 'reasoning' && !this.#hasReasoned);
    if (isText && !this.#isAfterCall) this.#give('text', this.#space);
    this.#space = '';
    return [...deltas, ...this.#takeDeltas()];
  }

  #parse(text: string, isEnd: boolean): readonly ReplyDelta[] {
    this.#held = '';
    for (let at = 0; at < text.length; ) at = this.#step(text, at, isEnd);
    return this.#takeDeltas();
  }

  /** Returns how far it came: at least one character, or to the next stage. */
  #step(text: string, at: number, isEnd: boolean): number {
    switch (this.#stage) {
      case 'reasoningStart':
      case 'reasoningBegin':
        return this.#readReasoningMark(text, at, isEnd);
      case 'reasoning':
        return this.#readReasoning(text, at, isEnd);
      case 'textStart':
        return this.#readTextStart(text, at);
      case 'text':
        return this.#readText(text, at, isEnd);
      default:
        return this.#readCalls(text, at);
    }
  }

  /** A policy may repeat the mark that the prompt ended with. */
  #readReasoningMark(text: string, at: number, isEnd: boolean): number {
    const { begin } = this.#options.reasoning as ReasoningFormat;
    const isBegun = this.#stage === 'reasoningBegin';
    const start = skipSpace(text, at);
    if (!isBegun) this.#space += text.slice(at, start);
    if (start === text.length) return start;
    if (text.startsWith(begin, start)) {
      this.#stage = 'reasoningBegin';
      this.#space = '';
      return start + begin.length;
    }
    if (!isEnd && begin.startsWith(text.slice(start))) return this.#hold(text, start);
    this.#stage = isBegun ? 'reasoning' : 'textStart';
    return start;
  }

  #readReasoning(text: string, at: number, isEnd: boolean): number {
    const { end } = this.#options.reasoning as ReasoningFormat;
    const found = text.indexOf(end, at);
    const stop = found >= 0 ? found : isEnd ? text.length : text.length - openLength(text, at, [end]);
    this.#giveTrimmed('reasoning', text.slice(at, stop));
    if (found < 0) return this.#hold(text, stop);
    this.#space = '';
    this.#hasReasoned = true;
    this.#stage = 'textStart';
    return found + end.length;
  }

  /** White space between reasoning and text is the template's. */
  #readTextStart(text: string, at: number): number {
    const start = skipSpace(text, at);
    if (!this.#hasReasoned) this.#space += text.slice(at, start);
    if (start === text.length) return start;
    this.#stage = 'text';
    if (this.#row !== null && text[start] === this.#row.opening) this.#startCalls(this.#row, '');
    return start;
  }

  #readText(text: string, at: number, isEnd: boolean): number {
    const row = this.#row;
    if (row === null) {
      this.#give('text', this.#space + text.slice(at));
      this.#space = '';
      return text.length;
    }
    const mark = findMark(text, at, row.marks);
    const stop = mark?.start ?? (isEnd ? text.length : text.length - openLength(text, at, row.marks));
    this.#giveTrimmed('text', text.slice(at, stop));
    if (mark === null) return this.#hold(text, stop);
    this.#startCalls(row, mark.text);
    return mark.start + mark.text.length;
  }

  #startCalls(row: ToolFormatRow, mark: string): void {
    const { isArgumentStreamed = false } = this.#options;
    this.#reader = row.createReader({
      toolNames: this.#toolNames,
      isMarked: mark !== '',
      isStreamed: isArgumentStreamed && mark !== '',
    });
    this.#mark = mark;
    this.#read = [];
    this.#callsBefore = this.#calls;
    this.#stage = 'calls';
  }

  #readCalls(text: string, at: number): number {
    const reader = this.#reader as CallReader;
    const end = reader.read(text, at);
    this.#read.push(text.slice(at, end));
    this.#takePieces(reader);
    return end;
  }

  #takePieces(reader: CallReader): void {
    for (const { index, arguments: argumentsDelta, ...named } of reader.takePieces()) {
      const place = this.#callsBefore + index;
      this.#deltas.push({ type: 'toolCall', index: place, ...named, argumentsDelta });
      this.#calls = place + 1;
      this.#isAfterCall = true;
      this.#space = '';
    }
    if (reader.status === 'reading') return;
    this.#reader = null;
    this.#stage = 'text';
    if (reader.status === 'done') return;
    if (reader.isCall) this.malformedToolCalls += 1;
    const read = this.#read.join('');
    this.#giveTrimmed('text', reader.settled === 0 ? this.#mark + read : read.slice(reader.settled));
  }

  /** Keeps white space at the end back. */
  #giveTrimmed(type: 'text' | 'reasoning', text: string): void {
    const trimmed = text.trimEnd();
    if (trimmed !== '') {
      this.#give(type, this.#space + trimmed);
      this.#space = '';
    }
    this.#space += text.slice(trimmed.length);
  }

  #give(type: 'text' | 'reasoning', text: string): void {
    if (text === '') return;
    this.#isAfterCall = false;
    const last = this.#deltas.at(-1);
    if (last?.type === type) this.#deltas[this.#deltas.length - 1] = { type, text: last.text + text };
    else this.#deltas.push({ type, text });
  }

  #hold(text: string, from: number): number {
    this.#held = text.slice(from);
    return text.length;
  }

  #takeDeltas(): readonly ReplyDelta[] {
    return this.#deltas.splice(0);
  }
}

function skipSpace(text: string, at: number): number {
  let end = at;
  while (end < text.length && /\s/.test(text[end] as string)) end += 1;
  return end;
}

function findMark(text: string, from: number, marks: readonly string[]): { start: number; text: string } | null {
  for (let start = from; start < text.length; start++) {
    const mark = marks.find((candidate) => text.startsWith(candidate, start));
    if (mark !== undefined) return { start, text: mark };
  }
  return null;
}

/** Length of the longest end of `text`, not before `from`, that begins a mark. */
function openLength(text: string, from: number, marks: readonly string[]): number {
  const longest = Math.min(text.length - from, Math.max(...marks.map((mark) => mark.length)) - 1);
  for (let length = longest; length > 0; length--) {
    const end = text.slice(text.length - length);
    if (marks.some((mark) => mark.startsWith(end))) return length;
  }
  return 0;
}
