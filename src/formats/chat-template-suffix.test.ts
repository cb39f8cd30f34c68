/** `renderSuffix` of templates of every family's kind: whatever it gives continues the ids of the conversation exactly. */
import { readFileSync } from 'node:fs';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { createChatTemplate, type TemplateMessage } from './chat-template.ts';
import { createTokenizer } from './tokenizer.ts';

const read = (path: string): string => readFileSync(new URL(`../../test/fixtures/${path}`, import.meta.url), 'utf8');

interface Kind {
  readonly template: string;
  readonly tokenizer: string;
  /** Text of the tokens that may close a turn; the last closes one in this template. */
  readonly endings: readonly string[];
}

const kinds: readonly Kind[] = [
  { template: 'headers.jinja', tokenizer: 'llama3', endings: ['<|end|>', '<|eot_id|>'] },
  { template: 'turns.jinja', tokenizer: 'gemma3', endings: ['</s>', '<end_of_turn>'] },
  { template: 'instruct.jinja', tokenizer: 'llama2', endings: ['</s>'] },
  { template: 'instruct.jinja', tokenizer: 'mistral', endings: ['</s>'] },
  { template: 'lines.jinja', tokenizer: 'phi3', endings: ['<|endoftext|>', '<|end|>'] },
  { template: 'thinking.jinja', tokenizer: 'qwen', endings: ['<|endoftext|>', '<|im_end|>'] },
];

const user = (content: string): TemplateMessage => ({ role: 'user', content });
const assistant = (content: string): TemplateMessage => ({ role: 'assistant', content });
const words = fc.string({ unit: fc.constantFrom('a', 'The', ' ', '\n', 'é', '😀', '2', '.', '<', '▁'), maxLength: 12 });
const turns = fc.array(fc.tuple(words, words), { minLength: 1, maxLength: 3 });

describe.each(kinds)('$template with $tokenizer', ({ template: file, tokenizer: name, endings }) => {
  const tokenizer = createTokenizer(addTokens(JSON.parse(read(`tokenizers/${name}.json`)) as TokenizerFile, endings));
  const config = { bos_token: '<s>', eos_token: endings[0], chat_template: read(`templates/${file}`) };
  const template = createChatTemplate(config, endings);
  const now = new Date(2026, 5, 4);

  test('ids up to the end of the turn + ids of the suffix = ids of the whole', () => {
    let continued = 0;
    fc.assert(
      fc.property(turns, words, (earlier, next) => {
        const previous = earlier.flatMap(([question, answer]) => [user(question), assistant(answer)]);
        const messages = [...previous, user(next)];
        const suffix = template.renderSuffix(previous, messages, { now });
        const whole = template.render({ messages, addGenerationPrompt: true, now });
        if (suffix === null) return;
        continued += 1;
        const prefix = whole.slice(0, whole.length - suffix.length);
        expect(prefix + suffix).toBe(whole);
        expect(prefix.endsWith(endings.at(-1) as string)).toBe(true);
        const afterId = tokenizer.tokenId(endings.at(-1) as string) as number;
        const rejoined = [...tokenizer.encode(prefix), ...tokenizer.encode(suffix, { afterId })];
        expect(rejoined).toEqual(tokenizer.encode(whole));
      }),
      { numRuns: 60, seed: 1 },
    );
    expect(continued).toBe(60);
  });

  test('the token that closes a turn is found among those that may', () => {
    expect(template.endOfTurn).toBe(endings.at(-1));
  });

  test('what the assistant said does not matter, also where the template rewrites it', () => {
    const first = [user('hi'), assistant('<think>\nso\n</think>\n\nyes standin')];
    const suffix = template.renderSuffix(first, [...first, user('again')], { now });
    const plain = [user('hi'), assistant('no')];
    expect(suffix).toBe(template.renderSuffix(plain, [...plain, user('again')], { now }));
    expect(suffix).toContain('again');
  });
});

test('null where the template does not write or close the turn', () => {
  const first = [user('hi'), assistant('yes')];
  const suffixOf = (source: string) =>
    createChatTemplate({ eos_token: '</s>', chat_template: source }).renderSuffix(first, [...first, user('again')]);
  expect(suffixOf('{% for m in messages %}{{ m.content }}</s>{% endfor %}')).toBe('again</s>');
  expect(suffixOf('{% for m in messages %}{{ m.content }}{% endfor %}')).toBeNull();
  expect(suffixOf('{% for m in messages %}{{ m.content }}|{% endfor %}</s>')).toBeNull();
  expect(suffixOf('{% for m in messages if m.role == "user" %}{{ m.content }}</s>{% endfor %}')).toBeNull();
  expect(
    suffixOf('{% for m in messages %}{{ m.content }}</s>{% endfor %}{{ messages[1].content | length }}'),
  ).toBeNull();
});

test('thinking: the results of a tool continue the turn that called it', () => {
  const template = createChatTemplate({ eos_token: '<|im_end|>', chat_template: read('templates/thinking.jinja') });
  const call = { id: 'a', type: 'function', function: { name: 'look', arguments: '{"at": 1.0}' } };
  const previous = [user('hi'), { role: 'assistant', content: '', reasoning_content: 'so', tool_calls: [call] }];
  const messages = [...previous, { role: 'tool', tool_call_id: 'a', content: '21' }];
  expect(template.renderSuffix(previous, messages)).toBe(
    '\n<|im_start|>user\n<result>\n21\n</result><|im_end|>\n<|im_start|>assistant\n',
  );
  expect(template.render({ messages, addGenerationPrompt: false })).toContain('"arguments": {"at": 1.0}}');
});

interface TokenizerFile {
  readonly added_tokens: readonly { readonly id: number; readonly content: string }[];
  readonly model: { readonly vocab: Readonly<Record<string, number>> };
}

function addTokens(json: TokenizerFile, contents: readonly string[]): TokenizerFile {
  const known = new Set(json.added_tokens.map((token) => token.content));
  const first = Math.max(...json.added_tokens.map((token) => token.id), ...Object.values(json.model.vocab)) + 1;
  const more = contents
    .filter((content) => !known.has(content))
    .map((content, index) => ({ id: first + index, content, special: true }));
  return { ...json, added_tokens: [...json.added_tokens, ...more] };
}
