/** What requests may ask beside the basics, and what bounds them: over HTTP with OpenAI's client and a scripted engine. */
import OpenAI from 'openai';
import type { ChatCompletionCreateParamsNonStreaming } from 'openai/resources/chat/completions';
import { describe, expect, test } from 'vitest';
import { serveScripted as serve } from '../../../test/server/serve-scripted.ts';
import { modelState } from './model-lookup.ts';

type Ask = ChatCompletionCreateParamsNonStreaming & Record<string, unknown>;
const ask: Ask = { model: 'm', messages: [{ role: 'user', content: 'hello' }] };

describe('sampling', () => {
  test('penalties, bias, min-p and limits reach the engine', async () => {
    const { client, model } = await serve('up<|im_end|>');
    const options = {
      min_p: 0.1,
      frequency_penalty: 0.5,
      presence_penalty: -0.5,
      repetition_penalty: 1.1,
      logit_bias: { '5': -100, '7': 2.5 },
      min_tokens: 1,
      stop_token_ids: [9],
    };
    await client.chat.completions.create({ ...ask, ...options });
    expect(model.engine.requests[0]?.sampling).toMatchObject({
      minP: 0.1,
      frequencyPenalty: 0.5,
      presencePenalty: -0.5,
      repetitionPenalty: 1.1,
      logitBias: [
        [5, -100],
        [7, 2.5],
      ],
      minTokens: 1,
      stopTokenIds: [model.tokenizer.eosId, 9],
    });
  });

  test('a stop token of the request ends the reply, is no part of its text and stays in the ids', async () => {
    const { client, model } = await serve('left right up<|im_end|>');
    const [right] = model.tokenizer.encode(' right');
    const request: Ask = { ...ask, stop_token_ids: [right], return_token_ids: true };
    const { choices } = await client.chat.completions.create(request);
    expect(choices[0]).toMatchObject({ message: { content: 'left' }, finish_reason: 'stop' });
    expect((choices[0] as { token_ids?: number[] }).token_ids?.at(-1)).toBe(right);
  });

  const schema = { type: 'object', properties: { move: { type: 'string' } }, required: ['move'] };
  const choice = ['left', 'right'].map((text) => ({ type: 'literal', text }));
  test.each([
    [{ response_format: { type: 'text' } }, undefined],
    [{ response_format: { type: 'json_object' } }, { type: 'jsonSchema', schema: { type: 'object' } }],
    [
      { response_format: { type: 'json_schema', json_schema: { name: 'a', schema, strict: true } } },
      { type: 'jsonSchema', schema },
    ],
    [{ structured_outputs: { json: schema } }, { type: 'jsonSchema', schema }],
    [{ structured_outputs: { json_object: true } }, { type: 'jsonSchema', schema: { type: 'object' } }],
    [{ structured_outputs: { regex: '[a-d]+' } }, { type: 'regex', pattern: '[a-d]+' }],
    [{ structured_outputs: { choice: ['left', 'right'] } }, { type: 'oneOf', options: choice }],
  ])('%j is the constraint %j', async (options, constraint) => {
    const { client, model } = await serve('up<|im_end|>');
    await client.chat.completions.create({ ...ask, ...options } as Ask);
    expect(model.engine.requests[0]?.sampling.constraint).toEqual(constraint);
  });
});

/** Of a wait for something that takes a second and a half. */
const limit = { timeout: 10_000 };

