import OpenAI from 'openai';
import type { ChatCompletionChunk, ChatCompletionCreateParamsNonStreaming } from 'openai/resources/chat/completions';
import { describe, expect, test } from 'vitest';
import { serveScripted as serve } from '../../../test/server/serve-scripted.ts';
import { deriveSeed } from '../../core/rng.ts';
import { createApp } from '../app.ts';
import { createScriptedModel } from '../testing-model.ts';

type Extended = ChatCompletionCreateParamsNonStreaming & { top_k?: number; return_token_ids?: boolean };

const ask: Extended = { model: 'm', messages: [{ role: 'user', content: 'hello' }] };

interface Extensions {
  readonly prompt_token_ids?: number[];
  readonly art?: { readonly seed: number };
}
interface ChoiceExtensions {
  readonly token_ids?: number[];
  readonly art?: {
    readonly completion_id: string;
    readonly policy_step: number;
    readonly completion_tokens: number;
  };
}

async function readAll(stream: AsyncIterable<ChatCompletionChunk>): Promise<ChatCompletionChunk[]> {
  const chunks: ChatCompletionChunk[] = [];
  for await (const chunk of stream) chunks.push(chunk);
  return chunks;
}

describe('whole answers', () => {
  test('the text has no end-of-turn token; the recorded ids are what was sampled', async () => {
    const { client, model } = await serve('left<|im_end|>', { policySteps: [3, 4] });
    const request: Extended = { ...ask, return_token_ids: true };
    const { data, response } = await client.chat.completions.create(request).withResponse();
    const choice = data.choices[0] as (typeof data.choices)[0] & ChoiceExtensions;
    const sampled = model.tokenizer.encode('left<|im_end|>');
    expect(choice.message).toEqual({ role: 'assistant', content: 'left', refusal: null });
    expect(choice.finish_reason).toBe('stop');
    expect(choice.logprobs).toBeNull();
    expect(choice.token_ids).toEqual(sampled);
    expect(choice.art).toEqual({ completion_id: data.id, policy_step: 4, completion_tokens: sampled.length });
    expect((data as Extensions).prompt_token_ids).toEqual(model.engine.requests[0]?.promptIds);
    expect(response.headers.get('x-art-policy-step')).toBe('4');
    expect(response.headers.get('x-art-rerendered')).toBeNull();
    expect(model.completions.get(data.id, 0)).toEqual({
      completionId: data.id,
      choiceIndex: 0,
      policyStep: 4,
      promptIds: model.engine.requests[0]?.promptIds,
      tokenIds: sampled,
      logprobs: sampled.map(() => -0.5),
      temperature: 1,
      finishReason: 'stop',
    });
  });

  test('the prompt is the rendered template, text parts joined', async () => {
    const { client, model } = await serve('up<|im_end|>');
    const content = [
      { type: 'text', text: 'hel' },
      { type: 'text', text: 'lo' },
    ] as const;
    await client.chat.completions.create({ ...ask, messages: [{ role: 'user', content: [...content] }] });
    expect(model.tokenizer.decode(model.engine.requests[0]?.promptIds ?? [])).toBe(
      '<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n',
    );
  });

  test('sampling options reach the engine, defaults filled in', async () => {
    const { client, model } = await serve('up<|im_end|>');
    await client.chat.completions.create({ ...ask, seed: 7 });
    const given = { temperature: 0.5, top_p: 0.9, top_k: 5, max_tokens: 3, stop: ['x', 'y'], seed: 7 };
    await client.chat.completions.create({ ...ask, ...given, logprobs: true, top_logprobs: 2 });
    const [first, second] = model.engine.requests.map((request) => request.sampling);
    const promptTokens = model.engine.requests[0]?.promptIds.length ?? 0;
    const shared = { seed: deriveSeed(7, 'choice', 0), stopTokenIds: [model.tokenizer.eosId] };
    const off = { temperature: 1, topP: 1, topK: 0, stopStrings: [], topLogprobs: 0 };
    expect(first).toEqual({ ...shared, ...off, maxTokens: 512 - promptTokens });
    const on = { temperature: 0.5, topP: 0.9, topK: 5, stopStrings: ['x', 'y'], topLogprobs: 2, maxTokens: 3 };
    expect(second).toEqual({ ...shared, ...on });
  });

  test('n choices have their own seeds and share the prompt, which usage counts once', async () => {
    const { client, model } = await serve(['left<|im_end|>', 'right<|im_end|>', 'up<|im_end|>']);
    const completion = await client.chat.completions.create({ ...ask, n: 3, seed: 1 });
    expect(completion.choices.map((choice) => [choice.index, choice.message.content])).toEqual([
      [0, 'left'],
      [1, 'right'],
      [2, 'up'],
    ]);
    const seeds = model.engine.requests.map((request) => request.sampling.seed);
    expect(seeds).toEqual([0, 1, 2].map((index) => deriveSeed(1, 'choice', index)));
    const promptTokens = model.engine.requests[0]?.promptIds.length ?? 0;
    const sampled = ['left', 'right', 'up'].flatMap((text) => model.tokenizer.encode(`${text}<|im_end|>`)).length;
    expect(completion.usage).toEqual({
      prompt_tokens: promptTokens,
      completion_tokens: sampled,
      total_tokens: promptTokens + sampled,
      prompt_tokens_details: { cached_tokens: 0 },
    });
    expect(model.completions.get(completion.id, 2)?.tokenIds).toEqual(model.tokenizer.encode('up<|im_end|>'));
  });

  test('a seed that the server draws is reported and reproduces the request', async () => {
    const { client, model } = await serve('up<|im_end|>');
    const first = (await client.chat.completions.create(ask)) as Extensions;
    const again = (await client.chat.completions.create({ ...ask, seed: first.art?.seed ?? -1 })) as Extensions;
    expect(again.art).toEqual(first.art);
    expect(model.engine.requests[1]?.sampling.seed).toBe(model.engine.requests[0]?.sampling.seed);
    expect(((await client.chat.completions.create(ask)) as Extensions).art).not.toEqual(first.art);
  });

  test('cached prompt tokens are reported', async () => {
    const { client } = await serve('up<|im_end|>');
    await client.chat.completions.create(ask);
    const { usage } = await client.chat.completions.create(ask);
    expect(usage?.prompt_tokens_details?.cached_tokens).toBe(usage?.prompt_tokens);
  });

  test('a stop string ends the text before it and stays in the recorded ids', async () => {
    const { client, model } = await serve('left stop right<|im_end|>');
    const completion = await client.chat.completions.create({ ...ask, stop: ' stop' });
    expect(completion.choices[0]?.message.content).toBe('left');
    expect(completion.choices[0]?.finish_reason).toBe('stop');
    const { tokenIds } = model.completions.get(completion.id, 0) ?? { tokenIds: [] };
    expect(model.tokenizer.decode(tokenIds)).toBe('left stop');
  });

  test('max_tokens ends with length', async () => {
    const { client } = await serve('left right up down<|im_end|>');
    const completion = await client.chat.completions.create({ ...ask, max_tokens: 1 });
    expect(completion.choices[0]?.finish_reason).toBe('length');
    expect(completion.usage?.completion_tokens).toBe(1);
  });

  test('logprobs are in the shape of OpenAI, one entry per sampled token', async () => {
    const { client, model } = await serve('🙂<|im_end|>');
    const completion = await client.chat.completions.create({ ...ask, logprobs: true, top_logprobs: 1 });
    const content = completion.choices[0]?.logprobs?.content ?? [];
    expect(content.length).toBe(model.tokenizer.encode('🙂<|im_end|>').length);
    expect(Buffer.from(content.slice(0, -1).flatMap((entry) => entry.bytes ?? [])).toString()).toBe('🙂');
    expect(content.at(-1)).toMatchObject({ token: '<|im_end|>', logprob: -0.5 });
    expect(content[0]?.top_logprobs).toEqual([{ token: content[0]?.token, logprob: -0.5, bytes: content[0]?.bytes }]);
    const without = await client.chat.completions.create({ ...ask, logprobs: true });
    expect(without.choices[0]?.logprobs?.content?.[0]?.top_logprobs).toEqual([]);
  });

  test('name@step samples from that step', async () => {
    const { client, model } = await serve('up<|im_end|>', { policySteps: [1, 2] });
    const completion = await client.chat.completions.create({ ...ask, model: 'm@1' });
    expect(model.engine.requests[0]?.policyStep).toBe(1);
    expect((completion.choices[0] as ChoiceExtensions).art?.policy_step).toBe(1);
  });
});

