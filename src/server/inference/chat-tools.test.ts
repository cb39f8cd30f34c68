/** Tools, reasoning and response formats of `/v1/chat/completions`, over HTTP with OpenAI's client and a scripted engine. */
import type { ChatCompletionChunk, ChatCompletionCreateParamsNonStreaming } from 'openai/resources/chat/completions';
import { describe, expect, test } from 'vitest';
import { type Served, type ServeOptions, serveScripted } from '../../../test/server/serve-scripted.ts';
import { modelState } from './model-lookup.ts';

const serve = (texts: readonly string[], options: ServeOptions = {}): Promise<Served> =>
  serveScripted(texts, { maxPositions: 4096, ...options });

type Ask = ChatCompletionCreateParamsNonStreaming & Record<string, unknown>;

const weather = {
  type: 'function' as const,
  function: {
    name: 'weather',
    description: 'The weather of a city',
    parameters: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] },
  },
};
const ask: Ask = { model: 'm', messages: [{ role: 'user', content: 'hello' }], tools: [weather], seed: 1 };
const callText = '<tool_call>\n{"name": "weather", "arguments": {"city": "Bern"}}\n</tool_call>';
const secondCall = callText.replace('Bern', 'Rome');

const promptText = ({ model }: Served, index = 0): string =>
  model.tokenizer.decode(model.engine.requests[index]?.promptIds ?? []);

async function readAll(stream: AsyncIterable<ChatCompletionChunk>): Promise<ChatCompletionChunk[]> {
  const chunks: ChatCompletionChunk[] = [];
  for await (const chunk of stream) chunks.push(chunk);
  return chunks;
}

