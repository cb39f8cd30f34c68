/** Rollouts by plain HTTP, without the SDK: collected by id, ended by a reward, trained once, there after a restart. */
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { writeStarterModel } from '../../formats/starter-model.ts';
import { loadTokenizer, type Tokenizer } from '../../formats/tokenizer.ts';
import { createScriptedEngine, type ScriptedEngine } from '../../testing/scripted-engine.ts';
import { type ArtServer, type ArtServerOptions, createArtServer } from '../index.ts';

let root = '';
let tokenizer: Tokenizer;
let server: ArtServer;
let engine: ScriptedEngine;
let warnings: string[] = [];
/** `byByte`: ids that the tokenizer would not write for that text. */
let sampled: 'asWritten' | 'byByte' = 'asWritten';

beforeEach(async () => {
  root = await mkdtemp(join(tmpdir(), 'art-rollouts-'));
  const sizes = { width: 16, layers: 1, heads: 2, kvHeads: 1, headSize: 8, ffWidth: 16 };
  await writeStarterModel({ seed: 1, directory: join(root, 'base'), corpus: ['left right up down plan'], ...sizes });
  tokenizer = await loadTokenizer(join(root, 'base'));
  warnings = [];
  await start();
});
afterEach(async () => {
  await server.close();
  await rm(root, { recursive: true });
});

async function start(options: Partial<ArtServerOptions> = {}): Promise<void> {
  const decode = (ids: readonly number[]): string => tokenizer.decode(ids);
  server = await createArtServer({
    root: join(root, '.art'),
    onWarning: (message) => warnings.push(message),
    createEngine: async () => {
      // A word that depends on the prompt, so that each turn differs from others.
      const reply = (ids: readonly number[]): number[] => {
        const word = ['left', 'right', 'up', 'down'][ids.length % 4]!;
        const pieces = sampled === 'byByte' ? [...word] : [word];
        return [...pieces.flatMap((piece) => [...tokenizer.encode(piece)]), tokenizer.eosId!];
      };
      engine = createScriptedEngine({ decode, reply: ({ promptIds }) => ({ tokenIds: reply(promptIds) }) });
      return engine;
    },
    ...options,
  });
  const registered = await call('POST', '/api/models', {
    name: 'agent',
    project: 'demo',
    base_model: join(root, 'base'),
    lora: { rank: 4, alpha: 8 },
    seed: 3,
  });
  expect(registered.status).toBe(200);
}

async function restart(options?: Partial<ArtServerOptions>): Promise<void> {
  await server.close();
  await start(options);
}

interface Answer {
  readonly status: number;
  // biome-ignore lint/suspicious/noExplicitAny: what the server answers is what is tested
  readonly json: any;
}

async function call(
  method: string,
  path: string,
  body?: unknown,
  headers: Record<string, string> = {},
): Promise<Answer> {
  const response = await fetch(server.url + path, {
    method,
    headers: { ...(body !== undefined && { 'content-type': 'application/json' }), ...headers },
    ...(body !== undefined && { body: JSON.stringify(body) }),
  });
  const text = await response.text();
  if (!response.headers.get('content-type')?.startsWith('text/event-stream')) {
    return { status: response.status, json: JSON.parse(text) };
  }
  const last = text.trim().split('\n\n').at(-1)!.split('\n');
  return { status: last[0] === 'event: result' ? 200 : 500, json: JSON.parse(last[1]!.slice('data: '.length)) };
}

type Message = { role: string; content: string };
const user = (content: string): Message => ({ role: 'user', content });

/** One call of a rollout, by the base URL; returns the conversation with the reply. */
async function say(id: string, messages: readonly Message[], fields: object = {}): Promise<Message[]> {
  const { status, json } = await call('POST', `/rollouts/${id}/v1/chat/completions`, {
    model: 'agent',
    messages,
    ...fields,
  });
  expect(status, JSON.stringify(json)).toBe(200);
  return [...messages, { role: 'assistant', content: json.choices[0].message.content }];
}

async function finished(id: string, reward: number, group?: string): Promise<void> {
  await say(id, [user(id)]);
  const body = { reward, ...(group !== undefined && { group }) };
  expect((await call('POST', `/api/rollouts/${id}/reward`, body)).status).toBe(200);
}

