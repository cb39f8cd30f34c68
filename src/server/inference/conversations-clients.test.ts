/**
 * What frameworks make of an assistant's message before they send it back, for chat templates of every family's kind: the next prompt
 * begins with the ids of the first one and those that were sampled.
 */
import { readFileSync } from 'node:fs';
import { describe, expect, test } from 'vitest';
import type { PlainMessage, ToolDefinition } from '../../core/chat.ts';
import { createChatTemplate } from '../../formats/chat-template.ts';
import { chatMlTemplate } from '../../formats/chatml-template.ts';
import { createReplyParser } from '../../formats/reply-parser.ts';
import { createTokenizer, type Tokenizer } from '../../formats/tokenizer.ts';
import type { ToolFormat } from '../../formats/tool-formats/tool-format.ts';
import { parseChatRequest } from '../../wire/openai.ts';
import { type Conversations, createConversations, type Prompt } from './conversations.ts';

const read = (path: string): string => readFileSync(new URL(`../../../test/fixtures/${path}`, import.meta.url), 'utf8');

interface Family {
  readonly title: string;
  readonly template: string;
  readonly tokenizer: string;
  readonly end: string;
  readonly toolFormat: ToolFormat | null;
  /** A reply that calls `look_up` with { a: 1.0, b: "x y" }, after a thought where the template knows them. */
  readonly reply: string;
}

const call = '{"name": "look_up", "arguments": {"b": "x y", "a": 1.0}}';
const hermes = `Let me see.\n<tool_call>\n${call}\n</tool_call>`;

const families: readonly Family[] = [
  {
    title: 'ChatML',
    template: chatMlTemplate,
    tokenizer: 'qwen',
    end: '<|im_end|>',
    toolFormat: 'hermes',
    reply: hermes,
  },
  {
    title: 'Qwen 3',
    template: read('templates/thinking.jinja').replaceAll('call>', 'tool_call>'),
    tokenizer: 'qwen',
    end: '<|im_end|>',
    toolFormat: 'hermes',
    reply: `<think>\nI must look.\n</think>\n\n${hermes}`,
  },
  {
    title: 'Llama 3',
    template: read('templates/headers.jinja'),
    tokenizer: 'llama3',
    end: '<|eot_id|>',
    toolFormat: 'llama3_json',
    reply: call.replace('arguments', 'parameters'),
  },
  {
    title: 'Mistral',
    template: read('templates/instruct.jinja'),
    tokenizer: 'mistral',
    end: '</s>',
    toolFormat: 'mistral',
    reply: `[TOOL_CALLS] [${call}]`,
  },
  {
    title: 'Gemma',
    template: read('templates/turns.jinja'),
    tokenizer: 'gemma3',
    end: '<end_of_turn>',
    toolFormat: null,
    reply: hermes,
  },
  {
    title: 'Phi 3',
    template: read('templates/lines.jinja'),
    tokenizer: 'phi3',
    end: '<|end|>',
    toolFormat: null,
    reply: hermes,
  },
];

const tools: readonly ToolDefinition[] = [
  { name: 'look_up', description: 'Looks up.', parameters: { type: 'object', properties: {} }, isStrict: false },
];
const wireTools = tools.map(({ name, description, parameters }) => ({
  type: 'function',
  function: { name, description, parameters },
}));

type Wire = Readonly<Record<string, unknown>>;
const question: Wire = { role: 'user', content: 'Where is it?' };
const id = 'abcdefgh1';
const result = (callId = id): Wire => ({ role: 'tool', tool_call_id: callId, content: '42' });

interface Sent {
  readonly content: string;
  readonly reasoning: string;
  readonly calls: readonly {
    readonly id: string;
    readonly type: 'function';
    readonly function: { readonly name: string; readonly arguments: string };
  }[];
}

const message = ({ content, calls }: Sent, more: Wire = {}): Wire => ({
  role: 'assistant',
  content,
  tool_calls: calls,
  ...more,
});
const withArguments = (sent: Sent, text: string): Wire =>
  message(sent, { tool_calls: sent.calls.map((one) => ({ ...one, function: { ...one.function, arguments: text } })) });

