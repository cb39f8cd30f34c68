import { beforeAll, expect, test } from 'vitest';
import type { PlainMessage } from '../../core/chat.ts';
import { byteIds, createScriptedModel, type ScriptedModel } from '../testing-model.ts';
import { type Conversations, createConversations, type Prompt, type PromptQuery } from './conversations.ts';
import type { CompletionRecord } from './served-model.ts';

let model: ScriptedModel;

beforeAll(async () => {
  model = await createScriptedModel(() => () => ({ tokenIds: [] }));
});

const hello: PlainMessage = { role: 'user', content: 'hello' };
const world: PlainMessage = { role: 'user', content: 'world' };
const left: PlainMessage = { role: 'assistant', content: 'left' };
const suffixText = '\n<|im_start|>user\nworld<|im_end|>\n<|im_start|>assistant\n';

function query(messages: readonly PlainMessage[], extra: Partial<PromptQuery> = {}): PromptQuery {
  return {
    messages,
    completionIds: messages.map(() => null),
    rolloutId: null,
    keyId: null,
    tools: [],
    templateVariables: {},
    ...extra,
  };
}

function sample(
  conversations: Conversations,
  prompt: Prompt,
  tokenIds: readonly number[],
  text = 'left',
  completionId = 'c',
): void {
  const record: CompletionRecord = {
    completionId,
    choiceIndex: 0,
    policyStep: 0,
    promptIds: prompt.ids,
    tokenIds,
    logprobs: tokenIds.map(() => -1),
    temperature: 1,
    finishReason: 'stop',
  };
  conversations.record(prompt, { role: 'assistant', content: text }, record);
}

const canonical = (): number[] => model.tokenizer.encode('left<|im_end|>');
const split = (): number[] => [...byteIds(model.tokenizer, 'left'), ...model.tokenizer.encode('<|im_end|>')];

test('ids that the tokenizer would not write are continued as they were sampled', () => {
  const conversations = createConversations(model);
  const first = conversations.createPrompt(query([hello]));
  sample(conversations, first, split());
  expect(split()).not.toEqual(canonical());
  const next = conversations.createPrompt(query([hello, left, world]));
  expect(next.ids).toEqual([...first.ids, ...split(), ...model.tokenizer.encode(suffixText)]);
  expect(conversations.counters).toEqual({ started: 1, continued: 1, rerendered: 0 });
});

test('a turn without its end-of-turn token gets it', () => {
  const conversations = createConversations(model);
  const first = conversations.createPrompt(query([hello]));
  const cut = canonical().slice(0, -1);
  sample(conversations, first, cut);
  const next = conversations.createPrompt(query([hello, left, world]));
  const { eosId } = model.tokenizer;
  expect(next.ids).toEqual([...first.ids, ...cut, eosId, ...model.tokenizer.encode(suffixText)]);
});

test('white space at the end of a reply does not count, elsewhere it does', () => {
  const conversations = createConversations(model);
  sample(conversations, conversations.createPrompt(query([hello])), canonical(), 'left \n');
  expect(conversations.createPrompt(query([hello, left, world])).origin).toBe('continued');
  expect(conversations.createPrompt(query([{ ...hello, content: 'hello ' }, left, world])).origin).toBe('rerendered');
});

test('the longest known turn wins', () => {
  const conversations = createConversations(model);
  const first = conversations.createPrompt(query([hello]));
  sample(conversations, first, split());
  const second = conversations.createPrompt(query([hello, left, world]));
  sample(conversations, second, split());
  const third = conversations.createPrompt(query([hello, left, world, left, world]));
  expect(third.ids).toEqual([...second.ids, ...split(), ...model.tokenizer.encode(suffixText)]);
});

test('of several id sequences for one text the choice does not depend on their order', () => {
  const prompts = [
    [canonical(), split()],
    [split(), canonical()],
  ].map((order) => {
    const conversations = createConversations(model);
    const first = conversations.createPrompt(query([hello]));
    order.forEach((ids, index) => {
      sample(conversations, first, ids, 'left', `c${index}`);
    });
    return conversations.createPrompt(query([hello, left, world])).ids;
  });
  expect(prompts[0]).toEqual(prompts[1]);
  expect(prompts[0]).toEqual(
    model.tokenizer.encode(`<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\nleft<|im_end|>${suffixText}`),
  );
});

test('a message that names its completion, or a rollout id, continues exactly that turn', () => {
  const conversations = createConversations(model);
  const history = [hello, left, world];
  for (const [id, ids] of [
    ['a', canonical()],
    ['b', split()],
  ] as const) {
    sample(conversations, conversations.createPrompt(query([hello])), ids, 'left', id);
    sample(conversations, conversations.createPrompt(query([hello], { rolloutId: id })), ids, 'left', `rollout-${id}`);
  }
  const first = conversations.createPrompt(query([hello]));
  const expected = [...first.ids, ...split(), ...model.tokenizer.encode(suffixText)];
  expect(conversations.createPrompt(query(history, { completionIds: [null, 'b', null] })).ids).toEqual(expected);
  expect(conversations.createPrompt(query(history, { rolloutId: 'b' })).ids).toEqual(expected);
  expect(conversations.createPrompt(query(history, { rolloutId: 'other' })).origin).toBe('rerendered');
  for (const keyId of ['k1', 'k2']) {
    const named = { keyId, rolloutId: 'b', completionIds: [null, 'b', null] };
    expect(conversations.createPrompt(query(history, named)).origin).toBe('rerendered');
  }
});

test('the turns that were not used for longest are dropped at the limit', () => {
  const conversations = createConversations({ ...model, maxTokens: 40 });
  for (const content of ['one', 'two', 'three', 'four', 'five']) {
    sample(conversations, conversations.createPrompt(query([{ ...hello, content }])), canonical());
  }
  expect(conversations.createPrompt(query([{ ...hello, content: 'one' }, left, world])).origin).toBe('rerendered');
  expect(conversations.createPrompt(query([{ ...hello, content: 'five' }, left, world])).origin).toBe('continued');
});
