import { expect, test } from 'vitest';
import { parseMessagesRequest } from './anthropic.ts';

const user = { role: 'user', content: 'hello' };
const ask = { model: 'm', max_tokens: 5, messages: [user] };
const toolUse = { type: 'tool_use', id: 't1', name: 'f', input: { b: 1 } };

test('results of tools are messages of their own, before the text that follows them; a failed one says so', () => {
  const results = [
    { type: 'tool_result', tool_use_id: 't1', content: [{ type: 'text', text: 'rain' }] },
    { type: 'tool_result', tool_use_id: 't2', content: 'no such city', is_error: true },
    { type: 'text', text: 'and now?' },
  ];
  const messages = [user, { role: 'assistant', content: [toolUse] }, { role: 'user', content: results }];
  const { prompt } = parseMessagesRequest({ ...ask, system: 'up', messages });
  expect(prompt.messages.map(({ message }) => message)).toEqual([
    { role: 'system', content: 'up' },
    { role: 'user', content: 'hello' },
    { role: 'assistant', content: '', toolCalls: [{ id: 't1', name: 'f', arguments: '{"b":1}' }] },
    { role: 'tool', content: 'rain', tool_call_id: 't1' },
    { role: 'tool', content: 'Error: no such city', tool_call_id: 't2' },
    { role: 'user', content: 'and now?' },
  ]);
});

test('the signature of thinking, or the field art, names the completion that a message is', () => {
  const thought = (signature: string): object => ({ type: 'thinking', thinking: 'why', signature });
  const completionId = (message: object): string | null | undefined => {
    const { prompt } = parseMessagesRequest({ ...ask, messages: [user, { role: 'assistant', ...message }, user] });
    return prompt.messages[1]?.completionId;
  };
  expect(completionId({ content: [thought('msg_1'), { type: 'text', text: 'a' }] })).toBe('msg_1');
  expect(completionId({ content: [thought('of another server')] })).toBeNull();
  expect(completionId({ content: 'a', art: { completion_id: 'msg_2', policy_step: 3 } })).toBe('msg_2');
});

test('arguments that were no JSON come back as the text that they were', () => {
  const cut = { ...toolUse, input: '{"city": "Be' };
  const { prompt } = parseMessagesRequest({ ...ask, messages: [user, { role: 'assistant', content: [cut] }, user] });
  expect(prompt.messages[1]?.message.toolCalls?.[0]?.arguments).toBe('{"city": "Be');
});

test.each([
  [{ type: 'auto' }, 'auto', true],
  [{ type: 'any', disable_parallel_tool_use: true }, 'required', false],
  [{ type: 'tool', name: 'f' }, { name: 'f' }, true],
  [{ type: 'none' }, 'none', true],
])('tool_choice %j', (choice, expected, isParallel) => {
  const tools = [{ name: 'f', input_schema: { type: 'object' } }];
  const { prompt } = parseMessagesRequest({ ...ask, tools, tool_choice: choice });
  expect(prompt.toolChoice).toEqual(expected);
  expect(prompt.isParallelToolCalls).toBe(isParallel);
});

test('fields that cannot change tokens are accepted; thinking is a variable of the template', () => {
  const cache = { cache_control: { type: 'ephemeral' } };
  const neutral = { metadata: { user_id: 'u' }, service_tier: 'auto', speed: 'standard', mcp_servers: [], ...cache };
  expect(parseMessagesRequest({ ...ask, ...neutral }).prompt.templateVariables).toEqual({});
  const thinking = (type: string): unknown =>
    parseMessagesRequest({ ...ask, thinking: { type } }).prompt.templateVariables;
  expect(thinking('adaptive')).toEqual({ enable_thinking: true });
  expect(thinking('disabled')).toEqual({ enable_thinking: false });
});
