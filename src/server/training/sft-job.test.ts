import { join } from 'node:path';
import { monitorEventLoopDelay } from 'node:perf_hooks';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { TestApi } from '../../../test/server/test-api.ts';
import { readModelTensors, toSafetensors, writeSafetensors } from '../../formats/safetensors.ts';
import { writeStarterModel } from '../../formats/starter-model.ts';
import type { SftRequest } from '../../wire/sft.ts';
import { createArtServer } from '../index.ts';
import { encodeConversations } from './sft-job.ts';

let api: TestApi;
beforeEach(async () => {
  api = await TestApi.open();
});
afterEach(() => api.close());

const path = '/api/models/agent/sft';
const pairs = [
  ['a', 'b'],
  ['c', 'd'],
  ['e', 'f'],
  ['g', 'h'],
  ['i', 'j'],
] as const;

function request(key: string, options: SftRequest['options'] = {}): SftRequest {
  const conversations = pairs.map(([question, answer]) => ({
    messages: [
      { role: 'user' as const, content: question },
      { role: 'assistant' as const, content: answer },
    ],
  }));
  return { idempotency_key: key, conversations, options: { batch_size: 2, ...options } };
}

const rates = (): number[] => {
  const rows = api.registry.get('agent').metricFiles.history();
  return rows.map((row) => row['sft/learning_rate'] as number);
};

describe('an sft job', () => {
  test('is one step with metrics of its own; its key trains once, also after a restart', async () => {
    const events = await api.stream('POST', path, request('a', { epochs: 2 }));
    const progress = events.filter(({ data }) => data.stage === 'train').map(({ data }) => [data.done, data.total]);
    expect(progress).toEqual([1, 2, 3, 4, 5, 6].map((done) => [done, 6]));
    const result = events.at(-1)?.data;
    expect(result).toMatchObject({ step: 1 });
    expect(result.metrics).toMatchObject({ 'sft/updates': 6, 'sft/conversations': 10, 'sft/served_policy_changed': 1 });
    // One character and the end of the turn, for each of ten conversations.
    expect(result.metrics['sft/trained_tokens']).toBe(20);
    const [row] = api.registry.get('agent').metricFiles.history();
    expect(row).toMatchObject({ split: 'sft', step: 1 });
    await api.restart();
    expect(await api.stream('POST', path, request('a', { epochs: 2 }))).toEqual([events.at(-1)]);
    expect(await api.call('POST', path, request('a', { epochs: 3 }))).toMatchObject({ status: 409 });
    expect((await api.call('GET', '/api/jobs')).json.jobs).toMatchObject([{ kind: 'sft', state: 'done' }]);
  });

  test('follows training by reward, and is followed by it', async () => {
    await api.train('a');
    expect((await api.stream('POST', path, request('b'))).at(-1)?.data.step).toBe(2);
    expect((await api.train('c')).step).toBe(3);
    const rows = api.registry.get('agent').metricFiles.history();
    expect(rows.map((row) => row['data/cum/num_gradient_steps'])).toEqual([1, 4, 5]);
  });

  test('checkpoints every so many updates; cut off between two, it goes on where it was, to the same weights', async () => {
    const options = { checkpoint_every: 1, epochs: 2, learning_rate: 0.5 } as const;
    const whole = await api.stream('POST', path, request('a', options));
    expect(whole.at(-1)?.data.step).toBe(6);
    const [weight, wholeRates] = [api.engine.weight(), rates()];
    await api.close();

    api = await TestApi.open();
    const { engine } = api;
    let updates = 0;
    const optimStep = engine.doOptimStep.bind(engine);
    engine.doOptimStep = async (step) => {
      updates += 1;
      if (updates === 4) engine.failing = 'optimStep';
      return optimStep(step);
    };
    expect((await api.stream('POST', path, request('a', options))).at(-1)?.event).toBe('error');
    expect(api.registry.get('agent').model.step()).toBe(3);
    await api.restart();
    expect((await api.stream('POST', path, request('a', options))).at(-1)?.data.step).toBe(6);
    expect(api.engine.weight()).toBe(weight);
    expect(rates()).toEqual(wholeRates);
    expect(api.engine.calls.filter((call) => call === 'optimStep')).toHaveLength(3);
  });

  test('is cancelled between two updates; what is committed stays', async () => {
    const { engine } = api;
    const optimStep = engine.doOptimStep.bind(engine);
    let updates = 0;
    let id = '';
    engine.doOptimStep = async (step) => {
      updates += 1;
      if (updates === 2) expect((await api.call('POST', `/api/jobs/${id}/cancel`)).status).toBe(202);
      return optimStep(step);
    };
    let open = (): void => {};
    engine.gate = new Promise((resolve) => {
      open = resolve;
    });
    id = (await api.call('POST', `${path}?wait=false`, request('a', { checkpoint_every: 1 }))).json.id;
    const following = api.stream('GET', `/api/jobs/${id}/events`);
    open();
    expect((await following).at(-1)?.data.state).toBe('cancelled');
    expect(api.registry.get('agent').model.step()).toBeLessThanOrEqual(2);
    expect(updates).toBe(2);
  });

  test('drops, counts and reports conversations beyond the context; if none is left, the step changes nothing', async () => {
    const long = {
      messages: [
        { role: 'user' as const, content: 'x'.repeat(400) },
        { role: 'assistant' as const, content: 'y' },
      ],
    };
    const base = request('a');
    const some = await api.stream('POST', path, { ...base, conversations: [long, ...base.conversations] });
    expect(some.at(-1)?.data.metrics).toMatchObject({
      'data/step_num_dropped_conversations': 1,
      'sft/conversations': 5,
    });
    expect(api.warnings.at(-1)).toMatch(/^step 1: 1 of 6 conversations are dropped, .* context of 256 tokens$/);
    const weight = api.engine.weight();
    const none = await api.stream('POST', path, { ...base, idempotency_key: 'b', conversations: [long] });
    expect(none.at(-1)?.data).toMatchObject({ step: 2, metrics: { 'data/step_num_dropped_conversations': 1 } });
    expect(none.at(-1)?.data.metrics).not.toHaveProperty('sft/loss');
    expect(api.engine.weight()).toBe(weight);
  });

  test('takes its rates from a schedule that spans several calls', async () => {
    const options = { learning_rate: 1, schedule: 'linear', warmup_ratio: 0, batch_size: 5, epochs: 1 } as const;
    await api.stream('POST', path, request('a', { ...options, schedule_span: { done: 0, total: 4 } }));
    await api.stream('POST', path, request('b', { ...options, schedule_span: { done: 3, total: 4 } }));
    expect(rates()).toEqual([1, 0.25]);
  });

  test('encodes large requests in slices between which the server answers', async () => {
    const base = request('a', { batch_size: 4096 });
    const conversations = Array.from({ length: 3000 }, (_, i) => base.conversations[i % 5]!);
    const delay = monitorEventLoopDelay({ resolution: 1 });
    const encoding = encodeConversations(
      { ...base, conversations },
      {
        model: api.registry.get('agent').model,
        maxPositions: 256,
      },
    );
    delay.enable();
    const startedAt = performance.now();
    const { examples } = await encoding;
    const tookMs = performance.now() - startedAt;
    delay.disable();
    expect(examples).toHaveLength(3000);
    // All at once, the delay would be all of the time.
    expect(delay.percentile(90) / 1e6).toBeLessThan(tookMs / 4);
  });

  test('refuses what it cannot learn before anything runs', async () => {
    const wrong = async (body: unknown) => (await api.call('POST', path, body)).json.error;
    const base = request('a');
    expect(await wrong({ ...base, conversations: [] })).toMatchObject({ param: 'conversations' });
    expect(await wrong({ ...base, options: { lr: 1 } })).toMatchObject({ message: 'options.lr: unknown field' });
    const [first] = base.conversations;
    expect(
      await wrong({ ...base, conversations: [first, { messages: [{ role: 'user', content: 'x' }] }] }),
    ).toMatchObject({
      message: expect.stringContaining('conversations[1].messages: must hold an assistant message'),
    });
    const image = { role: 'user', content: [{ type: 'image_url', image_url: { url: 'x' } }] };
    expect(await wrong({ ...base, conversations: [{ messages: [image] }] })).toMatchObject({
      param: expect.stringMatching(/^conversations\[0\]\.messages\[0\]\.content/),
    });
    expect(api.engine.calls).not.toContain('forwardBackward');
  });
});

