import { Hono } from 'hono';
import { beforeAll, describe, expect, test } from 'vitest';
import * as z from 'zod';
import {
  AbortedError,
  ApiError,
  CheckpointError,
  ConfigError,
  DataError,
  EngineError,
  ShapeError,
} from '../core/errors.ts';
import { createApp } from './app.ts';
import { startServer } from './listen.ts';
import { createScriptedModel, type ScriptedModel } from './testing-model.ts';

let model: ScriptedModel;
let app: Hono;
const internal: unknown[] = [];

const thrown: Readonly<Record<string, unknown>> = {
  config: new ConfigError('c: must be d, got e'),
  data: new DataError('d'),
  checkpoint: new CheckpointError('k'),
  engine: new EngineError('dead'),
  retryable: new EngineError('busy', { details: { isRetryable: true } }),
  aborted: new AbortedError('gave up'),
  deadline: new AbortedError('too slow', { details: { isDeadline: true } }),
  api: new ApiError('teapot', 418),
  shape: new ShapeError('secret shape'),
  plain: new Error('secret'),
};

beforeAll(async () => {
  model = await createScriptedModel((tokenizer) => () => ({ tokenIds: tokenizer.encode('up<|im_end|>') }), {
    maxPositions: 32,
    policySteps: [2, 3],
  });
  app = createApp({
    models: () => [model],
    findModel: (name) => (name === model.name ? model : undefined),
    onInternalError: (error) => internal.push(error),
    registerRoutes: (routes) => {
      routes.get('/throw/:name', (c) => {
        throw thrown[c.req.param('name')];
      });
      routes.get('/zod', () => {
        z.strictObject({ lr: z.number() }).parse({ lr: 'x' });
        throw new Error('unreachable');
      });
    },
  });
});

const json = { 'content-type': 'application/json' };

async function post(body: unknown): Promise<{ status: number; error: Record<string, unknown> }> {
  const text = typeof body === 'string' ? body : JSON.stringify(body);
  const response = await app.request('/v1/chat/completions', { method: 'POST', headers: json, body: text });
  return { status: response.status, ...((await response.json()) as { error: Record<string, unknown> }) };
}

const hello = { role: 'user', content: 'hello' };
const ask = { model: 'm', messages: [hello] };
const call = { id: 'c', type: 'function', function: { name: 'a', arguments: '{}' } };
const tool = (name: string): object => ({ type: 'function', function: { name } });

describe('error table', () => {
  test.each([
    ['config', 400, 'config_error'],
    ['data', 400, 'data_error'],
    ['checkpoint', 500, 'checkpoint_error'],
    ['engine', 500, 'engine_error'],
    ['retryable', 503, 'engine_error'],
    ['aborted', 499, 'aborted'],
    ['deadline', 408, 'aborted'],
    ['api', 418, 'api_error'],
    ['shape', 500, 'internal_error'],
    ['plain', 500, 'internal_error'],
  ])('%s is %d', async (name, status, code) => {
    const response = await app.request(`/throw/${name}`);
    expect(response.status).toBe(status);
    expect(response.headers.get('retry-after')).toBe(status === 503 ? '1' : null);
    const text = await response.text();
    expect(JSON.parse(text)).toMatchObject({ error: { code, param: null } });
    expect(text).not.toContain('secret');
  });

  test('what the body hides goes to onInternalError', async () => {
    internal.length = 0;
    await app.request('/throw/plain');
    expect(internal).toEqual([thrown.plain]);
  });

  test('an issue of a schema is 400 and names the field', async () => {
    const response = await app.request('/zod');
    expect(response.status).toBe(400);
    expect(await response.json()).toMatchObject({ error: { param: 'lr' } });
  });

  test('unknown path 404, wrong method 405 with the methods there are', async () => {
    expect((await app.request('/v1/nothing')).status).toBe(404);
    const response = await app.request('/v1/chat/completions');
    expect([response.status, response.headers.get('allow')]).toEqual([405, 'POST']);
    expect(await response.json()).toMatchObject({ error: { code: 'method_not_allowed' } });
  });
});

