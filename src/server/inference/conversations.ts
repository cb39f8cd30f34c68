/**
 * Token-exact continuation: the prompt of a later turn is (previous prompt ids + sampled ids + ids of the new suffix). Layer 5.
 * Chat clients send text, so the previous turn is found by what it said: a chain of hashes over the messages, longest first
 * (`conversation-keys.ts`), which sees through what frameworks change in an assistant's message.
 *
 * Two rollouts may have the same text and different ids (the same word sampled as other tokens). A client can say which one
 * it continues: by the header `x-art-rollout` (or the base URL `/rollouts/{id}/v1`), which sees the turns of that rollout
 * alone, or by `art.completion_id` on an assistant message, or by the ids of its tool calls, which the server gave. Then the
 * result depends on nothing else that is served. Without these, the text is all there is: the shortest id sequence wins (what the tokenizer itself would write), then the smallest
 * in lexicographic order. Of the turns stored so far that choice does not depend on their order.
 */
import { hash } from 'node:crypto';
import type { PlainMessage, ToolDefinition } from '../../core/chat.ts';
import type { ChatTemplate, TemplateOptions } from '../../formats/chat-template.ts';
import type { DecoderConfig } from '../../formats/hf-config.ts';
import type { Tokenizer } from '../../formats/tokenizer.ts';
import { type HistoryKeys, historyKeys, joinMessages, joinRows, nextKey } from './conversation-keys.ts';
import type { CompletionRecord } from './served-model.ts';
import { type TemplateInput, toTemplateInput } from './template-input.ts';
import { createTurnStore, type SampledTurn, type TurnStore } from './turn-store.ts';

export interface ConversationsOptions {
  readonly tokenizer: Tokenizer;
  readonly template: ChatTemplate;
  /** Tokens that end a turn beside the template's own. */
  readonly config?: Pick<DecoderConfig, 'eosTokenId'>;
  /** Token ids kept, prompts included; default 8,388,608. The turns that were not used for longest are dropped first. */
  readonly maxTokens?: number;
}

export interface PromptQuery {
  readonly messages: readonly PlainMessage[];
  /** Per message, the completion it says it is. */
  readonly completionIds: readonly (string | null)[];
  readonly rolloutId: string | null;
  /** Whose key it is; null = the local user. */
  readonly keyId: string | null;
  readonly tools: readonly ToolDefinition[];
  /** Further variables of the template. */
  readonly templateVariables: Readonly<Record<string, unknown>>;
}

export interface Prompt {
  readonly ids: readonly number[];
  /** `started`: no turn before this one; `continued`: ids extend a sampled turn; `rerendered`: the whole text was encoded again. */
  readonly origin: 'started' | 'continued' | 'rerendered';
  /** Identifies the message history in `record`. */
  readonly key: string;
  /** The text that `ids` stand for. */
  readonly text: string;
}

export type ConversationCounters = { [K in Prompt['origin']]: number };

export interface Conversations {
  createPrompt(query: PromptQuery): Prompt;
  /** The same prompt for one who only looks at it: not counted. */
  previewPrompt(query: PromptQuery): Prompt;
  /** Remembers a turn: `message` is what the client got. */
  record(prompt: Prompt, message: PlainMessage, record: CompletionRecord): void;
  readonly counters: Readonly<ConversationCounters>;
}

/** First prompts kept encoded: the rollouts of a group share theirs. */
const maxFirstPrompts = 1024;

/** Memory of one model's turns; it is lost with the process. */
export function createConversations(options: ConversationsOptions): Conversations {
  const { tokenizer, template } = options;
  const turns = createTurnStore(options.maxTokens ?? 2 ** 23);
  const firstPrompts = new Map<string, Encoded>();
  const counters: ConversationCounters = { started: 0, continued: 0, rerendered: 0 };
  const render = (query: PromptQuery): string => renderPrompt(template, query);
  const encodeFirst = (query: PromptQuery, key: string): Encoded => {
    const known = firstPrompts.get(key);
    if (known !== undefined) return known;
    const encoded = encodeWhole(render(query));
    const oldest = firstPrompts.size < maxFirstPrompts ? undefined : firstPrompts.keys().next().value;
    if (oldest !== undefined) firstPrompts.delete(oldest);
    firstPrompts.set(key, encoded);
    return encoded;
  };
  const encodeWhole = (text: string): Encoded => ({ text, ids: tokenizer.encode(text) });
  const buildPrompt = (query: PromptQuery): Prompt => {
    const keys = historyKeys(startKey(query), query.messages, template.reasoning);
    const key = keys.each.at(-1) ?? '';
    if (!query.messages.some((message) => message.role === 'assistant')) {
      return { ...encodeFirst(query, key), origin: 'started', key };
    }
    const continued = continueLongest(query, keys, options, turns);
    if (continued === null) return { ...encodeWhole(render(query)), origin: 'rerendered', key };
    return { ...continued, origin: 'continued', key };
  };
  return {
    counters,
    previewPrompt: buildPrompt,
    createPrompt: (query) => {
      const prompt = buildPrompt(query);
      counters[prompt.origin] += 1;
      return prompt;
    },
    record: (prompt, message, record) => {
      const turn = { promptText: prompt.text, promptIds: record.promptIds, tokenIds: record.tokenIds };
      const names = [record.completionId, ...(message.toolCalls ?? []).map(({ id }) => id)];
      turns.put(nextKey(prompt.key, message, template.reasoning), turn, names);
    },
  };
}