/** What comes back for the assistant's message and the result of its call. */
const clients: Readonly<Record<string, (sent: Sent) => readonly Wire[]>> = {
  'as it was sent': (sent) => [
    message(sent, sent.reasoning === '' ? {} : { reasoning_content: sent.reasoning }),
    result(),
  ],
  'without reasoning': (sent) => [message(sent), result()],
  'reasoning before the text, in its marks': (sent) => [
    message(sent, sent.reasoning === '' ? {} : { content: `<think>${sent.reasoning}</think>\n${sent.content}` }),
    result(),
  ],
  'content as parts': (sent) => [
    message(sent, { content: sent.content === '' ? [] : [{ type: 'text', text: sent.content }] }),
    result(),
  ],
  'extra fields': (sent) => [message(sent, { name: 'agent', refusal: null, annotations: [], audio: null }), result()],
  'text trimmed or padded': (sent) => [message(sent, { content: ` ${sent.content}\n` }), result()],
  'arguments with other keys first, spaces and numbers': (sent) => [
    withArguments(sent, '{ "a":1,\n"b":"x\\u0020y" }'),
    result(),
  ],
  'ids changed': (sent) => [
    message(sent, { tool_calls: sent.calls.map((one) => ({ ...one, id: 'zzzzzzzz9' })) }),
    result('zzzzzzzz9'),
  ],
  'no content beside calls': (sent) => [message(sent, sent.content === '' ? { content: null } : {}), result()],
  'text and calls split': ({ content, calls }) => [
    ...(content === '' ? [] : [{ role: 'assistant', content }]),
    { role: 'assistant', content: null, tool_calls: calls },
    result(),
  ],
};

/** Ids of one character each: what the tokenizer itself would not write. */
function sampledIds(tokenizer: Tokenizer, text: string, end: string): readonly number[] {
  return [...[...text].flatMap((character) => tokenizer.encode(character)), tokenizer.tokenId(end) as number];
}

interface Spoken {
  readonly conversations: Conversations;
  readonly tokenizer: Tokenizer;
  readonly first: Prompt;
  readonly sampled: readonly number[];
  readonly sent: Sent;
}

function ask(conversations: Conversations, messages: readonly Wire[], isWithTools = true, extra: Wire = {}): Prompt {
  const request = parseChatRequest({ model: 'm', messages, ...(isWithTools && { tools: wireTools }), ...extra });
  const { prompt } = request.generation;
  if (prompt.type !== 'chat') throw new Error(prompt.type);
  return conversations.createPrompt({ ...prompt, rolloutId: null, keyId: null });
}

function speak({ template: source, tokenizer: name, end, toolFormat, reply }: Family): Spoken {
  const template = createChatTemplate({ bos_token: '<s>', eos_token: end, chat_template: source });
  expect(template.toolFormat).toBe(toolFormat);
  const tokenizer = createTokenizer(
    withTokens(JSON.parse(read(`tokenizers/${name}.json`)) as TokenizerFile, ['<s>', end]),
  );
  const conversations = createConversations({ tokenizer, template });
  const first = ask(conversations, [question]);
  const sampled = sampledIds(tokenizer, reply, end);
  const sent = parseReply(toolFormat ?? 'hermes', reply);
  record(conversations, first, sampled, sent);
  return { conversations, tokenizer, first, sampled, sent };
}

function parseReply(toolFormat: ToolFormat, reply: string): Sent {
  const parser = createReplyParser({
    toolFormat,
    toolNames: ['look_up'],
    reasoning: { begin: '<think>', end: '</think>' },
  });
  const deltas = [...parser.push(reply), ...parser.finish()];
  const textOf = (type: 'text' | 'reasoning'): string =>
    deltas.map((delta) => (delta.type === type ? delta.text : '')).join('');
  const calls = deltas.flatMap((delta) =>
    delta.type === 'toolCall'
      ? [{ id, type: 'function' as const, function: { name: delta.name ?? '', arguments: delta.argumentsDelta } }]
      : [],
  );
  return { content: textOf('text'), reasoning: textOf('reasoning'), calls };
}

function record(
  conversations: Conversations,
  prompt: Prompt,
  tokenIds: readonly number[],
  sent: Sent,
  completionId = 'c',
): void {
  const reply: PlainMessage = {
    role: 'assistant',
    content: sent.content,
    ...(sent.reasoning !== '' && { reasoning: sent.reasoning }),
    ...(sent.calls.length > 0 && { toolCalls: sent.calls.map((one) => ({ id: one.id, ...one.function })) }),
  };
  conversations.record(prompt, reply, {
    completionId,
    choiceIndex: 0,
    policyStep: 0,
    promptIds: prompt.ids,
    tokenIds,
    logprobs: tokenIds.map(() => -1),
    temperature: 1,
    finishReason: 'stop',
  });
}