describe('refused requests', () => {
  test.each([
    ['{', 400, 'invalid_json', null],
    ['', 400, 'invalid_json', null],
    ['[]', 400, 'invalid_value', null],
    [{ ...ask, model: 'other' }, 404, 'model_not_found', 'model'],
    [{ ...ask, model: 'm@1' }, 404, 'model_not_found', 'model'],
    [{ ...ask, model: 'm@new' }, 404, 'model_not_found', 'model'],
    [{ ...ask, messages: [] }, 400, 'invalid_value', 'messages'],
    [{ ...ask, messages: [{ role: 'robot', content: '' }] }, 400, 'invalid_value', 'messages[0].role'],
    [{ ...ask, messages: [{ role: 'user', content: 1 }] }, 400, 'invalid_value', 'messages[0].content'],
    [{ ...ask, messages: [{ role: 'user' }] }, 400, 'invalid_value', 'messages[0].content'],
    [{ ...ask, temperature: 3 }, 400, 'invalid_value', 'temperature'],
    [{ ...ask, n: 129 }, 400, 'invalid_value', 'n'],
    [{ ...ask, seed: 0.5 }, 400, 'invalid_value', 'seed'],
    [{ ...ask, top_logprobs: 2 }, 400, 'invalid_value', 'top_logprobs'],
    [{ ...ask, stream_options: {} }, 400, 'invalid_value', 'stream_options'],
    [{ ...ask, max_tokens: 1, max_completion_tokens: 2 }, 400, 'invalid_value', 'max_completion_tokens'],
    [{ ...ask, messages: [{ role: 'tool', content: '' }] }, 400, 'invalid_value', 'messages[0].tool_call_id'],
    [{ ...ask, messages: [{ role: 'assistant' }] }, 400, 'invalid_value', 'messages[0].content'],
    [{ ...ask, messages: [{ ...hello, tool_calls: [call] }] }, 400, 'invalid_value', 'messages[0].tool_calls'],
    [{ ...ask, tools: [{ type: 'function' }] }, 400, 'invalid_value', 'tools[0].function'],
    [{ ...ask, tools: [{ type: 'custom', custom: {} }] }, 400, 'invalid_value', 'tools[0].type'],
    [{ ...ask, tools: [tool('a b')] }, 400, 'invalid_value', 'tools[0].function.name'],
    [{ ...ask, tools: [tool('a'), tool('a')] }, 400, 'invalid_value', 'tools[1].function.name'],
    [{ ...ask, tool_choice: 'required' }, 400, 'invalid_value', 'tool_choice'],
    [{ ...ask, tools: [tool('a')], tool_choice: { ...tool('b') } }, 400, 'invalid_value', 'tool_choice'],
    [{ ...ask, tools: [tool('a')], tool_choice: { type: 'allowed_tools' } }, 400, 'invalid_value', 'tool_choice.type'],
    [{ ...ask, functions: [{ name: 'a' }] }, 400, 'unsupported_parameter', 'functions'],
    [{ ...ask, response_format: { type: 'grammar' } }, 400, 'invalid_value', 'response_format.type'],
    [{ ...ask, response_format: { type: 'json_schema' } }, 400, 'invalid_value', 'response_format.json_schema'],
    [{ ...ask, presence_penalty: 3 }, 400, 'invalid_value', 'presence_penalty'],
    [{ ...ask, repetition_penalty: 0 }, 400, 'invalid_value', 'repetition_penalty'],
    [{ ...ask, min_p: 1.5 }, 400, 'invalid_value', 'min_p'],
    [{ ...ask, logit_bias: { x: 1 } }, 400, 'invalid_value', 'logit_bias.x'],
    [{ ...ask, logit_bias: { 99999: 1 } }, 400, 'invalid_value', 'logit_bias'],
    [{ ...ask, stop_token_ids: [99999] }, 400, 'invalid_value', 'stop_token_ids'],
    [{ ...ask, min_tokens: 3, max_tokens: 2 }, 400, 'invalid_value', 'min_tokens'],
    [{ ...ask, structured_outputs: { json: {}, regex: 'a' } }, 400, 'invalid_value', 'structured_outputs'],
    [{ ...ask, structured_outputs: { grammar: 'a' } }, 400, 'invalid_value', 'structured_outputs.grammar'],
    [{ ...ask, chat_template_kwargs: { messages: [] } }, 400, 'unsupported_parameter', 'chat_template_kwargs.messages'],
    [{ ...ask, reasoning_effort: 'low' }, 400, 'invalid_value', 'reasoning_effort'],
    [{ ...ask, continue_final_message: true }, 400, 'unsupported_parameter', 'continue_final_message'],
    [{ ...ask, store: true }, 400, 'unsupported_parameter', 'store'],
    [{ ...ask, temprature: 1 }, 400, 'unknown_parameter', 'temprature'],
  ])('%j is %d %s', async (body, status, code, param) => {
    expect(await post(body)).toMatchObject({ status, error: { type: 'invalid_request_error', code, param } });
  });

  test('messages say the field, the rule and the value', async () => {
    expect((await post({ ...ask, temperature: 3 })).error.message).toBe('temperature: must be ≤ 2, got 3');
    expect((await post({ ...ask, model: 'm@1' })).error.message).toBe(
      'model: step must be one that is loaded (2, 3), got m@1',
    );
    expect((await post({ ...ask, audio: {} })).error.message).toBe('audio: not supported, got {}');
    const bias = { ...ask, logit_bias: { x: 1 } };
    expect((await post(bias)).error.message).toBe('logit_bias.x: must name tokens by their ids, got 1');
    const image = [{ type: 'image_url', image_url: { url: 'x' } }];
    const { error } = await post({ ...ask, messages: [{ role: 'user', content: image }] });
    expect(error.message).toBe('messages[0].content[0].type: must be text, got "image_url"');
  });

  test('a prompt that fills the context is refused with the numbers', async () => {
    const { status, error } = await post({ ...ask, messages: [{ role: 'user', content: 'x'.repeat(40) }] });
    expect([status, error.code]).toEqual([400, 'context_length_exceeded']);
    expect(error.message).toMatch(/context of 32 tokens, got \d+ prompt tokens/);
  });

  test('a body over 10 MB is 413, with and without a declared length', async () => {
    const big = 'x'.repeat(10 * 1024 * 1024 + 1);
    const headers = { ...json, 'content-length': String(big.length) };
    const request = { method: 'POST', headers: json, body: big };
    expect((await app.request('/v1/chat/completions', { ...request, headers })).status).toBe(413);
    expect((await app.request('/v1/chat/completions', request)).status).toBe(413);
  });

  test.each(['text/plain', 'application/x-www-form-urlencoded', 'application/jsonp', undefined])(
    'a body of type %s is 415: a page of another site could send it without being asked',
    async (type) => {
      const body = new Blob([JSON.stringify(ask)]);
      const request = { method: 'POST', body, ...(type !== undefined && { headers: { 'content-type': type } }) };
      const response = await app.request('/v1/chat/completions', request);
      expect([response.status, await response.json()]).toMatchObject([
        415,
        { error: { code: 'unsupported_media_type' } },
      ]);
    },
  );

  test('application/json may have parameters', async () => {
    const headers = { 'content-type': 'application/json; charset=utf-8' };
    const request = { method: 'POST', headers, body: JSON.stringify(ask) };
    expect((await app.request('/v1/chat/completions', request)).status).toBe(200);
  });

  test('fields that ask for nothing are accepted', async () => {
    const nothing = {
      user: 'u',
      metadata: { a: 'b' },
      store: false,
      service_tier: 'auto',
      tools: [],
      tool_choice: 'none',
      parallel_tool_calls: false,
      response_format: { type: 'text' },
      frequency_penalty: 0,
      top_k: -1,
      add_generation_prompt: true,
      logit_bias: {},
      seed: null,
      stop: null,
      n: null,
      audio: null,
    };
    expect((await post({ ...ask, ...nothing })).status).toBe(200);
  });
});

