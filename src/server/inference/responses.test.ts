import OpenAI from 'openai';
import type {
  ResponseCreateParamsNonStreaming,
  ResponseInput,
  ResponseStreamEvent,
} from 'openai/resources/responses/responses';
import { afterEach, describe, expect, test } from 'vitest';
import type { ScriptedEngineOptions } from '../../testing/index.ts';
import { createApp } from '../app.ts';
import { type RunningServer, startServer } from '../listen.ts';
import { createScriptedModel, type ScriptedModel } from '../testing-model.ts';
import { createResponseStore, type StoredResponse } from './responses-store.ts';

const servers: RunningServer[] = [];

afterEach(async () => {
  await Promise.all(servers.splice(0).map((server) => server.close()));
});

interface Served {
  readonly model: ScriptedModel;
  readonly client: OpenAI;
  readonly url: string;
}

/** Replies in turn, each the tokens of a text; `<|im_end|>` ends one. */
async function serve(
  texts: readonly string[],
  options: Omit<ScriptedEngineOptions, 'reply' | 'decode'> & { readonly error?: Error } = {},
): Promise<Served> {
  const { error, ...engineOptions } = options;
  const model = await createScriptedModel(
    (tokenizer) => (_request, call) => ({
      tokenIds: tokenizer.encode(texts[call % texts.length] as string),
      ...(error !== undefined && { error }),
    }),
    engineOptions,
  );
  const app = createApp({ models: () => [model], findModel: (name) => (name === model.name ? model : undefined) });
  const server = await startServer(app);
  servers.push(server);
  const { url } = server;
  return { model, url, client: new OpenAI({ baseURL: `${url}/v1`, apiKey: 'none', maxRetries: 0 }) };
}

type Request = ResponseCreateParamsNonStreaming & {
  readonly return_token_ids?: boolean;
  readonly seed?: number;
};

const ask: Request = { model: 'm', input: 'hello' };

async function readAll(stream: AsyncIterable<ResponseStreamEvent>): Promise<ResponseStreamEvent[]> {
  const events: ResponseStreamEvent[] = [];
  for await (const event of stream) events.push(event);
  return events;
}

describe('whole answers', () => {
  test('the official client reads the text; the answer says which step sampled it and is kept for training', async () => {
    const { client, model } = await serve(['left<|im_end|>'], { policySteps: [3, 4] });
    const request: Request = { ...ask, return_token_ids: true, seed: 5 };
    const { data, response } = await client.responses.create(request).withResponse();
    const sampled = model.tokenizer.encode('left<|im_end|>');
    const promptIds = model.engine.requests[0]?.promptIds ?? [];
    expect(data.output_text).toBe('left');
    expect(data).toMatchObject({
      object: 'response',
      status: 'completed',
      error: null,
      incomplete_details: null,
      store: true,
      usage: {
        input_tokens: promptIds.length,
        input_tokens_details: { cached_tokens: 0 },
        output_tokens: sampled.length,
        output_tokens_details: { reasoning_tokens: 0 },
        total_tokens: promptIds.length + sampled.length,
      },
      art: { seed: 5, completion_id: data.id, policy_step: 4 },
      prompt_token_ids: promptIds,
      token_ids: sampled,
    });
    expect(response.headers.get('x-art-policy-step')).toBe('4');
    expect(model.completions.get(data.id, 0)).toMatchObject({ policyStep: 4, promptIds, tokenIds: sampled });
  });

  test('instructions, items of all roles and text parts become the prompt', async () => {
    const { client, model } = await serve(['up<|im_end|>']);
    await client.responses.create({
      model: 'm',
      instructions: 'left',
      input: [
        {
          role: 'user',
          content: [
            { type: 'input_text', text: 'hel' },
            { type: 'input_text', text: 'lo' },
          ],
        },
        { role: 'assistant', content: 'right' },
        { role: 'developer', content: 'world' },
        { type: 'message', role: 'user', content: 'down' },
      ],
    });
    expect(model.tokenizer.decode(model.engine.requests[0]?.promptIds ?? [])).toBe(
      '<|im_start|>system\nleft<|im_end|>\n<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\nright<|im_end|>\n' +
        '<|im_start|>system\nworld<|im_end|>\n<|im_start|>user\ndown<|im_end|>\n<|im_start|>assistant\n',
    );
  });

  test('a reply that runs out of tokens is incomplete, and so is its last item', async () => {
    const { client } = await serve(['left right up<|im_end|>']);
    const response = await client.responses.create({ ...ask, max_output_tokens: 2 });
    expect(response.status).toBe('incomplete');
    expect(response.incomplete_details).toEqual({ reason: 'max_output_tokens' });
    expect(response.output).toMatchObject([{ type: 'message', status: 'incomplete' }]);
  });

  test('logprobs are those of the tokens of the text, its end included', async () => {
    const { client, model } = await serve(['left<|im_end|>']);
    const response = await client.responses.create({
      ...ask,
      include: ['message.output_text.logprobs'],
      top_logprobs: 1,
    });
    const [item] = response.output;
    const part = item?.type === 'message' ? item.content[0] : undefined;
    const logprobs = part?.type === 'output_text' ? (part.logprobs ?? []) : [];
    const texts = model.tokenizer.encode('left<|im_end|>').map((id) => model.tokenizer.tokenText(id));
    expect(logprobs.map(({ token, logprob }) => [token, logprob])).toEqual(texts.map((text) => [text, -0.5]));
    expect(logprobs.map(({ top_logprobs: top }) => top.length)).toEqual(texts.map(() => 1));
  });
});

