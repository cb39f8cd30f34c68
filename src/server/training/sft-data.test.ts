import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { beforeAll, describe, expect, test } from 'vitest';
import { root } from '../../../test/source-imports.ts';
import type { PlainMessage, ToolDefinition } from '../../core/chat.ts';
import { DataError } from '../../core/errors.ts';
import type { Datum } from '../../engines/engine.ts';
import { createChatTemplate } from '../../formats/chat-template.ts';
import { createConversations } from '../inference/conversations.ts';
import { createScriptedModel, type ScriptedModel } from '../testing-model.ts';
import { encodeConversation, type TextSide } from './sft-data.ts';

let model: ScriptedModel;
let thinking: TextSide;
beforeAll(async () => {
  model = await createScriptedModel(() => () => ({ tokenIds: [1] }));
  const source = await readFile(join(root, 'test/fixtures/templates/thinking.jinja'), 'utf8');
  const template = createChatTemplate({ ...model.tokenizer.config, chat_template: source }, '<|im_end|>');
  thinking = { tokenizer: model.tokenizer, template };
});

const user = (content: string): PlainMessage => ({ role: 'user', content });
const assistant = (content: string, more: Partial<PlainMessage> = {}): PlainMessage => ({
  role: 'assistant',
  content,
  ...more,
});
const tool: ToolDefinition = { name: 'look', description: null, parameters: { type: 'object' }, isStrict: false };

interface Options {
  readonly side?: TextSide;
  readonly trainOn?: 'all' | 'last';
  readonly tools?: readonly ToolDefinition[];
  readonly maxTokens?: number;
}

function encode(messages: readonly PlainMessage[], options: Options = {}): Datum[] {
  const { side = model, trainOn = 'all', tools = [], maxTokens = 1024 } = options;
  return encodeConversation({ messages, tools }, 3, side, { trainOn, templateVariables: {} }, maxTokens) ?? [];
}

const decode = (ids: readonly number[]): string => model.tokenizer.decode(ids);
/** The text that is learned, each stretch of it. */
function learned({ tokenIds, actionMask }: Datum): string[] {
  const stretches: number[][] = [];
  for (const [t, id] of tokenIds.entries()) {
    if (actionMask[t] === 0) continue;
    if (actionMask[t - 1] === 0) stretches.push([]);
    stretches.at(-1)!.push(id);
  }
  return stretches.map(decode);
}

describe('conversations as training sequences', () => {
  test('the prompt is the one that a request would have, the reply ends with the end of the turn', () => {
    const [datum] = encode([{ role: 'system', content: 'down' }, user('left'), assistant('right')]);
    const asked = createConversations(model).createPrompt({
      ...{ tools: [], templateVariables: {}, completionIds: [null, null], rolloutId: null, keyId: null },
      messages: [{ role: 'system', content: 'down' }, user('left')],
    });
    const promptLength = datum!.actionMask.indexOf(1);
    expect(datum!.tokenIds.slice(0, promptLength)).toEqual([...asked.ids]);
    expect(learned(datum!)).toEqual(['right<|im_end|>']);
  });

  test('all turns stand in one sequence where the template only adds; the last one alone if asked', () => {
    const messages = [user('left'), assistant('right'), user('up'), assistant('down')];
    const all = encode(messages);
    expect(all).toHaveLength(1);
    expect(learned(all[0]!)).toEqual(['right<|im_end|>', 'down<|im_end|>']);
    const last = encode(messages, { trainOn: 'last' });
    expect(last.map(learned)).toEqual([['down<|im_end|>']]);
    // The ids are those of a conversation that was sampled, so both are the same text.
    expect(decode(all[0]!.tokenIds)).toBe(decode(last[0]!.tokenIds));
  });

  test('reasoning is learned with its turn, and stays before the next one, as it does where a conversation is sampled', () => {
    const messages = [user('up'), assistant('down', { reasoning: 'hello' }), user('left'), assistant('right')];
    const sequences = encode(messages, { side: thinking });
    const [first, second] = ['<think>\nhello\n</think>\n\ndown<|im_end|>', '<think>\n\n</think>\n\nright<|im_end|>'];
    expect(sequences.map(learned)).toEqual([[first, second]]);
    // Alone, the last turn stands behind what the template leaves of the turns before.
    const [last] = encode(messages, { side: thinking, trainOn: 'last' });
    expect(learned(last!)).toEqual([second]);
    expect(decode(last!.tokenIds)).not.toContain('hello');
  });

  test('where a turn cannot be continued, each has a sequence of its own', () => {
    const source =
      "{% for m in messages %}{{ m.role + ':' + m.content }}<|im_end|>" +
      "{% if m.role == 'assistant' %}{{ m.content | length }}{% endif %}{% endfor %}" +
      '{% if add_generation_prompt %}assistant:{% endif %}';
    const template = createChatTemplate({ ...model.tokenizer.config, chat_template: source }, '<|im_end|>');
    const messages = [user('up'), assistant('down'), user('left'), assistant('right')];
    const sequences = encode(messages, { side: { tokenizer: model.tokenizer, template } });
    expect(sequences.map(learned)).toEqual([['down<|im_end|>'], ['right<|im_end|>']]);
  });

  test('calls of tools are learned in the form that the template writes, results are not', () => {
    const call = { id: 'c', name: 'look', arguments: '{"at": "left"}' };
    const messages = [
      user('look'),
      assistant('', { toolCalls: [call] }),
      { role: 'tool', content: 'a wall', tool_call_id: 'c' } as const,
      assistant('a wall'),
    ];
    const [datum, ...others] = encode(messages, { tools: [tool] });
    expect(others).toEqual([]);
    expect(learned(datum!)).toEqual([
      '<tool_call>\n{"name": "look", "arguments": {"at": "left"}}\n</tool_call><|im_end|>',
      'a wall<|im_end|>',
    ]);
    expect(decode(datum!.tokenIds)).toContain('<tools>');
  });

  test('what is longer than the context gives nothing', () => {
    const messages = [user('left'), assistant('right')];
    const [datum] = encode(messages);
    expect(encode(messages, { maxTokens: datum!.tokenIds.length })).toHaveLength(1);
    expect(encode(messages, { maxTokens: datum!.tokenIds.length - 1 })).toEqual([]);
  });

  test('what cannot be learned is refused by its place', () => {
    expect(() => encode([user('left')])).toThrow(DataError);
    expect(() => encode([user('left')])).toThrow(/conversations\[3\].messages: must hold an assistant message/);
    const cut = createChatTemplate({ chat_template: '{{ messages[0].content }}' }, '<|im_end|>');
    const side = { tokenizer: model.tokenizer, template: cut };
    expect(() => encode([user('left'), assistant('right')], { side })).toThrow(
      /messages\[1\]: the chat template must write/,
    );
  });
});