describe('models and health', () => {
  test('every model is listed by name and by loaded step', async () => {
    const body = (await (await app.request('/v1/models')).json()) as { data: { id: string; owned_by: string }[] };
    expect(body.data.map((entry) => entry.id)).toEqual(['m', 'm@2', 'm@3']);
    expect(await (await app.request('/v1/models/m@3')).json()).toMatchObject({ id: 'm@3', owned_by: 'art' });
    expect((await app.request('/v1/models/m@9')).status).toBe(404);
  });

  test('health is 503 when an engine is dead, and says which', async () => {
    const dead = await createScriptedModel(() => () => ({ tokenIds: [] }), { name: 'dead' });
    const both = createApp({ models: () => [model, dead], findModel: () => undefined });
    expect((await both.request('/healthz')).status).toBe(200);
    await dead.engine.close();
    const response = await both.request('/healthz');
    expect(response.status).toBe(503);
    expect(await response.json()).toMatchObject({
      status: 'unavailable',
      models: [
        { name: 'm', status: 'ok', step: 3, engine: { policy_steps: [2, 3] } },
        { name: 'dead', status: 'unavailable', error: expect.stringContaining('closed') },
      ],
    });
  });
});

describe('listening', () => {
  test('a public address needs keys', async () => {
    await expect(startServer(app, { host: '0.0.0.0' })).rejects.toThrow(ConfigError);
    await expect(startServer(app, { port: 99_999 })).rejects.toThrow(
      'port: must be a whole number from 0 to 65535, got 99999',
    );
    const server = await startServer(app, { host: '0.0.0.0', isKeyed: true });
    expect((await fetch(`http://127.0.0.1:${server.port}/healthz`)).status).toBe(200);
    await server.close();
  });

  test('a taken port is a ConfigError', async () => {
    const server = await startServer(app);
    await expect(startServer(app, { port: server.port })).rejects.toThrow(/EADDRINUSE/);
    await server.close();
  });

  test('close drops idle connections and requests that do not end', async () => {
    const stuck = new Hono().get('/', () => new Promise<Response>(() => {}));
    const server = await startServer(stuck);
    const request = fetch(server.url).catch((error: unknown) => error);
    await new Promise((resolve) => setTimeout(resolve, 50));
    const startedAt = performance.now();
    await Promise.all([server.close(), server.close()]);
    expect(performance.now() - startedAt).toBeLessThan(4_000);
    expect(await request).toBeInstanceOf(Error);
  });
});