test('a policy learns what it is shown', async () => {
  const modelDirectory = join(api.root, 'learner');
  const sizes = { width: 32, layers: 2, heads: 2, kvHeads: 1, headSize: 16, ffWidth: 64, maxPositions: 64 };
  const corpus = ['left right up down', 'left right up down'];
  await writeStarterModel({ seed: 1, directory: modelDirectory, corpus, ...sizes });
  // An adapter cannot move the tied output matrix, whose rows are so short in an untrained model that no token can stand out.
  const tensors = await readModelTensors(modelDirectory);
  for (const [name, { data }] of tensors) if (name.includes('embed_tokens')) data.set(data.map((value) => value * 8));
  await writeSafetensors(join(modelDirectory, 'model.safetensors'), toSafetensors(tensors), { format: 'pt' });
  const server = await createArtServer({ root: join(api.root, 'real'), onWarning: () => {} });
  const post = async (route: string, body: unknown): Promise<Response> =>
    server.app.request(route, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify(body),
    });
  try {
    await post('/api/models', { ...api.registration, base_model: modelDirectory, lora: { rank: 8, alpha: 16 } });
    const lessons = [
      ['left', 'right'],
      ['up', 'down'],
    ];
    const conversations = lessons.map(([content, reply]) => ({
      messages: [
        { role: 'user', content },
        { role: 'assistant', content: reply },
      ],
    }));
    const options = { epochs: 60, batch_size: 2, learning_rate: 0.02, seed: 1 };
    const trained = await post(path, { idempotency_key: 'a', conversations, options });
    expect(await trained.text()).toContain('event: result');
    for (const [content, reply] of lessons) {
      const messages = [{ role: 'user', content }];
      const answer = await post('/v1/chat/completions', { model: 'agent', messages, temperature: 0, max_tokens: 8 });
      const { choices } = (await answer.json()) as { choices: unknown[] };
      expect(choices).toMatchObject([{ message: { content: reply }, finish_reason: 'stop' }]);
    }
  } finally {
    await server.close();
  }
});