describe.each(families)('$title', (family) => {
  test.each(Object.keys(clients))('%s: sampled ids are continued, also two turns later', (kind) => {
    const { conversations, tokenizer, first, sampled, sent } = speak(family);
    expect(sent.calls).toHaveLength(1);
    const history = [question, ...(clients[kind] as (sent: Sent) => readonly Wire[])(sent)];
    const second = ask(conversations, history);
    expect(second.origin).toBe('continued');
    expect(second.ids.slice(0, first.ids.length + sampled.length)).toEqual([...first.ids, ...sampled]);
    const suffix = tokenizer.decode(second.ids.slice(first.ids.length + sampled.length));
    expect(suffix).toContain('42');
    expect(suffix).not.toContain('look_up(');
    expect(suffix).not.toContain('Where is it?');

    const answer = { content: 'There.', reasoning: '', calls: [] };
    const ids = sampledIds(tokenizer, 'There.', family.end);
    record(conversations, second, ids, answer, 'c2');
    const third = ask(conversations, [
      ...history,
      { role: 'assistant', content: 'There.' },
      { role: 'user', content: 'Sure?' },
    ]);
    expect(third.ids.slice(0, second.ids.length + ids.length)).toEqual([...second.ids, ...ids]);
    expect(tokenizer.decode(third.ids.slice(second.ids.length + ids.length))).toContain('Sure?');
    expect(conversations.counters).toEqual({ started: 1, continued: 2, rerendered: 0 });
  });

  test('another history is rendered anew, and counted', () => {
    const { conversations, sent, first } = speak(family);
    const [said, answered] = (clients['without reasoning'] as (sent: Sent) => readonly Wire[])(sent) as [Wire, Wire];
    const changed: (readonly [readonly Wire[], boolean])[] = [
      [[{ ...question, content: 'Where was it?' }, said, answered], true],
      [[question, withArguments(sent, '{"a": 2, "b": "x y"}'), answered], true],
      [[question, message(sent, { content: 'Let me hear.' }), answered], true],
      [[question, said, answered], false],
    ];
    for (const [messages, isWithTools] of changed) {
      const prompt = ask(conversations, messages, isWithTools);
      expect(prompt.origin).toBe('rerendered');
      expect(prompt.ids.slice(0, first.ids.length + 1)).not.toEqual(first.ids);
    }
    expect(conversations.counters.rerendered).toBe(changed.length);
  });
});

test('the ids of its calls, or its completion, tell which of two turns that say the same is continued', () => {
  const family = families[0] as Family;
  const { conversations, tokenizer, first, sampled, sent } = speak(family);
  const other = [...tokenizer.encode(family.reply), tokenizer.tokenId(family.end) as number];
  expect(other.length).toBeLessThan(sampled.length);
  const calls = sent.calls.map((one) => ({ ...one, id: 'other-id1' }));
  record(conversations, first, other, { ...sent, calls }, 'c-other');
  const begins = (messages: readonly Wire[], ids: readonly number[]): void => {
    const prompt = ask(conversations, [question, ...messages]);
    expect(prompt.ids.slice(0, first.ids.length + ids.length)).toEqual([...first.ids, ...ids]);
  };
  begins([message(sent), result()], sampled);
  begins([message({ ...sent, calls }), result('other-id1')], other);
  begins([message(sent, { art: { completion_id: 'c-other' } }), result()], other);
  const unknown = sent.calls.map((one) => ({ ...one, id: 'unknown' }));
  begins([message({ ...sent, calls: unknown }), result('unknown')], other);
});

interface TokenizerFile {
  readonly added_tokens: readonly { readonly id: number; readonly content: string }[];
  readonly model: { readonly vocab: Readonly<Record<string, number>> };
}

function withTokens(json: TokenizerFile, contents: readonly string[]): TokenizerFile {
  const known = new Set(json.added_tokens.map((token) => token.content));
  const first = Math.max(...json.added_tokens.map((token) => token.id), ...Object.values(json.model.vocab)) + 1;
  const more = contents
    .filter((content) => !known.has(content))
    .map((content, index) => ({ id: first + index, content, special: true }));
  return { ...json, added_tokens: [...json.added_tokens, ...more] };
}