const train = (key: string, groups: unknown, fields: object = {}): Promise<Answer> =>
  call('POST', '/api/models/agent/train', { idempotency_key: key, groups, options: {}, ...fields });
const history = async () => (await call('GET', '/api/models/agent/history')).json.rows;

const lookTool = {
  type: 'function',
  function: { name: 'look', description: 'Looks', parameters: { type: 'object', properties: {} } },
};

const histories = async (id: string): Promise<{ entries: { completion_tokens?: number }[] }[]> =>
  (await call('GET', `/api/rollouts/${id}`)).json.histories;

test('calls by header and by path are one rollout; turns that extend one another are one history, a sub-agent has its own', async () => {
  const body = { model: 'agent', messages: [user('plan')] };
  const first = await call('POST', '/v1/chat/completions', body, { 'x-art-rollout': 'r-1' });
  const messages = [user('plan'), { role: 'assistant', content: first.json.choices[0].message.content }];
  const [main] = await Promise.all([
    say('r-1', [...messages, user('go on')]),
    say('r-1', [user('you are a sub-agent')]),
    say('r-1', [user('you are another one')]),
  ]);
  await say('r-1', [...main, user('and on')]);
  await say('r-2', [user('plan')]);

  const { json } = await call('GET', '/api/rollouts/r-1');
  expect(json).toMatchObject({ id: 'r-1', model: 'agent', state: 'open', calls: 5, reward: null });
  const texts = json.histories.map(({ entries }: { entries: { message: Message }[] }) =>
    entries.map(({ message }) => message.content),
  );
  expect(texts).toHaveLength(3);
  expect(texts[0].filter((_: string, index: number) => index % 2 === 0)).toEqual(['plan', 'go on', 'and on']);
  expect(
    texts
      .slice(1)
      .map(([prompt]: string[]) => prompt)
      .sort(),
  ).toEqual(['you are a sub-agent', 'you are another one']);
  expect(json.histories[0].entries.filter((entry: object) => 'choice' in entry)).toHaveLength(3);
  expect(
    (await call('GET', '/api/rollouts?state=open')).json.rollouts.map(({ id }: { id: string }) => id).sort(),
  ).toEqual(['r-1', 'r-2']);
});

test('the reward ends it: the same again is fine, another one is refused unless it replaces, further calls are refused', async () => {
  await say('r', [user('plan')]);
  const reward = (body: object): Promise<Answer> => call('POST', '/api/rollouts/r/reward', body);
  const outcome = { reward: 0.5, metrics: { wins: 1, moves: 3 }, metadata: { opponent: 'random' }, group: 'g' };
  expect(await reward(outcome)).toMatchObject({ status: 200, json: { ...outcome, state: 'finished', calls: 1 } });
  expect((await reward({ ...outcome, metrics: { moves: 3, wins: 1 } })).status).toBe(200);
  expect(await reward({ ...outcome, reward: 1 })).toMatchObject({
    status: 409,
    json: { error: { code: 'rollout_finished' } },
  });
  expect((await reward({ ...outcome, reward: 1, replace: true })).json.reward).toBe(1);
  const late = await call('POST', '/rollouts/r/v1/chat/completions', { model: 'agent', messages: [user('more')] });
  expect(late).toMatchObject({ status: 409, json: { error: { code: 'rollout_finished' } } });
  expect(engine.requests).toHaveLength(1);
  expect(await call('POST', '/api/rollouts/unknown/reward', { reward: 1 })).toMatchObject({ status: 404 });
  expect(await reward({ reward: 1, score: 2 })).toMatchObject({ status: 400, json: { error: { param: 'score' } } });
});

test.each(['a b', '.hidden', '../etc', 'x'.repeat(129), 'ä'])('%j is no rollout id', async (id) => {
  const body = { model: 'agent', messages: [user('plan')] };
  const byPath = await call('POST', `/rollouts/${encodeURIComponent(id)}/v1/chat/completions`, body);
  expect(byPath).toMatchObject({
    status: 400,
    json: { error: { message: expect.stringContaining('must be 1–128 letters') } },
  });
  expect((await call('GET', `/api/rollouts/${encodeURIComponent(id)}`)).status).toBe(400);
});

