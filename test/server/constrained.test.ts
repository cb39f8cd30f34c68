/** Constraints of requests on the embedded engine: an untrained policy, which writes anything, says what it must. */
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import OpenAI from 'openai';
import type { ChatCompletion, ChatCompletionCreateParamsNonStreaming } from 'openai/resources/chat/completions';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { writeStarterModel } from '../../src/formats/starter-model.ts';
import { loadTokenizer } from '../../src/formats/tokenizer.ts';
import { LocalBackend, TrainableModel } from '../../src/index.ts';

let root = '';
let backend: LocalBackend;
let client: OpenAI;

beforeAll(async () => {
  root = await mkdtemp(join(tmpdir(), 'art-constrained-'));
  const directory = join(root, 'base');
  const sizes = { width: 32, layers: 1, heads: 2, kvHeads: 1, headSize: 16, ffWidth: 64, maxPositions: 2048 };
  await writeStarterModel({ seed: 1, directory, corpus: ['Say yes or no.', 'yes', 'no'], ...sizes });
  const engine = { trainThreads: 1, sampleThreads: 1, cacheTokens: 32_768, maxRunningSequences: 16 };
  backend = new LocalBackend({ path: join(root, 'runs'), engine });
  const init = { name: 'm', project: 'test', baseModel: directory, lora: { rank: 4, alpha: 8 } };
  const model = new TrainableModel(init);
  await model.register(backend);
  await new TrainableModel({ ...init, name: 'thinking', chatTemplate: thinkingTemplate }).register(backend);
  client = model.openaiClient();
});
afterAll(async () => {
  await backend.close();
  await rm(root, { recursive: true, force: true });
});

/** Knows reasoning, and begins it; has no tools of its own. */
const thinkingTemplate =
  '{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>{% endif %}{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% if begin_thinking %}<think>\n{% endif %}{% endif %}';

type Ask = Partial<ChatCompletionCreateParamsNonStreaming> & Record<string, unknown>;

async function ask(options: Ask): Promise<ChatCompletion.Choice[]> {
  const messages: Ask['messages'] = [{ role: 'user', content: 'Say yes or no.' }];
  const request = { model: 'm', messages, seed: 3, n: 4, ...options } as ChatCompletionCreateParamsNonStreaming;
  return (await client.chat.completions.create(request)).choices;
}

const schema = {
  type: 'object',
  properties: { city: { enum: ['Bern', 'Rome'] }, days: { type: 'integer', minimum: 1, maximum: 9 } },
  required: ['city', 'days'],
  additionalProperties: false,
};
const tools = ['weather', 'forecast'].map((name) => ({
  type: 'function' as const,
  function: { name, parameters: schema },
}));

function checkArguments(text: string): void {
  const value = JSON.parse(text) as { city: string; days: number };
  expect(Object.keys(value).sort()).toEqual(['city', 'days']);
  expect(['Bern', 'Rome']).toContain(value.city);
  expect(value.days).toBeGreaterThanOrEqual(1);
  expect(value.days).toBeLessThanOrEqual(9);
}

test('required tools and a named one are called, with arguments that fit', async () => {
  const required = await ask({ tools, tool_choice: 'required', parallel_tool_calls: false });
  const named = await ask({ tools, tool_choice: { type: 'function', function: { name: 'forecast' } } });
  for (const { message, finish_reason } of [...required, ...named]) {
    expect([message.content, finish_reason, message.tool_calls?.length]).toEqual([null, 'tool_calls', 1]);
    for (const call of message.tool_calls ?? []) if (call.type === 'function') checkArguments(call.function.arguments);
  }
  const names = named
    .flatMap(({ message }) => message.tool_calls ?? [])
    .map((call) => 'function' in call && call.function.name);
  expect(names).toEqual(['forecast', 'forecast', 'forecast', 'forecast']);
});

test('formats of responses hold', async () => {
  const json_schema = { name: 'a', schema, strict: true };
  for (const { message } of await ask({ response_format: { type: 'json_schema', json_schema } })) {
    checkArguments(message.content ?? '');
  }
  const codes = await ask({ structured_outputs: { regex: '[a-d]{2}-[0-9]' } });
  for (const { message } of codes) expect(message.content).toMatch(/^[a-d]{2}-[0-9]$/);
  const answers = await ask({ structured_outputs: { choice: ['yes', 'no'] } });
  for (const { message } of answers) expect(['yes', 'no']).toContain(message.content);
});

test('with tools and a format the policy calls or answers', async () => {
  const json_schema = { name: 'a', schema };
  const choices = await ask({
    tools,
    response_format: { type: 'json_schema', json_schema },
    n: 8,
    parallel_tool_calls: false,
  });
  for (const { message } of choices) {
    const calls = message.tool_calls ?? [];
    if (calls.length === 0) checkArguments(message.content ?? '');
    for (const call of calls) if (call.type === 'function') checkArguments(call.function.arguments);
  }
});

test('a required call may come without reasoning before it', async () => {
  const [letter] = (await loadTokenizer(join(root, 'base'))).encode('h');
  // Both ways begin with `<t`; `h` would go on to `<think>`.
  const choices = await ask({
    model: 'thinking',
    tools,
    tool_choice: 'required',
    logit_bias: { [String(letter)]: -100 },
    max_tokens: 400,
  });
  for (const { message } of choices) {
    expect(message).toMatchObject({ content: null });
    expect(message).not.toHaveProperty('reasoning_content');
  }
  const calls = choices.flatMap(({ message }) => message.tool_calls ?? []);
  expect(calls.length).toBeGreaterThan(0);
  for (const call of calls) if (call.type === 'function') checkArguments(call.function.arguments);
});

test('where the prompt begins to reason, the reply reasons before its call', async () => {
  const variables = { chat_template_kwargs: { begin_thinking: true } };
  for (const { message } of await ask({
    model: 'thinking',
    tools,
    tool_choice: 'required',
    max_tokens: 40,
    ...variables,
  })) {
    expect(message).toMatchObject({ content: '', reasoning_content: expect.stringMatching(/\S/) });
  }
});

test('a schema that cannot be kept is refused, and says why', async () => {
  const bad = { name: 'a', schema: { type: 'strange' } };
  const error: unknown = await ask({ response_format: { type: 'json_schema', json_schema: bad } }).catch(
    (e: unknown) => e,
  );
  expect(error).toBeInstanceOf(OpenAI.BadRequestError);
  expect((error as Error).message).toContain('strange');
});
