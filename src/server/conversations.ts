/**
 * Token-exact continuation: the prompt of a later turn is (previous prompt ids + sampled ids + ids of the new suffix). Layer 5.
 * Chat clients send text, so the previous turn is found by its text: a chain of hashes over the messages, longest first.
 *
 * Two rollouts may have the same text and different ids (the same word sampled as other tokens). A client can say which one
 * it continues: by the header `x-art-rollout` (or the base URL `/rollouts/{id}/v1`), which sees the turns of that rollout
 * alone, or by `art.completion_id` on an assistant message. Then the result depends on nothing else that is served. Without
 * either, the text is all there is: the shortest id sequence wins (what the tokenizer itself would write), then the smallest
 * in lexicographic order. Of the turns stored so far that choice does not depend on their order.
 */
import { hash } from 'node:crypto';
import type { PlainMessage, ToolDefinition } from '../core/chat.ts';
import type { ChatTemplate, TemplateOptions } from '../formats/chat-template.ts';
import type { Tokenizer } from '../formats/tokenizer.ts';
import type { CompletionRecord } from './served-model.ts';
import { type TemplateInput, toTemplateInput } from './template-input.ts';

export interface ConversationsOptions {
  readonly tokenizer: Tokenizer;
  readonly template: ChatTemplate;
  /** Token ids kept, prompts included; default 8,388,608. The turns that were not used for longest are dropped first. */
  readonly maxTokens?: number;
}

export interface PromptQuery {
  readonly messages: readonly PlainMessage[];
  /** Per message, the completion it says it is. */
  readonly completionIds: readonly (string | null)[];
  readonly rolloutId: string | null;
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

/** One id sequence of a text history. Arrays are those of the completion record, not copies. */
interface Turn {
  readonly promptText: string;
  readonly promptIds: readonly number[];
  readonly tokenIds: readonly number[];
  readonly completionIds: Set<string>;
}

/** Greedy sampling of one prompt may repeat a turn forever; only its newest names are kept. */
const maxNamesPerTurn = 4096;

/** First prompts kept encoded: the rollouts of a group share theirs. */
const maxFirstPrompts = 1024;

/** Memory of one model's turns; it is lost with the process. */
export function createConversations(options: ConversationsOptions): Conversations {
  const { tokenizer, template } = options;
  const turns = createTurnStore(options.maxTokens ?? 2 ** 23);
  const firstPrompts = new Map<string, Encoded>();
  const counters: ConversationCounters = { started: 0, continued: 0, rerendered: 0 };
  const render = (query: PromptQuery): string =>
    template.render({ ...templateOptions(template, query, query.messages), addGenerationPrompt: true });
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
    const keys = historyKeys(query);
    const key = keys.at(-1) ?? '';
    if (!query.messages.some((message) => message.role === 'assistant')) {
      return { ...encodeFirst(query, key), origin: 'started', key };
    }
    const text = render(query);
    const ids = continueLongest(query, keys, text, options, turns);
    if (ids === null) return { ...encodeWhole(text), origin: 'rerendered', key };
    return { text, ids, origin: 'continued', key };
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
      turns.put(nextKey(prompt.key, message), turn, record.completionId);
    },
  };
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

/** Null if no message is a known turn, or the template does not extend the text of that turn. `text` is all messages rendered. */
function continueLongest(
  query: PromptQuery,
  keys: readonly string[],
  text: string,
  { tokenizer, template }: ConversationsOptions,
  turns: TurnStore,
): readonly number[] | null {
  const { messages } = query;
  // Of the tokens that may end a turn, the one that this template writes.
  const endId = (template.endOfTurn === null ? null : tokenizer.tokenId(template.endOfTurn)) ?? tokenizer.eosId;
  if (endId === null) return null;
  for (let last = messages.length - 1; last >= 0; last--) {
    const message = messages[last] as PlainMessage;
    const turn =
      message.role === 'assistant' ? turns.find(keys[last] as string, query.completionIds[last] ?? null) : null;
    if (turn == null) continue;
    // One rendering where the text begins with the very prompt and reply of that turn; `renderSuffix` needs two more.
    const sampled = turn.promptText + message.content + tokenizer.tokenText(endId);
    const suffix = text.startsWith(sampled) ? text.slice(sampled.length) : renderSuffix(template, query, last);
    if (suffix === null) return null;
    const endOfTurn = turn.tokenIds.at(-1) === endId ? [] : [endId];
    return turn.promptIds.concat(turn.tokenIds, endOfTurn, tokenizer.encode(suffix, { afterId: endId }));
  }
  return null;
}