function renderPrompt(template: ChatTemplate, query: PromptQuery): string {
  return template.render({ ...templateOptions(template, query, query.messages), addGenerationPrompt: true });
}

/** What the template writes behind the message `last`, an assistant's. */
function renderSuffix(template: ChatTemplate, query: PromptQuery, last: number): string | null {
  const options = templateOptions(template, query, query.messages);
  const previous = templateOptions(template, query, query.messages.slice(0, last + 1));
  return template.renderSuffix(previous.messages, options.messages, options);
}

/** What the template gets for some of the messages. */
function templateOptions(
  template: ChatTemplate,
  { tools, templateVariables }: PromptQuery,
  messages: readonly PlainMessage[],
): TemplateInput & TemplateOptions {
  return { ...toTemplateInput(template, messages, tools), extra: templateVariables };
}

interface Encoded {
  readonly text: string;
  readonly ids: readonly number[];
}

/**
 * Null if no message ends a known turn, or the template does not close it with the end-of-turn token. The template may write an
 * earlier turn otherwise than it was sampled (without its reasoning, with arguments in other spacing): the sampled ids stay.
 */
function continueLongest(
  query: PromptQuery,
  keys: HistoryKeys,
  options: ConversationsOptions,
  turns: TurnStore,
): Encoded | null {
  for (let last = query.messages.length - 1; last >= 0; last--) {
    if (query.messages[last]?.role !== 'assistant') continue;
    const names = namesOf(query, last);
    const turn = turns.find(keys.each[last] as string, names);
    if (turn !== undefined) return continueTurn(query, last, turn, options);
    const joined = keys.joined[last];
    const whole = joined == null ? undefined : turns.find(joined, names);
    if (whole !== undefined) return continueTurn(...joinRow(query, last), whole, options);
  }
  return null;
}

/**
 * The prompt of `query`, whose message `last` is that turn. Turns before it that a framework has split are rendered as one, since some
 * templates refuse two assistants' messages in a row.
 */
function continueTurn(
  given: PromptQuery,
  place: number,
  turn: SampledTurn,
  { tokenizer, template, config }: ConversationsOptions,
): Encoded | null {
  // Of the tokens that may end a turn, the one that this template writes.
  const endId = (template.endOfTurn === null ? null : tokenizer.tokenId(template.endOfTurn)) ?? tokenizer.eosId;
  if (endId === null) return null;
  const start = rowStart(given.messages, place);
  const before = joinRows(given.messages.slice(0, start));
  const query = { ...given, messages: [...before, ...given.messages.slice(start)] };
  const last = place - start + before.length;
  const { content, toolCalls, reasoning } = query.messages[last] as PlainMessage;
  const text = renderPrompt(template, query);
  // One rendering where the text begins with the very prompt and reply of that turn; `renderSuffix` needs two more.
  const sampled = turn.promptText + content + tokenizer.tokenText(endId);
  const isPlain = toolCalls === undefined && reasoning === undefined && text.startsWith(sampled);
  const suffix = isPlain ? text.slice(sampled.length) : renderSuffix(template, query, last);
  if (suffix === null) return null;
  const lastId = turn.tokenIds.at(-1);
  const isEnded = lastId === endId || (lastId !== undefined && config?.eosTokenId.includes(lastId));
  const end = isEnded ? [] : [endId];
  return { text, ids: turn.promptIds.concat(turn.tokenIds, end, tokenizer.encode(suffix, { afterId: endId })) };
}

/** The query with the assistants' messages that end at `last` as one, and the place of that one. */
function joinRow(query: PromptQuery, last: number): [PromptQuery, number] {
  const { messages } = query;
  const first = rowStart(messages, last);
  const joined = joinMessages(messages.slice(first, last + 1));
  return [{ ...query, messages: [...messages.slice(0, first), joined, ...messages.slice(last + 1)] }, first];
}

/** Where the assistants' messages in a row that end at `last` start. */
function rowStart(messages: readonly PlainMessage[], last: number): number {
  let first = last;
  while (messages[first - 1]?.role === 'assistant') first -= 1;
  return first;
}

/** The completions that the messages up to `last` say they are, then the ids of their calls: of a turn that was split any may tell. */
function namesOf({ messages, completionIds }: PromptQuery, last: number): readonly string[] {
  const first = rowStart(messages, last);
  const completions = completionIds.slice(first, last + 1).filter((id) => id !== null);
  const calls = messages.slice(first, last + 1).flatMap(({ toolCalls = [] }) => toolCalls.map(({ id }) => id));
  return [...completions.reverse(), ...calls.reverse()];
}

/**
 * The history before the messages: whose it is, and whatever else the template renders. Sampled ids hold more than the text that a client
 * must know to continue them (reasoning), so nobody continues those of another key.
 */
function startKey(query: PromptQuery): string {
  const { rolloutId, keyId, tools, templateVariables } = query;
  const isPlain = keyId === null && tools.length === 0 && Object.keys(templateVariables).length === 0;
  if (isPlain) return rolloutId ?? '';
  const parts = [rolloutId, tools, templateVariables, ...(keyId === null ? [] : [keyId])];
  return hash('sha256', JSON.stringify(parts), 'base64');
}
