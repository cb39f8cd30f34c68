/**
 * Items of OpenAI's Responses API on their way in, and the chat messages they stand for. Layer 0.
 * Source: OpenAI API reference, "Create a model response". Left out: every item that is not text, a function call or its output;
 * they are refused by name.
 */
import * as z from 'zod';
import type { PlainMessage, ToolCall } from '../core/chat.ts';
import { refuse } from './errors.ts';
import type { KnownMessage } from './known-message.ts';

const status = z.enum(['in_progress', 'completed', 'incomplete']).nullish();
const id = z.string().nullish();

const textPart = z.strictObject({
  type: z.enum(['input_text', 'output_text'], { error: 'must be input_text or output_text: only text is supported' }),
  text: z.string(),
  // Of an output text that is sent back.
  annotations: z.array(z.unknown()).max(0).nullish(),
  logprobs: z.array(z.unknown()).nullish(),
  // Where a prompt cache of OpenAI's ends: changes no token.
  prompt_cache_breakpoint: z.unknown().optional(),
});

const textContent = z.union([z.string(), z.array(textPart)], { error: 'must be a string or a list of text parts' });

const messageItem = z.strictObject({
  type: z.literal('message'),
  role: z.enum(['system', 'developer', 'user', 'assistant']),
  content: textContent,
  id,
  status,
  // Commentary or final answer: OpenAI's models alone are trained to tell them apart.
  phase: z.enum(['commentary', 'final_answer']).nullish(),
});

const direct = z.strictObject({ type: z.literal('direct') }).nullish();

const functionCallItem = z.strictObject({
  type: z.literal('function_call'),
  call_id: z.string().min(1),
  name: z.string().min(1),
  arguments: z.string(),
  id,
  status,
  caller: direct,
  namespace: z.null().optional(),
});

const functionCallOutputItem = z.strictObject({
  type: z.literal('function_call_output'),
  call_id: z.string().min(1),
  output: textContent,
  id,
  status,
  caller: direct,
});

const reasoningItem = z.strictObject({
  type: z.literal('reasoning'),
  id,
  status,
  summary: z.array(z.strictObject({ type: z.literal('summary_text'), text: z.string() })).nullish(),
  content: z.array(z.strictObject({ type: z.literal('reasoning_text'), text: z.string() })).nullish(),
  encrypted_content: z.string().nullish(),
});

const itemReference = z.strictObject({ type: z.literal('item_reference'), id: z.string().min(1) });

const itemTypes = 'message, function_call, function_call_output, reasoning, item_reference';

/** OpenAI lets the type of messages and of references go without saying. */
function nameType(item: unknown): unknown {
  if (typeof item !== 'object' || item === null) return item;
  const { type, ...rest } = item as { type?: unknown };
  if (type != null) return item;
  if ('role' in rest) return { type: 'message', ...rest };
  return 'id' in rest && Object.keys(rest).length === 1 ? { type: 'item_reference', ...rest } : item;
}

const inputItem = z.preprocess(
  nameType,
  z.discriminatedUnion('type', [messageItem, functionCallItem, functionCallOutputItem, reasoningItem, itemReference], {
    error: `must be one of ${itemTypes}`,
  }),
);
export type ResponseInputItem = z.infer<typeof inputItem>;
export type ItemReference = z.infer<typeof itemReference>;

export const responseInput = z.union([z.string(), z.array(inputItem).min(1)], {
  error: 'must be a string or a list of items',
});

/** Ids of items name the response that they belong to: `msg_…_0` is of `resp_…`. Null if the server did not make this id. */
export function responseIdOfItem(itemId: string): string | null {
  const match = /^(?:msg|rs|fc)_([0-9a-f]{32})_\d+$/.exec(itemId);
  return match === null ? null : `resp_${match[1]}`;
}

export function itemId(kind: 'msg' | 'rs' | 'fc', responseId: string, index: number): string {
  return `${kind}_${responseId.slice('resp_'.length)}_${index}`;
}

