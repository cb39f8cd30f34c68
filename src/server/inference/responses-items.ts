/**
 * From what a policy says to output items and the events that announce them. Layer 5.
 * Source: OpenAI API reference, "Streaming events" of the Responses API; raw reasoning as its open-weight models give it.
 */
import { encodeReasoning, itemId } from '../../wire/responses-input.ts';
import type { ItemStatus, OutputItem, OutputLogprobs, ResponseEvent } from '../../wire/responses-output.ts';
import type { ReplyDelta } from './generation.ts';
import type { SampledTokens, TokenTexts } from './token-texts.ts';

export interface OutputItemsOptions {
  readonly responseId: string;
  /** null = no logprobs. */
  readonly tokenTexts: TokenTexts | null;
  /** Whether the reasoning is also given as its summary, which is what some clients show. */
  readonly hasSummary: boolean;
  readonly hasEncryptedReasoning: boolean;
}

interface OpenItem {
  readonly kind: 'msg' | 'rs' | 'fc';
  readonly id: string;
  readonly index: number;
  /** Of a function call. */
  readonly call: { readonly index: number; readonly id: string; readonly name: string } | null;
  text: string;
  readonly logprobs: OutputLogprobs[number][];
}

/** At most one item is open at a time: another kind of delta, or another call, closes it. */
export class OutputItems {
  readonly items: OutputItem[] = [];
  readonly #options: OutputItemsOptions;
  #open: OpenItem | null = null;
  /** Tokens since the last text. */
  #pending: OutputLogprobs[number][] = [];

  constructor(options: OutputItemsOptions) {
    this.#options = options;
  }

  add(parts: readonly ReplyDelta[], sampled: SampledTokens): readonly ResponseEvent[] {
    const { tokenTexts } = this.#options;
    if (tokenTexts !== null) this.#pending.push(...tokenTexts.createLogprobs(sampled).content);
    return parts.flatMap((part) => this.#addPart(part));
  }

  /** `isCut`: the reply ran out of tokens. A reply of nothing is an empty message. */
  close(isCut: boolean): readonly ResponseEvent[] {
    const opening = this.#open === null && this.items.length === 0 ? this.#openItem('msg', null) : [];
    if (this.#open?.kind === 'msg') this.#open.logprobs.push(...this.#takePending());
    return [...opening, ...this.#closeItem(isCut ? 'incomplete' : 'completed')];
  }

  #addPart(part: ReplyDelta): readonly ResponseEvent[] {
    if (part.type === 'toolCall') return this.#addCall(part);
    const kind = part.type === 'text' ? 'msg' : 'rs';
    const before = this.#open?.kind === kind ? [] : [...this.#closeItem('completed'), ...this.#openItem(kind, null)];
    const open = this.#open as OpenItem;
    const logprobs = this.#takePending();
    open.text += part.text;
    const place = { item_id: open.id, output_index: open.index, delta: part.text };
    if (kind === 'msg') {
      open.logprobs.push(...logprobs);
      return [...before, { type: 'response.output_text.delta', ...place, content_index: 0, logprobs }];
    }
    const deltas: ResponseEvent[] = [{ type: 'response.reasoning_text.delta', ...place, content_index: 0 }];
    if (this.#options.hasSummary) {
      deltas.push({ type: 'response.reasoning_summary_text.delta', ...place, summary_index: 0 });
    }
    return [...before, ...deltas];
  }

  #addCall(part: Extract<ReplyDelta, { type: 'toolCall' }>): readonly ResponseEvent[] {
    const { index, id = '', name = '', argumentsDelta } = part;
    const isOpen = this.#open?.call?.index === index;
    const before = isOpen ? [] : [...this.#closeItem('completed'), ...this.#openItem('fc', { index, id, name })];
    const open = this.#open as OpenItem;
    this.#takePending();
    if (argumentsDelta === '') return before;
    open.text += argumentsDelta;
    const place = { item_id: open.id, output_index: open.index, delta: argumentsDelta };
    return [...before, { type: 'response.function_call_arguments.delta', ...place }];
  }

  #takePending(): OutputLogprobs[number][] {
    const pending = this.#pending;
    this.#pending = [];
    return pending;
  }

  #openItem(kind: OpenItem['kind'], call: OpenItem['call']): readonly ResponseEvent[] {
    const index = this.items.length;
    const open: OpenItem = {
      kind,
      id: itemId(kind, this.#options.responseId, index),
      index,
      call,
      text: '',
      logprobs: [],
    };
    this.#open = open;
    const events: ResponseEvent[] = [
      {
        type: 'response.output_item.added',
        output_index: index,
        item: { ...this.#item(open, 'in_progress'), ...emptied(kind) },
      },
    ];
    const place = { item_id: open.id, output_index: index };
    if (kind !== 'fc') {
      events.push({ type: 'response.content_part.added', ...place, content_index: 0, part: partOf(open) });
    }
    if (kind === 'rs' && this.#options.hasSummary) {
      const part = { type: 'summary_text', text: '' };
      events.push({ type: 'response.reasoning_summary_part.added', ...place, summary_index: 0, part });
    }
    return events;
  }

  #closeItem(status: ItemStatus): readonly ResponseEvent[] {
    const open = this.#open;
    if (open === null) return [];
    this.#open = null;
    const item = this.#item(open, status);
    this.items.push(item);
    const done: ResponseEvent = { type: 'response.output_item.done', output_index: open.index, item };
    return [...this.#closeContent(open), done];
  }

  #closeContent(open: OpenItem): readonly ResponseEvent[] {
    const { text, call } = open;
    const place = { item_id: open.id, output_index: open.index };
    if (call !== null) {
      return [{ type: 'response.function_call_arguments.done', ...place, name: call.name, arguments: text }];
    }
    const part: ResponseEvent = { type: 'response.content_part.done', ...place, content_index: 0, part: partOf(open) };
    if (open.kind === 'msg') {
      const { logprobs } = open;
      return [{ type: 'response.output_text.done', ...place, content_index: 0, text, logprobs }, part];
    }
    const events: ResponseEvent[] = [{ type: 'response.reasoning_text.done', ...place, content_index: 0, text }, part];
    if (!this.#options.hasSummary) return events;
    const summary = { ...place, summary_index: 0 };
    return [
      ...events,
      { type: 'response.reasoning_summary_text.done', ...summary, text },
      { type: 'response.reasoning_summary_part.done', ...summary, part: { type: 'summary_text', text } },
    ];
  }

  #item(open: OpenItem, status: ItemStatus): OutputItem {
    const { id, text, call } = open;
    if (call !== null) {
      return { type: 'function_call', id, status, call_id: call.id, name: call.name, arguments: text };
    }
    if (open.kind === 'msg') {
      const part = { type: 'output_text' as const, text, annotations: [], logprobs: open.logprobs };
      return { type: 'message', id, status, role: 'assistant', content: [part] };
    }
    return {
      type: 'reasoning',
      id,
      status,
      summary: this.#options.hasSummary ? [{ type: 'summary_text', text }] : [],
      content: [{ type: 'reasoning_text', text }],
      ...(this.#options.hasEncryptedReasoning && { encrypted_content: encodeReasoning(text) }),
    };
  }
}

/** An item is announced without its parts, which are announced by themselves. */
function emptied(kind: OpenItem['kind']): object {
  if (kind === 'msg') return { content: [] };
  return kind === 'rs' ? { content: [], summary: [] } : {};
}

function partOf({ kind, text, logprobs }: OpenItem): object {
  return kind === 'msg'
    ? { type: 'output_text', text, annotations: [], logprobs: [...logprobs] }
    : { type: 'reasoning_text', text };
}
