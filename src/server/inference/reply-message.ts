/** From the text of a reply to the message that clients get, piece by piece. Layer 5. */
import type { ToolCall } from '../../core/chat.ts';
import { deriveSeed, type SeedPart } from '../../core/rng.ts';
import {
  createReplyParser,
  type ReplyDelta,
  type ReplyParser,
  type ReplyParserOptions,
} from '../../formats/reply-parser.ts';

export type { ReplyDelta } from '../../formats/reply-parser.ts';

/** What the policy said. */
export interface ReplyMessage {
  readonly content: string;
  readonly reasoning: string | null;
  readonly toolCalls: readonly ToolCall[];
}

export class ReplyMessageBuilder {
  readonly #parser: ReplyParser | null;
  readonly #idSeed: readonly SeedPart[];
  #content = '';
  #reasoning = '';
  readonly #toolCalls: ToolCall[] = [];

  /** `parsing` null: all text is content. `idSeed`: what ids of calls derive from. */
  constructor(parsing: ReplyParserOptions | null, idSeed: readonly SeedPart[]) {
    this.#parser = parsing === null ? null : createReplyParser(parsing);
    this.#idSeed = idSeed;
  }

  get malformedToolCalls(): number {
    return this.#parser?.malformedToolCalls ?? 0;
  }

  /** What the text adds to the message. The first delta of a call has an id. */
  push(text: string): readonly ReplyDelta[] {
    if (text === '') return [];
    if (this.#parser !== null) return this.#parser.push(text).map((delta) => this.#add(delta));
    this.#content += text;
    return [{ type: 'text', text }];
  }

  finish(): readonly ReplyDelta[] {
    return this.#parser === null ? [] : this.#parser.finish().map((delta) => this.#add(delta));
  }

  message(): ReplyMessage {
    return {
      content: this.#content,
      reasoning: this.#reasoning === '' ? null : this.#reasoning,
      toolCalls: this.#toolCalls,
    };
  }

  #add(delta: ReplyDelta): ReplyDelta {
    if (delta.type === 'text') this.#content += delta.text;
    else if (delta.type === 'reasoning') this.#reasoning += delta.text;
    else {
      const call = this.#toolCalls[delta.index];
      if (call !== undefined) {
        this.#toolCalls[delta.index] = { ...call, arguments: call.arguments + delta.argumentsDelta };
        return delta;
      }
      const id = delta.id ?? this.#createId(delta.index);
      const name = delta.name ?? '';
      this.#toolCalls[delta.index] = { id, name, arguments: delta.argumentsDelta };
      return { ...delta, id, name };
    }
    return delta;
  }

  /** Nine letters and digits: templates of Mistral accept no other. */
  #createId(index: number): string {
    const halves = [0, 1].map((half) => deriveSeed(...this.#idSeed, 'tool call', index, half));
    return halves
      .map((seed) => seed.toString(36).padStart(7, '0'))
      .join('')
      .slice(-9);
  }
}
