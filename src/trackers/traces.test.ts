/** Trackers of trajectories against a local server; their requests have the shapes that each one's own client sends (test/fixtures/trackers). */
import { readFileSync } from 'node:fs';
import { expect, test } from 'vitest';
import { type LocalServer, type ReceivedRequest, startLocalServer } from '../../test/trackers/local-server.ts';
import { type ChatChoice, Trajectory, TrajectoryGroup } from '../core/trajectory.ts';
import { ModelTrackers } from '../sdk/model-trackers.ts';
import type { Tracker } from '../sdk/tracker.ts';
import { langfuseTracker } from './langfuse.ts';
import { openPipeTracker } from './openpipe.ts';
import { otelTracker } from './otel.ts';
import { toUuid, traceTrajectories } from './traces.ts';
import { weaveTracker } from './weave.ts';

interface Recorded {
  readonly method: string;
  readonly path: string;
  readonly scheme: string;
  readonly headers: Readonly<Record<string, string>>;
  readonly body: unknown;
}

const readFixture = (name: string): Recorded[] =>
  JSON.parse(readFileSync(new URL(`../../test/fixtures/trackers/${name}.json`, import.meta.url), 'utf8')).requests;

const user = { role: 'user', content: 'Hello' } as const;
const choice: ChatChoice = {
  index: 0,
  finish_reason: 'stop',
  message: { role: 'assistant', content: 'Hi' },
  art: { completion_id: 'c', policy_step: 1 },
};
const createGroups = (): TrajectoryGroup[] => [
  new TrajectoryGroup([
    new Trajectory({
      messagesAndChoices: [user, choice, { role: 'user', content: 'Again' }, choice],
      tools: [{ type: 'function', function: { name: 'search' } }],
      additionalHistories: [{ messagesAndChoices: [{ role: 'user', content: 'Sub-agent' }, choice] }],
      reward: 0.5,
      metrics: { won: true, odd: Number.NaN, duration: 2 },
      metadata: { customer: 'Ada' },
      logs: ['note'],
    }),
  ]),
];
const texts = /Hello|Hi|Again|Sub-agent|search|Ada|note/;

async function logTo(tracker: Tracker): Promise<void> {
  const trackers = new ModelTrackers([tracker], { project: 'demo', name: 'agent-1' }, { seed: 1 });
  const metrics = { 'train/reward': 0.5, 'loss/kl': Number.NaN };
  trackers.logRow({ step: 1, split: 'train', metrics, groups: createGroups() });
  const [health] = await trackers.close();
  expect(health).toMatchObject({ sent: 2, dropped: 0, lastError: null });
}

const bodyText = (server: LocalServer): string => server.requests.map(({ bytes }) => bytes.toString()).join('\n');

/** Every field of `sent` stands in `known` with a value of the same kind; the keys of maps that users fill are not compared. */
function expectKnownFields(sent: unknown, known: unknown, free: readonly string[], path = ''): void {
  if (Array.isArray(sent)) {
    expect(Array.isArray(known), path).toBe(true);
    for (const item of sent) {
      // An item fits one of those recorded.
      const isFit = (known as unknown[]).some((other) => fits(item, other, free));
      expect(isFit, `${path}[]: ${JSON.stringify(item)}`).toBe(true);
    }
  } else if (typeof sent === 'object' && sent !== null) {
    for (const [key, value] of Object.entries(sent)) {
      expect(Object.keys(known as object), path).toContain(key);
      if (!free.includes(key)) expectKnownFields(value, Reflect.get(known as object, key), free, `${path}.${key}`);
    }
  } else if (known !== null && sent !== null) expect(typeof sent, path).toBe(typeof known);
}

function fits(sent: unknown, known: unknown, free: readonly string[]): boolean {
  try {
    expectKnownFields(sent, known, free);
    return true;
  } catch {
    return false;
  }
}

const ofPath = <T extends { readonly path: string }>(requests: readonly T[], path: string): T => {
  const found = requests.find((request) => request.path === path);
  expect(found, path).toBeDefined();
  return found!;
};

interface OtlpSpan {
  readonly traceId: string;
  readonly spanId: string;
  readonly parentSpanId?: string;
  readonly name: string;
  readonly kind: unknown;
  readonly startTimeUnixNano: string;
  readonly endTimeUnixNano: string;
  readonly attributes: { readonly key: string; readonly value: Readonly<Record<string, unknown>> }[];
  readonly events?: { readonly name: string; readonly attributes: OtlpSpan['attributes'] }[];
}

const spansOf = (body: unknown): OtlpSpan[] =>
  (body as { resourceSpans: { scopeSpans: { spans: OtlpSpan[] }[] }[] }).resourceSpans.flatMap(({ scopeSpans }) =>
    scopeSpans.flatMap(({ spans }) => spans),
  );

const attributesOf = ({ attributes }: Pick<OtlpSpan, 'attributes'>): Record<string, unknown> =>
  Object.fromEntries(attributes.map(({ key, value }) => [key, Object.values(value)[0]]));