describe('streams', () => {
  test('deltas join to the whole answer; the last chunk of the choice says where it came from', async () => {
    const { client, model } = await serve('naïve 🙂 café<|im_end|>');
    const whole = await client.chat.completions.create({ ...ask, seed: 5 });
    const stream = await client.chat.completions.create({
      ...ask,
      seed: 5,
      stream: true,
      stream_options: { include_usage: true },
      logprobs: true,
      ...{ return_token_ids: true },
    });
    const chunks = await readAll(stream);
    const choices = chunks.flatMap((chunk) => chunk.choices) as (ChatCompletionChunk.Choice & ChoiceExtensions)[];
    expect(choices.map((choice) => choice.delta.content ?? '').join('')).toBe(whole.choices[0]?.message.content);
    expect(choices[0]?.delta).toEqual({ role: 'assistant', content: '' });
    expect(choices.flatMap((choice) => choice.token_ids ?? [])).toEqual(model.completions.get(whole.id, 0)?.tokenIds);
    expect(choices.flatMap((choice) => choice.logprobs?.content ?? []).length).toBe(whole.usage?.completion_tokens);
    expect((chunks[0] as Extensions).prompt_token_ids).toEqual(model.engine.requests[0]?.promptIds);
    expect((chunks[0] as Extensions).art).toEqual({ seed: 5 });
    expect(choices.at(-1)).toMatchObject({
      finish_reason: 'stop',
      art: { completion_id: chunks[0]?.id, policy_step: 0, completion_tokens: whole.usage?.completion_tokens },
    });
    expect(chunks.at(-1)?.choices).toEqual([]);
    expect(chunks.at(-1)?.usage).toMatchObject({ completion_tokens: whole.usage?.completion_tokens });
    expect(model.completions.get(chunks[0]?.id ?? '', 0)?.tokenIds.length).toBe(whole.usage?.completion_tokens);
  });

  test('a stop string never shows, even when it comes token by token', async () => {
    const { client } = await serve('left stop right<|im_end|>');
    const chunks = await readAll(await client.chat.completions.create({ ...ask, stop: [' stop'], stream: true }));
    expect(chunks.map((chunk) => chunk.choices[0]?.delta.content ?? '').join('')).toBe('left');
  });

  test('choices of one stream are told apart by index', async () => {
    const { client } = await serve(['left right<|im_end|>', 'up<|im_end|>'], { delayMs: 1 });
    const chunks = await readAll(await client.chat.completions.create({ ...ask, n: 2, stream: true }));
    const texts = ['', ''];
    for (const { index, delta } of chunks.flatMap((chunk) => chunk.choices)) texts[index] += delta.content ?? '';
    expect(texts).toEqual(['left right', 'up']);
  });

  test('the bytes are data lines that end in [DONE]', async () => {
    const { url } = await serve('up<|im_end|>');
    const response = await fetch(`${url}/v1/chat/completions`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ ...ask, stream: true }),
    });
    expect(response.headers.get('content-type')).toMatch(/^text\/event-stream/);
    const events = (await response.text()).split('\n\n');
    expect(events.splice(-2)).toEqual(['data: [DONE]', '']);
    for (const event of events) expect(JSON.parse(event.replace(/^data: /, ''))).toHaveProperty('choices');
  });

  test('an error after the first token is an event with the error body, and no [DONE]', async () => {
    const model = await createScriptedModel((tokenizer) => () => ({
      tokenIds: tokenizer.encode('left'),
      error: new Error('secret'),
    }));
    const app = createApp({ models: () => [model], findModel: () => model, onInternalError: () => {} });
    const response = await app.request('/v1/chat/completions', {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ ...ask, stream: true }),
    });
    const text = await response.text();
    expect(text).toContain('"error":{"message":"internal error"');
    expect(text).not.toContain('secret');
    expect(text).not.toContain('[DONE]');
  });
});