describe('streams', () => {
  test('every event in order, numbered; deltas add up to the last event', async () => {
    const { client, model } = await serve(['left right<|im_end|>'], { policySteps: [7] });
    const { data, response } = await client.responses.create({ ...ask, stream: true }).withResponse();
    const events = await readAll(data);
    const types = events.map((event) => event.type);
    expect([...new Set(types)]).toEqual([
      'response.created',
      'response.in_progress',
      'response.output_item.added',
      'response.content_part.added',
      'response.output_text.delta',
      'response.output_text.done',
      'response.content_part.done',
      'response.output_item.done',
      'response.completed',
    ]);
    expect(events.map((event) => (event as { sequence_number: number }).sequence_number)).toEqual(
      events.map((_, i) => i),
    );
    const text = events.map((event) => (event.type === 'response.output_text.delta' ? event.delta : '')).join('');
    expect(text).toBe('left right');
    const first = events[0];
    const last = events.at(-1);
    expect(first?.type === 'response.created' && first.response).toMatchObject({ status: 'in_progress', output: [] });
    const completed = last?.type === 'response.completed' ? last.response : undefined;
    expect(completed).toMatchObject({
      status: 'completed',
      output: [{ type: 'message', status: 'completed', content: [{ type: 'output_text', text: 'left right' }] }],
      usage: { output_tokens: model.tokenizer.encode('left right<|im_end|>').length },
      art: { policy_step: 7 },
    });
    expect(response.headers.get('content-type')).toContain('text/event-stream');
  });

  test("the client's own accumulator gets the same response", async () => {
    const { client } = await serve(['left right<|im_end|>']);
    const final = await client.responses.stream({ model: 'm', input: 'hello' }).finalResponse();
    expect(final.output_text).toBe('left right');
  });

  test('an engine that fails after the first token ends the stream with response.failed; nothing is kept', async () => {
    const { client, model } = await serve(['left right'], { error: new Error('secret detail') });
    const events = await readAll(await client.responses.create({ ...ask, stream: true }));
    const last = events.at(-1);
    const failed = last?.type === 'response.failed' ? last.response : undefined;
    expect(failed).toMatchObject({ status: 'failed', error: { code: 'server_error', message: 'internal error' } });
    await expect(client.responses.retrieve(failed?.id ?? '')).rejects.toMatchObject({ status: 404 });
    expect(model.completions.get(failed?.id ?? '', 0)).toBeUndefined();
  });

  test('a request that cannot be served is refused before the stream begins', async () => {
    const { client } = await serve(['left']);
    const refused = client.responses.create({ ...ask, model: 'other', stream: true });
    await expect(refused).rejects.toMatchObject({ status: 404, code: 'model_not_found' });
  });
});