describe('tools', () => {
  test('a call is a tool call, not content, and the prompt shows the tools', async () => {
    const served = await serve([`${callText}<|im_end|>`]);
    const completion = await served.client.chat.completions.create(ask);
    const choice = completion.choices[0];
    expect(choice?.finish_reason).toBe('tool_calls');
    expect(choice?.message).toEqual({
      role: 'assistant',
      content: null,
      refusal: null,
      tool_calls: [
        {
          id: expect.stringMatching(/^[a-z0-9]{9}$/),
          type: 'function',
          function: { name: 'weather', arguments: '{"city": "Bern"}' },
        },
      ],
    });
    expect(promptText(served)).toContain(
      '\n{"type": "function", "function": {"name": "weather", "description": "The weather of a city", "parameters": ',
    );
    // What is trained is what was sampled, whatever the client sees.
    const { tokenIds } = served.model.completions.get(completion.id, 0) ?? {};
    expect(tokenIds).toEqual(served.model.tokenizer.encode(`${callText}<|im_end|>`));
  });

  test('text before calls stays content; ids of calls differ and come back with the seed', async () => {
    const { client } = await serve([`left\n${callText}\n${secondCall}<|im_end|>`]);
    const [first, again] = [await client.chat.completions.create(ask), await client.chat.completions.create(ask)];
    const message = first.choices[0]?.message;
    expect(message?.content).toBe('left');
    expect(message?.tool_calls?.map((call) => (call.type === 'function' ? call.function.arguments : ''))).toEqual([
      '{"city": "Bern"}',
      '{"city": "Rome"}',
    ]);
    expect(new Set(message?.tool_calls?.map(({ id }) => id)).size).toBe(2);
    expect(again.choices[0]?.message).toEqual(message);
  });

  test('deltas have index, id and name first; finish and usage have chunks of their own', async () => {
    const { client } = await serve([`left\n${callText}\n${secondCall}<|im_end|>`]);
    const whole = await client.chat.completions.create(ask);
    const options = { stream: true as const, stream_options: { include_usage: true } };
    const chunks = await readAll(await client.chat.completions.create({ ...ask, ...options }));
    const choices = chunks.flatMap((chunk) => chunk.choices);
    const deltas = choices.flatMap(({ delta }) => delta.tool_calls ?? []);
    for (const { delta } of choices) expect(delta.tool_calls?.length ?? 1).toBe(1);
    expect(choices.map(({ delta }) => delta.content ?? '').join('')).toBe('left');
    for (const [index, call] of (whole.choices[0]?.message.tool_calls ?? []).entries()) {
      const own = deltas.filter((delta) => delta.index === index);
      expect(own[0]).toMatchObject({ id: call.id, type: 'function', function: { name: 'weather' } });
      expect(own.slice(1).every((delta) => delta.id === undefined && delta.function?.name === undefined)).toBe(true);
      const argumentsText = own.map((delta) => delta.function?.arguments ?? '').join('');
      expect(argumentsText).toBe(call.type === 'function' ? call.function.arguments : '');
    }
    expect(choices.at(-1)).toMatchObject({ delta: {}, finish_reason: 'tool_calls' });
    expect(choices.filter((choice) => choice.finish_reason !== null).length).toBe(1);
    const { completion_tokens } = whole.usage ?? {};
    expect(chunks.at(-1)).toMatchObject({ choices: [], usage: { completion_tokens } });
  });

  test.each([true, false])('a malformed call is text and is counted, streaming: %s', async (stream) => {
    const broken = '<tool_call>\n{"name": "weather", "arguments": {"city": \n</tool_call>';
    const { client, model } = await serve([`${broken}<|im_end|>`]);
    if (stream) {
      const chunks = await readAll(await client.chat.completions.create({ ...ask, stream: true }));
      expect(chunks.map((chunk) => chunk.choices[0]?.delta.content ?? '').join('')).toBe(broken);
      expect(chunks.at(-1)?.choices[0]?.finish_reason).toBe('stop');
    } else {
      const { choices } = await client.chat.completions.create(ask);
      expect(choices[0]).toMatchObject({ message: { content: broken }, finish_reason: 'stop' });
      expect(choices[0]?.message.tool_calls).toBeUndefined();
    }
    expect(modelState(model)).toMatchObject({ malformedToolCalls: 1, inFlight: 0 });
  });

  test('a call that max_tokens cuts ends with length', async () => {
    const { client } = await serve([`${callText}<|im_end|>`]);
    const { choices } = await client.chat.completions.create({ ...ask, max_tokens: 20 });
    expect(choices[0]?.finish_reason).toBe('length');
    expect(choices[0]?.message.tool_calls).toBeUndefined();
  });

  test('with tool_choice none the prompt is the same and nothing is read as a call', async () => {
    const served = await serve([`${callText}<|im_end|>`]);
    const { choices } = await served.client.chat.completions.create({ ...ask, tool_choice: 'none' });
    expect(choices[0]).toMatchObject({ message: { content: callText }, finish_reason: 'stop' });
    await served.client.chat.completions.create(ask);
    expect(promptText(served, 0)).toBe(promptText(served, 1));
  });

  test('the turn after a tool result continues the sampled ids', async () => {
    const served = await serve([`${callText}<|im_end|>`, 'up<|im_end|>']);
    const { client, model } = served;
    const first = await client.chat.completions.create(ask);
    const message = first.choices[0]?.message as Ask['messages'][number];
    const id = first.choices[0]?.message.tool_calls?.[0]?.id ?? '';
    const messages: Ask['messages'] = [...ask.messages, message, { role: 'tool', tool_call_id: id, content: 'rain' }];
    const { data, response } = await client.chat.completions.create({ ...ask, messages }).withResponse();
    const { promptIds = [], tokenIds = [] } = model.completions.get(first.id, 0) ?? {};
    const suffix = model.tokenizer.encode(
      '\n<|im_start|>user\n<tool_response>\nrain\n</tool_response><|im_end|>\n<|im_start|>assistant\n',
    );
    expect(model.engine.requests[1]?.promptIds).toEqual([...promptIds, ...tokenIds, ...suffix]);
    expect(response.headers.get('x-art-rerendered')).toBeNull();
    expect(data.choices[0]?.message.content).toBe('up');
  });
});

describe('constraints', () => {
  const parameters = weather.function.parameters;
  const other = { type: 'function' as const, function: { name: 'other', parameters: { type: 'object' } } };
  const tagOf = (name: string, schema: object): object => ({
    type: 'tag',
    begin: `<tool_call>\n{"name": "${name}", "arguments": `,
    content: { type: 'jsonSchema', schema },
    end: '}\n</tool_call>',
  });
  const separated = { type: 'separatedTags', separator: '\n', isRequired: true };
  const both = [tagOf('weather', parameters), tagOf('other', { type: 'object' })];
  const json = { type: 'jsonSchema', schema: { type: 'object' } };
  const strict = { ...weather, function: { ...weather.function, strict: true } };
  const triggered = { type: 'triggeredTags', triggers: ['<tool_call>'], isRequired: false };
  test.each([
    ['auto leaves the text free', {}, undefined],
    ['none too', { tool_choice: 'none' }, undefined],
    ['required', { tool_choice: 'required' }, { ...separated, tags: both, isSingle: false }],
    [
      'required, one at a time',
      { tool_choice: 'required', parallel_tool_calls: false },
      { ...separated, tags: both, isSingle: true },
    ],
    [
      'named',
      { tool_choice: { type: 'function', function: { name: 'weather' } } },
      { ...separated, tags: both.slice(0, 1), isSingle: true },
    ],
    [
      'auto, one at a time',
      { parallel_tool_calls: false },
      { ...triggered, tags: ['weather', 'other'].map((name) => tagOf(name, { type: 'object' })), isSingle: true },
    ],
    ['auto with a strict tool', { tools: [strict, other] }, { ...triggered, tags: both, isSingle: false }],
    [
      'auto with a response format',
      { response_format: { type: 'json_object' } },
      { type: 'oneOf', options: [...both, json] },
    ],
    ['none with a response format', { response_format: { type: 'json_object' }, tool_choice: 'none' }, json],
  ])('%s', async (_name, options, constraint) => {
    const { client, model } = await serve(['up<|im_end|>']);
    await client.chat.completions.create({ ...ask, tools: [weather, other], ...options } as Ask);
    expect(model.engine.requests[0]?.sampling.constraint).toEqual(constraint);
  });
});

