import { describe, expect, test } from 'vitest';
import type { AnthropicEvent, AnthropicMessage } from '../../wire/anthropic-output.ts';
import { createApp } from '../app.ts';
import { createScriptedModel, type ScriptedModel } from '../testing-model.ts';

interface Served {
  readonly model: ScriptedModel;
  readonly post: (body: object, path?: string) => Promise<Response>;
}

/** Replies in turn, each the tokens of a text; `<|im_end|>` ends one. */
async function serve(texts: readonly string[], error?: Error): Promise<Served> {
  const model = await createScriptedModel(
    (tokenizer) => (_request, call) => ({
      tokenIds: tokenizer.encode(texts[call % texts.length] as string),
      ...(error !== undefined && { error }),
    }),
    { policySteps: [3, 4] },
  );
  const app = createApp({
    models: () => [model],
    findModel: (name) => (name === model.name ? model : undefined),
    onInternalError: () => {},
  });
  const post: Served['post'] = async (body, path = '/v1/messages') =>
    await app.request(path, {
      method: 'POST',
      headers: { 'content-type': 'application/json', 'anthropic-version': '2023-06-01' },
      body: JSON.stringify(body),
    });
  return { model, post };
}

const ask = { model: 'm', max_tokens: 20, messages: [{ role: 'user', content: 'hello' }] };

async function readMessage(response: Response): Promise<AnthropicMessage> {
  expect(response.status).toBe(200);
  return (await response.json()) as AnthropicMessage;
}

/** Checks that the name of each event is its type. */
async function readEvents(response: Response): Promise<AnthropicEvent[]> {
  const blocks = (await response.text()).split('\n\n').filter((block) => block !== '');
  return blocks.map((block) => {
    const [, name, data] = /^event: (.*)\ndata: (.*)$/.exec(block) ?? [];
    const event = JSON.parse(data ?? '') as AnthropicEvent;
    expect(event.type).toBe(name);
    return event;
  });
}

describe('whole answers', () => {
  test('the message, its usage and origin; the turn is kept for training', async () => {
    const { model, post } = await serve(['left<|im_end|>']);
    const response = await post({ ...ask, seed: 5, return_token_ids: true });
    const message = await readMessage(response);
    const promptIds = model.engine.requests[0]?.promptIds ?? [];
    const sampled = model.tokenizer.encode('left<|im_end|>');
    expect(message).toEqual({
      id: message.id,
      type: 'message',
      role: 'assistant',
      model: 'm',
      content: [{ type: 'text', text: 'left', citations: null }],
      stop_reason: 'end_turn',
      stop_sequence: null,
      usage: {
        input_tokens: promptIds.length,
        output_tokens: sampled.length,
        cache_creation_input_tokens: 0,
        cache_read_input_tokens: 0,
      },
      art: { seed: 5, completion_id: message.id, policy_step: 4 },
      prompt_token_ids: promptIds,
      token_ids: sampled,
    });
    expect(response.headers.get('x-art-policy-step')).toBe('4');
    expect(model.completions.get(message.id, 0)).toMatchObject({ policyStep: 4, promptIds, tokenIds: sampled });
  });

  test('system blocks and blocks of the user become the prompt, whatever is to be cached', async () => {
    const { model, post } = await serve(['up<|im_end|>']);
    const text = (value: string): object => ({ type: 'text', text: value, cache_control: { type: 'ephemeral' } });
    await post({
      ...ask,
      system: [text('left'), text('right')],
      messages: [{ role: 'user', content: [text('hello'), text('world')] }],
    });
    expect(model.tokenizer.decode(model.engine.requests[0]?.promptIds ?? [])).toBe(
      '<|im_start|>system\nleft\nright<|im_end|>\n<|im_start|>user\nhello\nworld<|im_end|>\n<|im_start|>assistant\n',
    );
  });

  test('why it ended: a stop sequence by name, or out of tokens', async () => {
    const { post } = await serve(['left right up<|im_end|>']);
    const stopped = await readMessage(await post({ ...ask, stop_sequences: ['down', ' up', 'right u'] }));
    expect(stopped).toMatchObject({ stop_reason: 'stop_sequence', stop_sequence: 'right u' });
    expect(stopped.content).toEqual([{ type: 'text', text: 'left ', citations: null }]);
    const cut = await readMessage(await post({ ...ask, max_tokens: 2 }));
    expect(cut).toMatchObject({ stop_reason: 'max_tokens', stop_sequence: null });
  });

  test('sampling fields reach the engine', async () => {
    const { model, post } = await serve(['up<|im_end|>']);
    await post({ ...ask, temperature: 0.5, top_p: 0.9, top_k: 5, stop_sequences: ['x'] });
    expect(model.engine.requests[0]?.sampling).toMatchObject({
      maxTokens: 20,
      temperature: 0.5,
      topP: 0.9,
      topK: 5,
      stopStrings: ['x'],
    });
  });
});