test('rollouts are trained by id or by group, each once: another time they are refused, or skipped and counted', async () => {
  for (const [index, reward] of [1, 0, 1, 0].entries()) await finished(`r${index}`, reward, index < 2 ? 'a' : 'b');
  await say('open', [user('plan')]);
  expect((await train('k0', [{ rollouts: ['r0', 'open'] }])).json.error.code).toBe('rollout_not_finished');
  expect((await train('k0', [{ rollouts: ['r0', 'r0'] }])).json.error.code).toBe('invalid_value');
  expect((await train('k0', [{ rollouts: ['r0', 'gone'] }])).json.error.code).toBe('rollout_not_found');
  const first = await train('k1', [{ rollouts: ['r0', 'r1'] }, { group: 'b' }]);
  expect(first).toMatchObject({ status: 200, json: { step: 1 } });
  expect(first.json.metrics).toMatchObject({ 'data/step_num_groups_trainable': 2, 'train/reward': 0.5 });
  expect((await call('GET', '/api/rollouts/r3')).json).toMatchObject({ state: 'trained', trained_step: 1 });
  expect((await train('k1', [{ rollouts: ['r0', 'r1'] }, { group: 'b' }])).json).toEqual(first.json);
  expect((await train('k2', [{ rollouts: ['r0', 'r1'] }])).json.error.code).toBe('rollout_trained');
  for (const [id, reward] of [
    ['r4', 1],
    ['r5', 0],
  ] as const)
    await finished(id, reward);
  const skipping = await train('k3', [{ rollouts: ['r0', 'r4', 'r5'] }], { trained_rollouts: 'skip' });
  expect(skipping.json.metrics).toMatchObject({ 'discarded/step/trained_rollouts': 1, 'train/reward': 0.5 });
  expect(await history()).toHaveLength(2);
});

test('all histories of a rollout are trained, each turn once', async () => {
  const messages = await say('r0', [user('plan')], { tools: [lookTool] });
  await say('r0', [user('sub-agent')]);
  await say('r0', [...messages, user('go on')], { tools: [lookTool] });
  expect((await call('POST', '/api/rollouts/r0/reward', { reward: 1 })).status).toBe(200);
  await finished('r1', 0);
  const { json } = await train('k', [{ rollouts: ['r0', 'r1'] }]);
  const tokens = [...(await histories('r0')), ...(await histories('r1'))].flatMap(({ entries }) => entries);
  const sampled = tokens.reduce((sum, entry) => sum + (entry.completion_tokens ?? 0), 0);
  expect(json.metrics).toMatchObject({
    'data/step_num_additional_histories': 1,
    'data/step_trainable_assistant_tokens': sampled,
  });
});

test('finished rollouts, and open ones, are there after a restart, and are trained from the disk', async () => {
  await finished('r0', 1);
  await finished('r1', 0);
  sampled = 'byByte';
  const messages = await say('open', [user('plan')]);
  sampled = 'asWritten';
  await restart();
  expect((await call('GET', '/api/rollouts/r0')).json).toMatchObject({ state: 'finished', reward: 1, calls: 1 });
  await say('open', [...messages, user('go on')]);
  // The second turn repeats the first one's ids, so that both are one history.
  const { histories } = (await call('GET', '/api/rollouts/open')).json;
  expect(histories.map(({ entries }: { entries: object[] }) => entries.length)).toEqual([4]);
  expect((await call('POST', '/api/rollouts/open/reward', { reward: 1 })).json.calls).toBe(2);
  expect((await train('k', [{ rollouts: ['r0', 'r1', 'open'] }])).json).toMatchObject({ step: 1 });
  await restart();
  expect((await call('GET', '/api/rollouts/open')).json).toMatchObject({ state: 'trained', trained_step: 1 });
  expect((await train('again', [{ rollouts: ['r0'] }])).json.error.code).toBe('rollout_trained');
  // The scripted engine learns nothing, which is said; nothing else is.
  expect(warnings).toEqual([expect.stringContaining('scores the probe text exactly as step 0 did')]);
});