/** Keys of the histories that end at each message, which differ with whatever else the template renders. */
function historyKeys(query: PromptQuery): readonly string[] {
  let key = query.rolloutId ?? '';
  if (query.tools.length > 0 || Object.keys(query.templateVariables).length > 0) {
    key = hash('sha256', JSON.stringify([key, query.tools, query.templateVariables]), 'base64');
  }
  return query.messages.map((message) => {
    key = nextKey(key, message);
    return key;
  });
}

/** Clients trim what the policy wrote, so white space at its end does not count; in all other messages it does. */
function nextKey(key: string, message: PlainMessage): string {
  const text = message.role === 'assistant' ? message.content.trimEnd() : message.content;
  const { role, name, tool_call_id: toolCallId, reasoning, toolCalls } = message;
  const calls = toolCalls?.map((call) => [call.id, call.name, sameArguments(call.arguments)]);
  return hash('sha256', JSON.stringify([key, role, text, name, toolCallId, reasoning, calls]), 'base64');
}

/** One text for all ways to write the same arguments: clients parse them and write them again. What is no JSON stays as it is. */
function sameArguments(text: string): string {
  try {
    return JSON.stringify(sortKeys(JSON.parse(text)));
  } catch {
    return text;
  }
}

function sortKeys(value: unknown): unknown {
  if (typeof value !== 'object' || value === null) return value;
  if (Array.isArray(value)) return value.map(sortKeys);
  const entries = Object.entries(value).map(([key, entry]) => [key, sortKeys(entry)] as const);
  return Object.fromEntries(entries.sort(([a], [b]) => (a < b ? -1 : 1)));
}

interface TurnStore {
  find(key: string, completionId: string | null): Turn | undefined;
  put(key: string, sampled: Omit<Turn, 'completionIds'>, completionId: string): void;
}

function createTurnStore(maxTokens: number): TurnStore {
  // A map keeps the order of insertion; using an entry moves it to the end.
  const turnsOf = new Map<string, Turn[]>();
  let tokens = 0;
  const touch = (key: string): Turn[] => {
    const turns = turnsOf.get(key) ?? [];
    turnsOf.delete(key);
    turnsOf.set(key, turns);
    return turns;
  };
  const dropOldest = (kept: string): void => {
    for (const [key, turns] of turnsOf) {
      if (tokens <= maxTokens || key === kept) return;
      tokens -= turns.reduce((sum, turn) => sum + sizeOf(turn), 0);
      turnsOf.delete(key);
    }
  };
  return {
    find: (key, completionId) => {
      if (!turnsOf.has(key)) return undefined;
      const turns = touch(key);
      const named = completionId === null ? undefined : turns.find((turn) => turn.completionIds.has(completionId));
      return named ?? turns.reduce((best, turn) => (compareIds(turn, best) < 0 ? turn : best));
    },
    put: (key, sampled, completionId) => {
      const turns = touch(key);
      let turn = turns.find((candidate) => compareIds(candidate, sampled) === 0);
      if (turn === undefined) {
        turn = { ...sampled, completionIds: new Set() };
        turns.push(turn);
        tokens += sizeOf(turn);
      }
      turn.completionIds.add(completionId);
      const oldest = turn.completionIds.size > maxNamesPerTurn ? [...turn.completionIds.keys()].at(0) : undefined;
      if (oldest !== undefined) turn.completionIds.delete(oldest);
      dropOldest(key);
    },
  };
}

type Ids = Pick<Turn, 'promptIds' | 'tokenIds'>;

function sizeOf(turn: Ids): number {
  return turn.promptIds.length + turn.tokenIds.length;
}

/** Shorter first, then lexicographic over (prompt ids, sampled ids). */
function compareIds(a: Ids, b: Ids): number {
  const bySize = sizeOf(a) - sizeOf(b) || a.promptIds.length - b.promptIds.length;
  return bySize || compareLists(a.promptIds, b.promptIds) || compareLists(a.tokenIds, b.tokenIds);
}

function compareLists(a: readonly number[], b: readonly number[]): number {
  if (a === b) return 0;
  for (let i = 0; i < a.length; i++) {
    const difference = (a[i] as number) - (b[i] as number);
    if (difference !== 0) return difference;
  }
  return 0;
}