describe('streams', () => {
  test('every event in order; deltas add up', async () => {
    const { model, post } = await serve(['left right<|im_end|>']);
    const events = await readEvents(await post({ ...ask, stream: true, return_token_ids: true }));
    expect([...new Set(events.map((event) => event.type))]).toEqual([
      'message_start',
      'ping',
      'content_block_start',
      'content_block_delta',
      'content_block_stop',
      'message_delta',
      'message_stop',
    ]);
    const text = events.map((event) =>
      event.type === 'content_block_delta' && event.delta.type === 'text_delta' ? event.delta.text : '',
    );
    expect(text.join('')).toBe('left right');
    const end = events.find((event) => event.type === 'message_delta');
    const promptIds = model.engine.requests[0]?.promptIds ?? [];
    expect(end).toMatchObject({
      delta: { stop_reason: 'end_turn', stop_sequence: null },
      usage: { input_tokens: promptIds.length, cache_read_input_tokens: 0 },
      art: { policy_step: 4 },
      token_ids: model.tokenizer.encode('left right<|im_end|>'),
    });
    expect(events[0]).toMatchObject({ message: { content: [], stop_reason: null, prompt_token_ids: promptIds } });
  });

  test("an engine that fails after the first token ends the stream with Anthropic's error, which hides the cause", async () => {
    const { post } = await serve(['left right'], new Error('secret detail'));
    const events = await readEvents(await post({ ...ask, stream: true }));
    expect(events.at(-1)).toEqual({ type: 'error', error: { type: 'api_error', message: 'internal error' } });
  });
});

test('the next turn repeats the sampled ids, in a rollout of its own too', async () => {
  const { model, post } = await serve(['left<|im_end|>', 'up<|im_end|>']);
  const path = '/rollouts/r1/v1/messages';
  const first = await readMessage(await post(ask, path));
  const history = [...ask.messages, { role: 'assistant', content: first.content }, { role: 'user', content: 'down' }];
  const second = await post({ ...ask, messages: history }, path);
  const [one, two] = model.engine.requests;
  const prefix = [...(one?.promptIds ?? []), ...model.tokenizer.encode('left<|im_end|>')];
  expect(two?.promptIds.slice(0, prefix.length)).toEqual(prefix);
  expect(second.headers.get('x-art-rerendered')).toBeNull();
});

test('count_tokens tells the length of the prompt that such a message would have', async () => {
  const { model, post } = await serve(['left<|im_end|>']);
  const counted = await post({ model: 'm', messages: ask.messages, system: 'up' }, '/v1/messages/count_tokens');
  expect(model.engine.requests).toEqual([]);
  await post({ ...ask, system: 'up' });
  expect(await counted.json()).toEqual({ input_tokens: model.engine.requests[0]?.promptIds.length });
});

describe('refusals have the shape of Anthropic', () => {
  test.each([
    [{ ...ask, max_tokens: undefined }, 400, 'invalid_request_error', 'max_tokens: is required'],
    [{ ...ask, model: 'other' }, 404, 'not_found_error', 'model: must be one that is served (m), got "other"'],
    [{ ...ask, thinking_mode: 1 }, 400, 'invalid_request_error', 'thinking_mode: unknown field'],
    [{ ...ask, container: 'c' }, 400, 'invalid_request_error', 'container: not supported, got "c"'],
    [
      { ...ask, thinking: { type: 'enabled', budget_tokens: 1024 } },
      400,
      'invalid_request_error',
      'thinking.type: must be disabled or adaptive: a budget is not supported, got "enabled"',
    ],
    [
      { ...ask, tools: [{ type: 'web_search_20250305', name: 'web_search' }] },
      400,
      'invalid_request_error',
      'tools[0].type: must be custom: the server runs no tools itself, got "web_search_20250305"',
    ],
    [
      { ...ask, messages: [{ role: 'user', content: [{ type: 'image', source: {} }] }] },
      400,
      'invalid_request_error',
      'messages[0].content[0].type: must be text or tool_result in a message of the user: only text is supported, got "image"',
    ],
    [
      { ...ask, messages: [...ask.messages, { role: 'assistant', content: 'The answer is' }] },
      400,
      'invalid_request_error',
      'messages[1].role: must be user in the last message: continuing a text of the assistant is not supported, got assistant',
    ],
  ])('%j', async (body, status, type, message) => {
    const { post } = await serve(['left']);
    const response = await post(body);
    expect(response.status).toBe(status);
    expect(await response.json()).toEqual({ type: 'error', error: { type, message } });
  });
});