test('a call that is sent again with its seed, because the answer was lost, counts once', async () => {
  await say('r', [user('plan')], { seed: 7 });
  await say('r', [user('plan')], { seed: 7 });
  await say('r', [user('plan')], { seed: 8 });
  expect((await call('GET', '/api/rollouts/r')).json.calls).toBe(2);
});

test('rollouts that nobody ends are given up: when they are silent for too long, and when there are too many', async () => {
  await restart({ completions: { rollouts: { idleMs: 60, maxOpen: 2 } } });
  for (const id of ['a', 'b', 'c']) await say(id, [user(id)]);
  expect((await call('GET', '/api/rollouts/a')).json.state).toBe('expired');
  await expect.poll(async () => (await call('GET', '/api/rollouts/c')).json.state, { timeout: 3000 }).toBe('expired');
  expect((await call('POST', '/api/rollouts/c/reward', { reward: 1 })).json.error.code).toBe('rollout_expired');
  const late = await call('POST', '/rollouts/c/v1/chat/completions', { model: 'agent', messages: [user('more')] });
  expect(late).toMatchObject({ status: 409, json: { error: { code: 'rollout_expired' } } });
  expect(server.registry.get('agent').model.completions.rollouts.counts).toEqual({ open: 0, expired: 3 });
});

test('capture hands the turns to a client: tools, steps and ends of each; then no call, reward or training by id is taken', async () => {
  const messages = await say('r', [user('plan')], { tools: [lookTool] });
  await say('r', [...messages, user('go on')], { tools: [lookTool], max_tokens: 1 });
  await say('r', [...messages, user('or not')], { tools: [lookTool] });
  await say('r', [user('sub-agent')]);
  const taken = await call('POST', '/api/rollouts/r/capture');
  expect(taken.status).toBe(200);
  const [{ model, histories }] = taken.json.models;
  expect(model).toBe('agent');
  // A turn of an earlier history that another one goes on from is a choice once, and its tools are known there too.
  expect(histories.map(({ tools }: { tools: unknown }) => tools)).toEqual([[lookTool], [lookTool], null]);
  const ends = histories.map(({ entries }: { entries: { finish_reason?: string; policy_step?: number }[] }) =>
    entries.map((entry) => entry.finish_reason ?? null),
  );
  expect(ends).toEqual([
    [null, 'stop', null, 'length'],
    [null, null, null, 'stop'],
    [null, 'stop'],
  ]);
  expect(histories[0].entries[1]).toMatchObject({ policy_step: 0, choice: { choice_index: 0 } });
  expect(histories[0].entries[3]).toMatchObject({ completion_tokens: 1, prompt_tokens: expect.any(Number) });

  expect((await call('POST', '/api/rollouts/r/capture')).json).toEqual(taken.json);
  const late = await call('POST', '/rollouts/r/v1/chat/completions', { model: 'agent', messages: [user('more')] });
  expect(late).toMatchObject({ status: 409, json: { error: { code: 'rollout_captured' } } });
  expect((await call('POST', '/api/rollouts/r/reward', { reward: 1 })).json.error.code).toBe('rollout_captured');
  expect((await train('k', [{ rollouts: ['r'] }])).json.error.code).toBe('rollout_captured');
  expect((await call('GET', '/api/rollouts?state=captured')).json.rollouts).toMatchObject([{ id: 'r', calls: 4 }]);
  expect(server.registry.get('agent').model.completions.rollouts.counts).toEqual({ open: 0, expired: 0 });

  await restart();
  expect((await call('POST', '/api/rollouts/r/capture')).json).toEqual(taken.json);
  expect((await call('POST', '/api/rollouts/unknown/capture')).status).toBe(404);
  await finished('other', 1);
  expect((await call('POST', '/api/rollouts/other/capture')).json.error.code).toBe('rollout_finished');
});

test('a server without stored texts keeps rollouts in memory: they are trained, and gone after a restart', async () => {
  await restart({ store: 'none' });
  await finished('r0', 1);
  await finished('r1', 0);
  expect((await train('k', [{ rollouts: ['r0', 'r1'] }])).json).toMatchObject({ step: 1 });
  await finished('r2', 0);
  await restart({ store: 'none' });
  expect((await call('GET', '/api/rollouts/r2')).status).toBe(404);
});