describe('bounds', () => {
  test('beyond the choices that may be in flight the answer is 429 with retry-after, in OpenAI’s shape', async () => {
    const { client, model } = await serve('left right up<|im_end|>', { delayMs: 300, maxInFlight: 2 });
    const running = client.chat.completions.create({ ...ask, n: 2 });
    await expect.poll(() => modelState(model).inFlight).toBe(2);
    const error: unknown = await client.chat.completions.create(ask).catch((reason: unknown) => reason);
    expect(error).toBeInstanceOf(OpenAI.RateLimitError);
    expect(error).toMatchObject({ status: 429, code: 'too_many_requests', type: 'invalid_request_error' });
    expect((error as InstanceType<typeof OpenAI.RateLimitError>).headers?.get('retry-after')).toBe('1');
    expect((await running).choices.length).toBe(2);
    expect(modelState(model).inFlight).toBe(0);
    // Alone, a request may have more choices than the limit.
    expect((await client.chat.completions.create({ ...ask, n: 3 })).choices.length).toBe(3);
  });

  test('what fails gives its place back', async () => {
    const { client, model } = await serve('up<|im_end|>', { maxInFlight: 1, maxPositions: 64 });
    const long: Ask = { ...ask, messages: [{ role: 'user', content: 'x'.repeat(100) }] };
    await expect(client.chat.completions.create(long)).rejects.toThrow(/context of 64 tokens/);
    await model.engine.close();
    await expect(client.chat.completions.create(ask)).rejects.toThrow(/closed/);
    await expect(client.chat.completions.create({ ...ask, stream: true })).rejects.toThrow(/closed/);
    expect(modelState(model).inFlight).toBe(0);
  });

  test.each([
    [{ n: 3 }, false],
    [{ n: 3 }, true],
    [{ n: 1 }, true],
  ])(
    'a client that goes away in the middle frees all its sequences at once: %j, streaming: %s',
    async (options, stream) => {
      const { client, model } = await serve('left right up down left right up down<|im_end|>', { delayMs: 1500 });
      const aborter = new AbortController();
      const request = client.chat.completions.create({ ...ask, ...options, stream } as Ask, { signal: aborter.signal });
      const outcome = request.then(async (answer) => {
        for await (const _chunk of answer as unknown as AsyncIterable<unknown>);
      });
      outcome.catch(() => undefined); // looked at below, after the abort
      await expect.poll(() => modelState(model).inFlight).toBe(options.n);
      if (stream) await expect.poll(async () => (await model.engine.doInfo()).sampledTokens, limit).toBeGreaterThan(0);
      aborter.abort();
      const abortedAt = performance.now();
      await outcome.catch(() => undefined);
      await expect.poll(async () => (await model.engine.doInfo()).runningSequences, { interval: 5 }).toBe(0);
      // Sooner than the next token of any of them.
      expect(performance.now() - abortedAt).toBeLessThan(1000);
      expect(modelState(model).inFlight).toBe(0);
    },
  );
});

describe('policies by name', () => {
  test('the newest and a fixed one: header, choice and chunk say which step sampled', async () => {
    const { client } = await serve('up<|im_end|>', { policySteps: [11, 12] });
    for (const [name, step] of [
      ['m', 12],
      ['m@12', 12],
      ['m@11', 11],
    ] as const) {
      const { data, response } = await client.chat.completions.create({ ...ask, model: name }).withResponse();
      expect(response.headers.get('x-art-policy-step')).toBe(String(step));
      expect(data.choices[0]).toMatchObject({ art: { policy_step: step } });
      expect(data.model).toBe(name);
      expect(data.system_fingerprint).toBe(`m@${step}`);
      const steps: unknown[] = [];
      for await (const chunk of await client.chat.completions.create({ ...ask, model: name, stream: true })) {
        const art = (chunk.choices[0] as { art?: { policy_step: number } } | undefined)?.art;
        if (art !== undefined) steps.push(art.policy_step);
      }
      expect(steps).toEqual([step]);
    }
  });

  test('a request in flight keeps its policy while a newer one is published', async () => {
    const { client, model } = await serve('left right up<|im_end|>', { delayMs: 200, policySteps: [1] });
    const running = client.chat.completions.create(ask).withResponse();
    await expect.poll(() => model.engine.requests.length).toBe(1);
    await model.engine.doPublish({ step: 2 });
    const after = await client.chat.completions.create(ask).withResponse();
    expect((await running).response.headers.get('x-art-policy-step')).toBe('1');
    expect(after.response.headers.get('x-art-policy-step')).toBe('2');
  });
});
