import { describe, expect, test } from 'vitest';
import { ConfigError, DataError } from '../core/errors.ts';
import { trainByteBpe } from './bpe-trainer.ts';
import { createChatTemplate } from './chat-template.ts';
import { chatMlTemplate } from './chatml-template.ts';
import { createTokenizer } from './tokenizer.ts';

const config = { chat_template: chatMlTemplate, eos_token: '<|im_end|>' };
const chatMl = createChatTemplate(config);
const system = { role: 'system', content: 'Be brief.' };
const user = { role: 'user', content: 'hi' };
const assistant = { role: 'assistant', content: 'hello' };
const next = { role: 'user', content: 'X23\n4O6' };
const moveTool = { type: 'function', function: { name: 'move', parameters: { type: 'object' } } };
const moveCall = { id: 'a', type: 'function', function: { name: 'move', arguments: '{"cell": 3, "why": "é"}' } };

describe('render', () => {
  test('ChatML: header, content, end-of-turn token, newline', () => {
    expect(chatMl.render({ messages: [system, user], addGenerationPrompt: true })).toBe(
      '<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n',
    );
    expect(chatMl.render({ messages: [assistant], addGenerationPrompt: false })).toBe(
      '<|im_start|>assistant\nhello<|im_end|>\n',
    );
  });

  test('ChatML with tools: definitions join the system message, calls and results keep their order', () => {
    const call = { role: 'assistant', content: null, tool_calls: [moveCall, moveCall] };
    const results = [
      { role: 'tool', tool_call_id: 'a', content: 'ok' },
      { role: 'tool', tool_call_id: 'a', content: 'no' },
    ];
    const messages = [system, user, call, ...results];
    const text = chatMl.render({ messages, tools: [moveTool], addGenerationPrompt: false });
    expect(text).toMatch(/^<\|im_start\|>system\nBe brief\.\n\n# Tools\n\n/);
    expect(text).toContain(
      '<tools>\n{"type": "function", "function": {"name": "move", "parameters": {"type": "object"}}}\n</tools>',
    );
    const callText = '<tool_call>\n{"name": "move", "arguments": {"cell": 3, "why": "é"}}\n</tool_call>';
    expect(text.slice(text.indexOf('<|im_start|>user'))).toBe(
      `<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n${callText}\n${callText}<|im_end|>\n<|im_start|>user\n` +
        '<tool_response>\nok\n</tool_response>\n<tool_response>\nno\n</tool_response><|im_end|>\n',
    );
  });

  test('tool arguments that are not a JSON object are rendered as written', () => {
    const broken = { ...moveCall, function: { name: 'move', arguments: '{"cell": ' } };
    const messages = [{ role: 'assistant', content: null, tool_calls: [broken] }];
    expect(chatMl.render({ messages, addGenerationPrompt: false })).toContain('"arguments": "{\\"cell\\": "}');
  });

  test('tokens and extra variables reach the template; the named template for tools is taken with tools', () => {
    const named = createChatTemplate({
      bos_token: { content: '<s>' },
      eos_token: '</s>',
      chat_template: [
        { name: 'default', template: '{{ bos_token }}{{ mood }}{{ eos_token }}' },
        { name: 'tool_use', template: 'tools {{ tools | length }}' },
      ],
    });
    const options = { messages: [user], addGenerationPrompt: false };
    expect(named.render({ ...options, extra: { mood: 'good' } })).toBe('<s>good</s>');
    expect(named.render({ ...options, tools: [moveTool] })).toBe('tools 1');
    expect(named.render({ ...options, tools: [] })).toBe('<s></s>');
  });

  test('an error of the template keeps its own message', () => {
    const template = createChatTemplate({ chat_template: "{{ raise_exception('roles must alternate') }}" });
    const render = () => template.render({ messages: [user, user], addGenerationPrompt: false });
    expect(render).toThrow(DataError);
    expect(render).toThrow('chat template: roles must alternate');
  });

  test('refuses a configuration without a template, and one that does not compile', () => {
    expect(() => createChatTemplate({})).toThrow(ConfigError);
    expect(() => createChatTemplate({ chat_template: '{% if %}' })).toThrow(DataError);
  });
});

describe('renderSuffix', () => {
  test('ChatML: begins with the newline after <|im_end|>, which the policy never samples', () => {
    expect(chatMl.renderSuffix([user, assistant], [user, assistant, next])).toBe(
      '\n<|im_start|>user\nX23\n4O6<|im_end|>\n<|im_start|>assistant\n',
    );
  });

  test('ids of prompt + sampled ids + ids of the suffix = ids of the whole conversation', () => {
    const tokenizer = createTokenizer(
      trainByteBpe(['hello hello'], { vocabSize: 300, specialTokens: ['<|im_start|>', '<|im_end|>'] }),
    );
    const prompt = chatMl.render({ messages: [user], addGenerationPrompt: true });
    const sampled = tokenizer.encode('hello<|im_end|>');
    const suffix = chatMl.renderSuffix([user, assistant], [user, assistant, next]) ?? '';
    const whole = chatMl.render({ messages: [user, assistant, next], addGenerationPrompt: true });
    expect([...tokenizer.encode(prompt), ...sampled, ...tokenizer.encode(suffix)]).toEqual(tokenizer.encode(whole));
  });

  test('text of the messages that looks like a token does not move the cut', () => {
    const odd = { role: 'assistant', content: 'a<|im_end|>\nb' };
    expect(chatMl.renderSuffix([user, odd], [user, odd, next])).toBe(
      '\n<|im_start|>user\nX23\n4O6<|im_end|>\n<|im_start|>assistant\n',
    );
  });

  test('the same where the template rewrites history', () => {
    const forgetful = createChatTemplate({
      eos_token: '</s>',
      chat_template:
        "{% for m in messages %}{% if m.role == 'assistant' and not loop.last %}{{ m.content.split('</think>')[-1] }}" +
        '{% else %}{{ m.content }}{% endif %}</s>{% endfor %}',
    });
    for (const content of ['<think>so</think>hello', 'hello', '']) {
      const said = { role: 'assistant', content };
      expect(forgetful.renderSuffix([user, said], [user, said, next])).toBe('X23\n4O6</s>');
    }
  });

  test('null when the template does not close an assistant message with the end-of-turn token', () => {
    const messages = [user, assistant] as const;
    const open = createChatTemplate({ ...config, eos_token: '<|endoftext|>' });
    expect(open.renderSuffix(messages, [...messages, next])).toBeNull();
    expect(createChatTemplate({ ...config, eos_token: null }).renderSuffix(messages, [...messages, next])).toBeNull();
    const named = createChatTemplate({ ...config, eos_token: '<|endoftext|>' }, '<|im_end|>');
    expect(named.renderSuffix(messages, [...messages, next])).toMatch(/^\n<\|im_start\|>user/);
  });

  test('refuses previous messages that end with another role', () => {
    expect(() => chatMl.renderSuffix([user], [user, next])).toThrow("must end with an assistant's, got user");
    expect(() => chatMl.renderSuffix([], [user])).toThrow(DataError);
  });
});