describe('clients that go away', () => {
  test.each([true, false])('the engine stops sampling and nothing is recorded, streaming: %s', async (stream) => {
    const { client, model } = await serve('left right up down left right up down<|im_end|>', { delayMs: 500 });
    const aborter = new AbortController();
    const request = client.chat.completions.create({ ...ask, stream } as Extended, { signal: aborter.signal });
    request.catch(() => undefined); // looked at below, after the abort
    await expect.poll(() => model.engine.requests.length, { timeout: 10_000 }).toBe(1);
    aborter.abort();
    await expect(
      request.then(async (answer) => {
        await readAll(answer as unknown as AsyncIterable<ChatCompletionChunk>);
        throw new Error('aborted while streaming');
      }),
    ).rejects.toThrow(/abort/i);
    await expect.poll(() => model.engine.requests[0]?.signal?.aborted, { timeout: 10_000 }).toBe(true);
    await expect.poll(async () => (await model.engine.doInfo()).runningSequences, { timeout: 10_000 }).toBe(0);
    expect((await model.engine.doInfo()).sampledTokens).toBeLessThan(8);
  });
});

describe('conversations', () => {
  test('the next prompt is the previous ids, the sampled ids and the new suffix', async () => {
    const { client, model } = await serve(['left<|im_end|>', 'right<|im_end|>']);
    const messages: Extended['messages'] = [{ role: 'user', content: 'hello' }];
    const first = await client.chat.completions.create({ ...ask, messages });
    messages.push(first.choices[0]?.message as Extended['messages'][0], { role: 'user', content: 'world' });
    const { response } = await client.chat.completions.create({ ...ask, messages }).withResponse();
    const { promptIds, tokenIds } = model.completions.get(first.id, 0) ?? { promptIds: [], tokenIds: [] };
    const suffix = model.tokenizer.encode('\n<|im_start|>user\nworld<|im_end|>\n<|im_start|>assistant\n');
    expect(model.engine.requests[1]?.promptIds).toEqual([...promptIds, ...tokenIds, ...suffix]);
    expect(response.headers.get('x-art-rerendered')).toBeNull();
  });

  test('a history that was never sampled is rendered again, and says so', async () => {
    const { client } = await serve('left<|im_end|>');
    const { response } = await client.chat.completions
      .create({ ...ask, messages: [...ask.messages, { role: 'assistant', content: 'other' }, ...ask.messages] })
      .withResponse();
    expect(response.headers.get('x-art-rerendered')).toBe('1');
  });

  test('a rollout in the path has its own turns', async () => {
    const { model, url } = await serve('left<|im_end|>');
    const messages: Extended['messages'] = [...ask.messages, { role: 'assistant', content: 'left' }, ...ask.messages];
    const client = (id: string): OpenAI =>
      new OpenAI({ baseURL: `${url}/rollouts/${id}/v1`, apiKey: 'none', maxRetries: 0 });
    await client('a').chat.completions.create(ask);
    const own = await client('a')
      .chat.completions.create({ ...ask, messages })
      .withResponse();
    const foreign = await client('b')
      .chat.completions.create({ ...ask, messages })
      .withResponse();
    expect(own.response.headers.get('x-art-rerendered')).toBeNull();
    expect(foreign.response.headers.get('x-art-rerendered')).toBe('1');
    expect(model.engine.requests.length).toBe(3);
  });
});