/**
 * The chat messages that items stand for: what a policy said in one turn (reasoning, text, calls) becomes one message. Throws
 * ApiError 400 for an `item_reference`, which must have been replaced.
 */
export function toMessages(items: readonly ResponseInputItem[]): readonly KnownMessage[] {
  const messages: KnownMessage[] = [];
  let turn: AssistantTurn | null = null;
  const closeTurn = (): void => {
    if (turn !== null) messages.push(turn.close());
    turn = null;
  };
  for (const item of items) {
    if (item.type === 'function_call_output') {
      closeTurn();
      const message: PlainMessage = { role: 'tool', content: textOf(item.output), tool_call_id: item.call_id };
      messages.push({ message, completionId: null });
    } else if (item.type === 'message' && item.role !== 'assistant') {
      closeTurn();
      messages.push({ message: { role: item.role, content: textOf(item.content) }, completionId: null });
    } else if (item.type === 'item_reference') {
      throw refuse(400, 'invalid_value', `input: item ${item.id} must be one that is stored`, 'input');
    } else {
      const open: AssistantTurn | null = turn;
      if (open !== null && (open as AssistantTurn).isBefore(item)) closeTurn();
      turn ??= new AssistantTurn();
      turn.add(item);
    }
  }
  closeTurn();
  return messages;
}

type AssistantItem = Extract<ResponseInputItem, { type: 'message' | 'function_call' | 'reasoning' }>;

class AssistantTurn {
  #text = '';
  #reasoning = '';
  #lastType: AssistantItem['type'] | null = null;
  #completionId: string | null = null;
  readonly #toolCalls: ToolCall[] = [];

  /** Whether `item` begins another turn: by its id, or because no turn goes on with such an item. */
  isBefore(item: AssistantItem): boolean {
    const itsId = completionIdOf(item);
    if (itsId !== null && this.#completionId !== null) return itsId !== this.#completionId;
    if (item.type === 'message') return this.#lastType === 'message';
    return item.type === 'reasoning' && this.#lastType !== 'reasoning';
  }

  add(item: AssistantItem): void {
    this.#lastType = item.type;
    this.#completionId ??= completionIdOf(item);
    if (item.type === 'message') this.#text += textOf(item.content);
    else if (item.type === 'reasoning') this.#reasoning += reasoningOf(item);
    else this.#toolCalls.push({ id: item.call_id, name: item.name, arguments: item.arguments });
  }

  close(): KnownMessage {
    const message: PlainMessage = {
      role: 'assistant',
      content: this.#text,
      ...(this.#reasoning !== '' && { reasoning: this.#reasoning }),
      ...(this.#toolCalls.length > 0 && { toolCalls: this.#toolCalls }),
    };
    return { message, completionId: this.#completionId };
  }
}

function completionIdOf(item: AssistantItem): string | null {
  return item.id == null ? null : responseIdOfItem(item.id);
}

function textOf(content: z.infer<typeof textContent>): string {
  return typeof content === 'string' ? content : content.map((part) => part.text).join('');
}

/** The whole reasoning where it was sent back, else its summary, which is the same text in answers of this server. */
function reasoningOf(item: z.infer<typeof reasoningItem>): string {
  if (item.content != null && item.content.length > 0) return item.content.map((part) => part.text).join('');
  if (item.encrypted_content != null) return decodeReasoning(item.encrypted_content);
  return (item.summary ?? []).map((part) => part.text).join('');
}

/** For clients that send `encrypted_content` back alone. It hides nothing: `content` has the same text. */
export function encodeReasoning(text: string): string {
  return btoa(encodeURIComponent(text));
}

function decodeReasoning(encoded: string): string {
  try {
    return decodeURIComponent(atob(encoded));
  } catch {
    throw refuse(400, 'invalid_value', 'encrypted_content: must be one that this server wrote', 'input');
  }
}