describe('conversations', () => {
  const nextTurn = (served: Served): readonly number[] => {
    const [first, second] = served.model.engine.requests;
    const sampled = served.model.tokenizer.encode('left<|im_end|>');
    const prefix = [...(first?.promptIds ?? []), ...sampled];
    expect(second?.promptIds.slice(0, prefix.length)).toEqual(prefix);
    return second?.promptIds.slice(prefix.length) ?? [];
  };

  test('previous_response_id continues the sampled ids', async () => {
    const served = await serve(['left<|im_end|>', 'up<|im_end|>']);
    const first = await served.client.responses.create({ ...ask, instructions: 'right' });
    const second = await served.client.responses
      .create({ ...ask, instructions: 'right', input: 'down', previous_response_id: first.id })
      .withResponse();
    expect(served.model.tokenizer.decode(nextTurn(served))).toBe(
      '\n<|im_start|>user\ndown<|im_end|>\n<|im_start|>assistant\n',
    );
    expect(second.response.headers.get('x-art-rerendered')).toBeNull();
  });

  test('output items that are sent back continue the sampled ids, in a rollout of its own too', async () => {
    const served = await serve(['left<|im_end|>', 'up<|im_end|>']);
    const client = new OpenAI({ baseURL: `${served.url}/rollouts/r1/v1`, apiKey: 'none', maxRetries: 0 });
    const first = await client.responses.create({ ...ask, store: false });
    const output = first.output as ResponseInput;
    const input: ResponseInput = [{ role: 'user', content: 'hello' }, ...output, { role: 'user', content: 'down' }];
    await client.responses.create({ model: 'm', input });
    expect(nextTurn(served).length).toBeGreaterThan(0);
  });

  test('an item reference stands for the stored item', async () => {
    const served = await serve(['left<|im_end|>', 'up<|im_end|>']);
    const first = await served.client.responses.create(ask);
    const reference = { type: 'item_reference' as const, id: first.output[0]?.id ?? '' };
    await served.client.responses.create({
      model: 'm',
      input: [{ role: 'user', content: 'hello' }, reference, { role: 'user', content: 'down' }],
    });
    expect(nextTurn(served).length).toBeGreaterThan(0);
  });
});

describe('stored responses', () => {
  test('are read and deleted by id; store: false keeps nothing', async () => {
    const { client } = await serve(['left<|im_end|>']);
    const kept = await client.responses.create(ask);
    expect(await client.responses.retrieve(kept.id)).toMatchObject({ id: kept.id, output_text: 'left' });
    await client.responses.delete(kept.id);
    await expect(client.responses.retrieve(kept.id)).rejects.toMatchObject({ status: 404, code: 'response_not_found' });
    const dropped = await client.responses.create({ ...ask, store: false });
    const next = client.responses.create({ ...ask, previous_response_id: dropped.id });
    await expect(next).rejects.toMatchObject({ status: 404, code: 'previous_response_not_found' });
  });

  test('are dropped, the oldest first, when all together are too long', () => {
    const store = createResponseStore(3000);
    const own = store.of('a');
    const put = (id: string): void => {
      const response = { id, output: [] } as unknown as StoredResponse['response'];
      own.put({ response, messages: [{ message: { role: 'user', content: 'x'.repeat(1000) }, completionId: null }] });
    };
    for (const id of ['resp_1', 'resp_2', 'resp_3']) put(id);
    expect(['resp_1', 'resp_2', 'resp_3'].map((id) => own.get(id) !== undefined)).toEqual([false, true, true]);
    expect(store.of('b').get('resp_3')).toBeUndefined();
  });

  test('are unknown to other rollouts', async () => {
    const { client, url } = await serve(['left<|im_end|>']);
    const kept = await client.responses.create(ask);
    const other = new OpenAI({ baseURL: `${url}/rollouts/r1/v1`, apiKey: 'none', maxRetries: 0 });
    await expect(other.responses.retrieve(kept.id)).rejects.toMatchObject({ status: 404 });
  });
});