test('Langfuse: a trace with a reward, in the fields of its own client', async () => {
  await using server = await startLocalServer(({ path }) => ({ body: path.includes('otel') ? '' : [] }));
  await logTo(langfuseTracker({ publicKey: 'pk-lf-1', secretKey: 'sk-lf-1', baseURL: server.url, texts: true }));
  const fixture = readFixture('langfuse');
  const theirs = ofPath(fixture, '/api/public/otel/v1/traces');
  const known = new Set(spansOf(theirs.body).flatMap((span) => Object.keys(attributesOf(span))));
  const knownFields = Object.keys(spansOf(theirs.body)[0]!);
  const spans = server.requests.filter(({ path }) => path === theirs.path).flatMap(({ body }) => spansOf(body));
  expect(spans.map(({ name }) => name).sort()).toEqual(['metrics', 'rollout', 'turn', 'turn', 'turn']);
  for (const span of spans) {
    expect(knownFields).toEqual(expect.arrayContaining(Object.keys(span).filter((key) => key !== 'parentSpanId')));
    const odd = Object.keys(attributesOf(span)).filter((key) => !known.has(key) && !key.includes('.metadata.'));
    expect(odd).toEqual(['session.id']);
    expect(span.traceId).toMatch(/^[0-9a-f]{32}$/);
    expect(span.spanId).toMatch(/^[0-9a-f]{16}$/);
  }
  const root = spans.find(({ name }) => name === 'rollout')!;
  expect(attributesOf(root)).toMatchObject({
    'langfuse.observation.type': 'agent',
    'langfuse.observation.metadata.step': '1',
    'langfuse.observation.metadata.split': '"train"',
    'langfuse.observation.metadata.metadata': '{"customer":"Ada"}',
  });
  expect(BigInt(root.endTimeUnixNano) - BigInt(root.startTimeUnixNano)).toBe(2_000_000_000n);
  const turn = spans.findLast(({ name }) => name === 'turn')!;
  expect(turn).toMatchObject({ traceId: root.traceId, parentSpanId: root.spanId });
  const { body, scheme } = ofPath(fixture, '/api/public/scores');
  const sent = ofPath(server.requests, '/api/public/scores');
  expectKnownFields(sent.body, body, []);
  expect(sent.body).toContainEqual(expect.objectContaining({ name: 'reward', value: 0.5, traceId: root.traceId }));
  expect((sent.body as { name: string }[]).map(({ name }) => name)).toEqual(['won', 'duration', 'reward']);
  expect(sent.headers.authorization).toBe(`${scheme} ${Buffer.from('pk-lf-1:sk-lf-1').toString('base64')}`);
  expect(sent.headers['x-langfuse-public-key']).toBe('pk-lf-1');
});

test('Weave: complete calls and feedback, in the fields of its own client', async () => {
  await using server = await startLocalServer(() => ({ body: {} }));
  await logTo(weaveTracker({ apiKey: 'k', entity: 'me', baseURL: server.url, texts: true }));
  const fixture = readFixture('weave');
  const free = ['attributes', 'inputs', 'output', 'summary', 'payload'];
  const path = '/v2/me/demo/calls/complete';
  const theirs = ofPath(fixture, path);
  const calls = server.requests.filter((request) => request.path === path);
  for (const { body } of calls) expectKnownFields(body, theirs.body, free);
  const list = calls.flatMap(({ body }) => (body as { batch: Record<string, unknown>[] }).batch);
  expect(list.map(({ op_name }) => op_name)).toEqual(['metrics', 'rollout', 'turn', 'turn', 'turn']);
  const [metrics, root, turn] = list;
  expect(metrics?.output).toEqual({ 'train/reward': 0.5, 'loss/kl': 'NaN' });
  expect(root?.summary).toEqual({ reward: 0.5, won: 1, odd: 'NaN', duration: 2 });
  expect(turn).toMatchObject({ parent_id: root?.id, trace_id: root?.trace_id, output: { content: 'Hi' } });
  const feedback = ofPath(server.requests, '/feedback/batch/create');
  expectKnownFields(feedback.body, ofPath(fixture, '/feedback/batch/create').body, free);
  const rewards = (feedback.body as { batch: Record<string, unknown>[] }).batch;
  const weaveRef = `weave:///me/demo/call/${root?.id}`;
  expect(rewards).toContainEqual(expect.objectContaining({ weave_ref: weaveRef, payload: { value: 0.5 } }));
});

test('OpenPipe: a report for each sampled turn, in the fields of its own client', async () => {
  await using server = await startLocalServer(() => ({ body: { status: 'ok' } }));
  await logTo(openPipeTracker({ apiKey: 'opk-1', baseURL: server.url, texts: true }));
  const theirs = ofPath(readFixture('openpipe'), '/report');
  expect(server.requests).toHaveLength(3);
  for (const { body, headers } of server.requests) {
    expectKnownFields(body, theirs.body, ['tags', 'tools']);
    expect(headers.authorization).toBe(`${theirs.scheme} opk-1`);
  }
  expect(server.requests[1]?.body).toMatchObject({
    reqPayload: { model: 'agent-1@1', messages: [user, { content: 'Hi' }, { content: 'Again' }], tools: [{}] },
    respPayload: { choices: [{ message: { content: 'Hi' } }] },
    tags: { reward: '0.5', step: '1', split: 'train' },
  });
  expect(() => openPipeTracker({ apiKey: 'k' } as never)).toThrow('pass texts: true');
});

