import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { cachedTokenizer, type RealTokenizer } from '../../../scripts/tokenizer-cache.mjs';
import { createChatTemplate } from '../chat-template.ts';
import { chatMlTemplate } from '../chatml-template.ts';

const read = (file: string): string =>
  readFileSync(new URL(`../../../test/fixtures/templates/${file}`, import.meta.url), 'utf8');
const open = (source: string) => createChatTemplate({ bos_token: '<s>', eos_token: '</s>', chat_template: source });

test.each([
  ['headers.jinja', 'llama3_json', null],
  ['instruct.jinja', 'mistral', null],
  ['thinking.jinja', null, '</think>'],
  ['turns.jinja', null, null],
  ['lines.jinja', null, null],
  ['schema.jinja', null, null],
])('%s writes calls as %s', (file, format, end) => {
  const template = open(read(file));
  expect(template.toolFormat).toBe(format);
  expect(template.reasoning?.end ?? null).toBe(end);
});

const assistantOf = (call: string): string =>
  `{% for m in messages %}{{ m.role }}: {% if m.tool_calls %}${call}{% else %}{{ m.content }}{% endif %}</s>{% endfor %}`;

test.each([
  ['hermes', chatMlTemplate],
  [
    'smollm',
    assistantOf('<tool_call>[\n{% for c in m.tool_calls %}{{ c.function | tojson }}{% endfor %}\n]</tool_call>'),
  ],
  [
    'mistral_args',
    assistantOf(
      '[TOOL_CALLS]{{ m.tool_calls[0].function.name }}[ARGS]{{ m.tool_calls[0].function.arguments | tojson }}',
    ),
  ],
  [
    'pythonic',
    assistantOf(
      '[{{ m.tool_calls[0].function.name }}({% for k, v in m.tool_calls[0].function.arguments.items() %}{{ k }}="{{ v }}"{% endfor %})]',
    ),
  ],
  ['hermes', read('thinking.jinja').replaceAll('call>', 'tool_call>')],
])('%s', (format, source) => {
  expect(open(source).toolFormat).toBe(format);
});

describe.each([
  ['qwen3', 'hermes', '<think>'],
  ['llama3_1', null, null],
  ['gemma3', null, null],
] satisfies readonly (readonly [RealTokenizer, string | null, string | null])[])('%s', (name, format, begin) => {
  const folder = cachedTokenizer(name);
  const note = folder === null ? ' (not in the model cache: npm run fetch-models)' : '';
  test.skipIf(folder === null)(`as published${note}`, () => {
    const config = JSON.parse(readFileSync(join(folder as string, 'tokenizer_config.json'), 'utf8')) as object;
    const template = createChatTemplate({ ...config, bos_token: '<s>' });
    expect(template.toolFormat).toBe(format);
    expect(template.reasoning?.begin ?? null).toBe(begin);
  });
});
