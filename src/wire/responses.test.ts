import { expect, test } from 'vitest';
import { parseResponsesRequest } from './responses.ts';
import { encodeReasoning, itemId, type ResponseInputItem, responseIdOfItem, toMessages } from './responses-input.ts';

const ask = { model: 'm', input: 'hello' };

test.each([
  [
    { tools: [{ type: 'web_search' }] },
    'tools[0].type: must be function: the server runs no tools itself, got "web_search"',
  ],
  [{ tools: [{ type: 'file_search', vector_store_ids: [] }] }, 'tools[0].type: must be function'],
  [{ tools: [{ type: 'computer_use_preview' }] }, 'tools[0].type: must be function'],
  [{ tools: [{ type: 'mcp', server_label: 'x' }] }, 'tools[0].type: must be function'],
  [{ background: true }, 'background: not supported, got true'],
  [{ conversation: 'conv_1' }, 'conversation: not supported, got "conv_1"'],
  [{ prompt: { id: 'p' } }, 'prompt: not supported'],
  [{ truncation: 'auto' }, 'truncation: not supported, got "auto"'],
  [{ reasoning: { effort: 'high' } }, 'reasoning.effort: must be none: no other effort is supported, got "high"'],
  [{ text: { verbosity: 'low' } }, 'text.verbosity: must be medium, which is the default, got "low"'],
  [{ tool_choice: 'required' }, 'tool_choice: needs at least one tool, got "required"'],
  [{ tool_choice: { type: 'web_search_preview' } }, 'tool_choice.type: must be function, got "web_search_preview"'],
  [{ top_logprobs: 2 }, 'top_logprobs: needs include to have message.output_text.logprobs'],
  [{ include: ['everything'] }, 'include[0]: must be one of reasoning.encrypted_content'],
  [{ maximum: 1 }, 'maximum: unknown field'],
  [
    { input: [{ role: 'user', content: [{ type: 'input_image', image_url: 'x' }] }] },
    'input[0].content[0].type: must be input_text or output_text: only text is supported, got "input_image"',
  ],
  [
    { input: [{ type: 'computer_call_output', call_id: 'c', output: {} }] },
    'input[0].type: must be one of message, function_call, function_call_output, reasoning, item_reference, got "computer_call_output"',
  ],
])('%j is refused by name', (fields, message) => {
  expect(() => parseResponsesRequest({ ...ask, ...fields })).toThrow(
    expect.objectContaining({ status: 400, message: expect.stringContaining(message) }),
  );
});

test('fields that cannot change tokens are accepted, and null is the default', () => {
  const neutral = {
    user: 'u',
    safety_identifier: 's',
    prompt_cache_key: 'k',
    prompt_cache_retention: '24h',
    service_tier: 'auto',
    max_tool_calls: 3,
    background: false,
    truncation: 'disabled',
    conversation: null,
    metadata: { a: 'b' },
    store: false,
    reasoning: { effort: null, summary: null },
    text: { verbosity: 'medium' },
  };
  const { templateVariables, isStored } = parseResponsesRequest({ ...ask, ...neutral });
  expect({ templateVariables, isStored }).toEqual({ templateVariables: {}, isStored: false });
});

const message = (content: string, id?: string): ResponseInputItem => ({
  type: 'message',
  role: 'assistant',
  content,
  id,
});
const call = (callId: string, id?: string): ResponseInputItem => ({
  type: 'function_call',
  call_id: callId,
  name: 'f',
  arguments: '{}',
  id,
});
const responseIds = ['a', 'b'].map((digit) => `resp_${digit.repeat(32)}`) as [string, string];

test('what a policy said in one turn is one message, however many items it has', () => {
  const [first] = responseIds;
  const id = (index: number): string => itemId('msg', first, index);
  expect(responseIdOfItem(id(3))).toBe(first);
  const reasoning: ResponseInputItem = {
    type: 'reasoning',
    id: itemId('rs', first, 0),
    summary: [],
    encrypted_content: encodeReasoning('why ü'),
  };
  const output: ResponseInputItem = { type: 'function_call_output', call_id: 'c1', output: 'rain' };
  const items = [reasoning, message('up', id(1)), call('c1', id(2)), message(' and down', id(3)), output];
  expect(toMessages(items)).toEqual([
    {
      message: {
        role: 'assistant',
        content: 'up and down',
        reasoning: 'why ü',
        toolCalls: [{ id: 'c1', name: 'f', arguments: '{}' }],
      },
      completionId: first,
    },
    { message: { role: 'tool', content: 'rain', tool_call_id: 'c1' }, completionId: null },
  ]);
});

test('turns that follow each other stay apart: by their ids, or where no turn goes on so', () => {
  const contents = (items: readonly ResponseInputItem[]): string[] =>
    toMessages(items).map((known) => known.message.content);
  expect(contents([message('a'), message('b')])).toEqual(['a', 'b']);
  const [first, second] = responseIds;
  const apart = [message('a', itemId('msg', first, 0)), call('c1', itemId('fc', second, 0))];
  expect(toMessages(apart).map(({ completionId }) => completionId)).toEqual([first, second]);
  expect(toMessages([call('c1'), { type: 'reasoning', summary: [] }, call('c2')])).toHaveLength(2);
});