describe('models without tools of their own', () => {
  const turns =
    '{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}';
  const noSystem = `{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}${turns}`;

  test.each([
    ['in the system message', turns, /^<\|im_start\|>system\n# Tools\n/],
    ['in the first message where the template has no system message', noSystem, /^<\|im_start\|>user\n# Tools\n/],
  ])('tools are text %s', async (_name, chatTemplate, begin) => {
    const served = await serve([`${callText}<|im_end|>`, 'up<|im_end|>'], { chatTemplate });
    const { client, model } = served;
    const first = await client.chat.completions.create(ask);
    expect(promptText(served)).toMatch(begin);
    expect(promptText(served)).toContain('{"type":"function","function":{"name":"weather"');
    const message = first.choices[0]?.message;
    expect(message?.tool_calls?.length).toBe(1);
    const results = ['rain', 'sun'].map((content) => ({ role: 'tool' as const, tool_call_id: 'x', content }));
    const messages = [...ask.messages, message as Ask['messages'][number], ...results];
    await client.chat.completions.create({ ...ask, messages });
    const { promptIds = [], tokenIds = [] } = model.completions.get(first.id, 0) ?? {};
    const responses = ['rain', 'sun'].map((text) => `<tool_response>\n${text}\n</tool_response>`).join('\n');
    const suffix = model.tokenizer.encode(`\n<|im_start|>user\n${responses}<|im_end|>\n<|im_start|>assistant\n`);
    expect(model.engine.requests[1]?.promptIds).toEqual([...promptIds, ...tokenIds, ...suffix]);
  });
});

describe('reasoning', () => {
  const chatTemplate =
    '{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}';
  const reply = '<think>\nright or up\n</think>\n\nleft<|im_end|>';

  test('it is reasoning_content, apart from content, whole and in deltas', async () => {
    const { client } = await serve([reply], { chatTemplate });
    const { tools: _tools, ...plain } = ask;
    const whole = await client.chat.completions.create(plain);
    expect(whole.choices[0]?.message).toMatchObject({ content: 'left', reasoning_content: 'right or up' });
    const chunks = await readAll(await client.chat.completions.create({ ...plain, stream: true }));
    const deltas = chunks.map((chunk) => (chunk.choices[0]?.delta ?? {}) as Record<string, string | undefined>);
    expect(deltas.map((delta) => delta.reasoning_content ?? '').join('')).toBe('right or up');
    expect(deltas.map((delta) => delta.content ?? '').join('')).toBe('left');
  });

  test('it may come before what a format asks for', async () => {
    const { client, model } = await serve([reply], { chatTemplate });
    await client.chat.completions.create({ ...ask, tools: [], response_format: { type: 'json_object' } });
    const json = { type: 'jsonSchema', schema: { type: 'object' } };
    const thought = { type: 'tag', begin: '<think>', content: { type: 'anyText' }, end: '</think>' };
    const space = { type: 'regex', pattern: '[ \\n]{0,4}' };
    const options = [json, { type: 'sequence', parts: [thought, space, json] }];
    expect(model.engine.requests[0]?.sampling.constraint).toEqual({ type: 'oneOf', options });
  });

  test('sent back, it reaches the template; chat_template_kwargs do too', async () => {
    const served = await serve([reply], { chatTemplate });
    const assistant = { role: 'assistant', content: 'b', reasoning_content: 'why' } as Ask['messages'][number];
    const messages: Ask['messages'] = [...ask.messages, assistant, ...ask.messages];
    await served.client.chat.completions.create({ model: 'm', messages });
    expect(promptText(served)).toContain('<think>\nwhy\n</think>\n\nb<|im_end|>');
    const kwargs = { chat_template_kwargs: { enable_thinking: false } };
    await served.client.chat.completions.create({ model: 'm', messages: ask.messages, ...kwargs });
    await served.client.chat.completions.create({ model: 'm', messages: ask.messages, reasoning_effort: 'none' });
    for (const index of [1, 2]) expect(promptText(served, index)).toMatch(/<think>\n\n<\/think>\n\n$/);
  });
});
