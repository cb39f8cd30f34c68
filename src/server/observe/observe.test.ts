import { Writable } from 'node:stream';
import { InMemorySpanExporter, NodeTracerProvider, SimpleSpanProcessor } from '@opentelemetry/sdk-trace-node';
import type { Hono } from 'hono';
import { pino } from 'pino';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { createApp } from '../app.ts';
import { createScriptedModel, type ScriptedModel } from '../testing-model.ts';

const exporter = new InMemorySpanExporter();
const provider = new NodeTracerProvider({ spanProcessors: [new SimpleSpanProcessor(exporter)] });
let model: ScriptedModel;
let app: Hono;
let lines: Record<string, unknown>[];

beforeAll(async () => {
  provider.register();
  model = await createScriptedModel((tokenizer) => () => ({ tokenIds: tokenizer.encode('up<|im_end|>') }));
});

afterAll(() => provider.shutdown());

beforeEach(() => {
  exporter.reset();
  lines = [];
  const sink = new Writable({
    write: (chunk, _encoding, done) => {
      lines.push(JSON.parse(String(chunk)) as Record<string, unknown>);
      done();
    },
  });
  app = createApp({
    models: () => [model],
    findModel: (name) => (name === model.name ? model : undefined),
    logger: pino({ level: 'info' }, sink),
  });
});

const secret = 'art_secret_0123456789';

function chat(body: Record<string, unknown>, headers: Record<string, string> = {}): Promise<Response> {
  const messages = [{ role: 'user', content: 'hello' }];
  return Promise.resolve(
    app.request(`/v1/chat/completions?key=${secret}`, {
      method: 'POST',
      headers: { 'content-type': 'application/json', ...headers },
      body: JSON.stringify({ model: 'm', messages, ...body }),
    }),
  );
}

async function scrape(): Promise<Map<string, number>> {
  const response = await app.request('/metrics');
  expect(response.headers.get('content-type')).toContain('text/plain');
  const samples = (await response.text()).split('\n').filter((line) => line !== '' && !line.startsWith('#'));
  return new Map(samples.map((line) => [line.slice(0, line.lastIndexOf(' ')), Number(line.split(' ').at(-1))]));
}

describe('metrics', () => {
  test('count requests by route, tokens by model, and what the engine says', async () => {
    for (const stream of [true, false]) await (await chat({ stream, n: 2 })).text();
    await chat({ model: 'nobody' });
    await app.request('/no/such/route');
    const samples = await scrape();
    const at = (name: string): number | undefined => samples.get(name);
    const route = 'method="POST",route="/v1/chat/completions"';
    expect(at(`art_http_request_duration_seconds_count{${route},status="200"}`)).toBe(2);
    expect(at(`art_http_request_duration_seconds_count{${route},status="404"}`)).toBe(1);
    expect(at('art_http_request_duration_seconds_count{method="GET",route="none",status="404"}')).toBe(1);
    expect(at('art_completion_tokens_total{model="m"}')).toBe(2 * 2 * model.tokenizer.encode('up<|im_end|>').length);
    expect(at('art_finished_choices_total{model="m",reason="stop"}')).toBe(4);
    expect(at('art_time_to_first_token_seconds_count{model="m"}')).toBe(1);
    expect(at('art_generation_duration_seconds_count{model="unknown",outcome="failed"}')).toBe(1);
    expect(at('art_policy_step{model="m"}')).toBe(0);
    expect(at('art_engine_up{model="m"}')).toBe(1);
    expect(at('art_choices_in_flight{model="m"}')).toBe(0);
  });

  test('count prompts that are not token-exact', async () => {
    const before = (await scrape()).get('art_conversation_prompts{model="m",origin="rerendered"}') ?? 0;
    const foreign = [
      { role: 'user', content: 'hello' },
      { role: 'assistant', content: 'what nobody sampled' },
      { role: 'user', content: 'left' },
    ];
    await chat({ messages: foreign });
    expect((await scrape()).get('art_conversation_prompts{model="m",origin="rerendered"}')).toBe(before + 1);
  });
});

test('the log has one line for each request, with its id, and nothing that may be secret', async () => {
  await chat({}, { 'x-request-id': 'request-7', authorization: `Bearer ${secret}` });
  await chat({ temperature: 'hot' });
  await app.request('/metrics');
  expect(lines).toEqual([
    expect.objectContaining({ msg: 'request', request_id: 'request-7', route: '/v1/chat/completions', status: 200 }),
    expect.objectContaining({
      msg: 'request',
      request_id: expect.any(String),
      status: 400,
      path: '/v1/chat/completions',
    }),
  ]);
  expect(JSON.stringify(lines)).not.toContain(secret);
  expect(JSON.stringify(lines)).not.toContain('hello');
});

describe('a span', () => {
  test('has the attributes of generative AI, and its client as parent', async () => {
    const traceId = '0af7651916cd43dd8448eb211c80319c';
    const traceparent = `00-${traceId}-b7ad6b7169203331-01`;
    await chat({ max_tokens: 4, seed: 3 }, { traceparent, 'x-art-rollout': 'r1' });
    const [span] = exporter.getFinishedSpans();
    expect(span?.name).toBe('chat m');
    expect(span?.spanContext().traceId).toBe(traceId);
    expect(span?.attributes).toMatchObject({
      'gen_ai.operation.name': 'chat',
      'gen_ai.request.model': 'm',
      'gen_ai.request.max_tokens': 4,
      'gen_ai.request.seed': 3,
      'gen_ai.conversation.id': 'r1',
      'gen_ai.response.model': 'm@0',
      'gen_ai.response.finish_reasons': ['stop'],
      'gen_ai.usage.output_tokens': model.tokenizer.encode('up<|im_end|>').length,
    });
    expect(JSON.stringify(span?.attributes)).not.toContain('hello');
  });

  test('says what went wrong, also of a stream whose reader leaves', async () => {
    await chat({ model: 'nobody' });
    await (await chat({ stream: true })).body?.cancel();
    await expect.poll(() => exporter.getFinishedSpans().length).toBe(2);
    const errors = exporter.getFinishedSpans().map(({ attributes }) => attributes['error.type']);
    expect(errors).toEqual(['api_error', 'aborted']);
  });
});