test('OpenPipe: a batch that is cut goes on where it stopped', async () => {
  let count = 0;
  await using server = await startLocalServer(() => (++count === 2 ? { status: 500 } : { body: {} }));
  const tracker = openPipeTracker({
    apiKey: 'k',
    baseURL: server.url,
    texts: true,
    retryDelayMs: 1,
    onWarning: () => {},
  });
  const trackers = new ModelTrackers([tracker], { project: 'demo', name: 'agent-1' }, {});
  trackers.logRow({ step: 1, split: 'train', metrics: {}, groups: createGroups() });
  expect((await trackers.close())[0]).toMatchObject({ sent: 1, dropped: 0 });
  const contents = server.requests.map(({ body }) => JSON.stringify((body as { reqPayload: object }).reqPayload));
  expect(contents).toHaveLength(4);
  expect(contents[1]).toBe(contents[2]);
  expect(new Set(contents).size).toBe(3);
});

test('OpenTelemetry: gauges, and spans with evaluations', async () => {
  await using server = await startLocalServer(() => ({ body: {} }));
  const warnings: string[] = [];
  const onWarning = (message: string): void => void warnings.push(message);
  await logTo(otelTracker({ endpoint: server.url, headers: { authorization: 'Bearer t' }, texts: true, onWarning }));
  const { body, headers } = ofPath(server.requests, '/v1/metrics');
  expect(headers.authorization).toBe('Bearer t');
  const [resource] = (
    body as { resourceMetrics: { scopeMetrics: { metrics: { name: string; gauge: unknown }[] }[] }[] }
  ).resourceMetrics;
  const gauges = resource!.scopeMetrics[0]!.metrics;
  expect(gauges.map(({ name }) => name)).toEqual(['train/reward', 'training_step']);
  const attributes = expect.arrayContaining([{ key: 'art.split', value: { stringValue: 'train' } }]);
  expect(gauges[0]?.gauge).toMatchObject({ dataPoints: [{ asDouble: 0.5, attributes }] });
  expect(warnings).toEqual(["tracker otel: loss/kl = NaN is left out: OTLP's JSON has only finite values"]);

  const [agent, chat, ...others] = spansOf(ofPath(server.requests, '/v1/traces').body);
  expect(others).toHaveLength(2);
  expect(attributesOf(agent!)).toMatchObject({ 'gen_ai.operation.name': 'invoke_agent', 'art.step': 1 });
  expect(agent!.events!.map(attributesOf)).toContainEqual({
    'gen_ai.evaluation.name': 'reward',
    'gen_ai.evaluation.score.value': 0.5,
  });
  expect(agent!.events!.map(({ name }) => name)).toEqual(Array(3).fill('gen_ai.evaluation.result'));
  expect(chat).toMatchObject({ traceId: agent!.traceId, parentSpanId: agent!.spanId, name: 'chat agent-1@1' });
  expect(JSON.parse(String(attributesOf(chat!)['gen_ai.input.messages']))).toEqual([
    { role: 'user', parts: [{ type: 'text', content: 'Hello' }] },
  ]);
});

test('without texts no tracker sends one', async () => {
  await using server = await startLocalServer(({ path }) => ({ body: path.includes('otel') ? '' : {} }));
  const baseURL = server.url;
  await logTo(langfuseTracker({ publicKey: 'p', secretKey: 's', baseURL }));
  await logTo(weaveTracker({ apiKey: 'k', entity: 'me', baseURL }));
  await logTo(otelTracker({ endpoint: baseURL, onWarning: () => {} }));
  expect(bodyText(server)).toContain('0.5');
  expect(bodyText(server)).not.toMatch(texts);
});

test('ids are a function of what is sent', async () => {
  const ids = new Set<string>();
  for (let attempt = 0; attempt < 2; attempt++) {
    let failed = false;
    await using server = await startLocalServer(() => {
      const isFirst = !failed;
      failed = true;
      return isFirst ? { status: 503 } : { body: {} };
    });
    const tracker = weaveTracker({
      apiKey: 'k',
      entity: 'me',
      baseURL: server.url,
      retryDelayMs: 1,
      onWarning: () => {},
    });
    const trackers = new ModelTrackers([tracker], { project: 'demo', name: 'agent-1' }, {});
    trackers.logRow({ step: 1, split: 'train', metrics: {}, groups: createGroups() });
    await trackers.close();
    const [refused, taken] = server.requests.map((request: ReceivedRequest) => request.bytes.toString());
    expect(taken).toBe(refused);
    ids.add(taken!);
  }
  expect(ids.size).toBe(2); // logged twice: two rows
  expect(toUuid('0123456789abcdef0123456789abcdef')).toBe('01234567-89ab-8def-8123-456789abcdef');
  const batch = { step: 1, split: 'train', recordedAt: new Date(0), groups: [] };
  expect(traceTrajectories({ project: 'a', name: 'b' }, batch)).toEqual([]);
});
