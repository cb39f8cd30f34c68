/**
 * Langfuse 5: traces by OTLP in JSON, rewards as scores. Layer 6.
 * Source: what Langfuse's Python client 5.0.4 sends, recorded in test/fixtures/trackers/langfuse.json. Left out: prompts, data sets, media.
 */
import { refuseUnknownKeys } from '../core/options.ts';
import type { Tracker, TrackerRow, TrackerRun, TrackerSink, TrackerTrajectories } from '../sdk/tracker.ts';
import { createTracker, TRACKER_OPTION_NAMES, type TrackerOptions } from '../sdk/tracker-queue.ts';
import { createTrackerHttp, readKey, type TrackerHttp } from './http.ts';
import { deriveId, type RunNames, rowId, type TracedTrajectory, toJsonNumber, traceTrajectories } from './traces.ts';

export interface LangfuseTrackerOptions extends TrackerOptions {
  /** Default: LANGFUSE_PUBLIC_KEY of the environment. */
  readonly publicKey?: string;
  /** Default: LANGFUSE_SECRET_KEY. */
  readonly secretKey?: string;
  /** Default: LANGFUSE_BASE_URL, LANGFUSE_HOST, else https://cloud.langfuse.com. */
  readonly baseURL?: string;
  /** Also messages, tools, metadata and logs. Default false: rewards, metrics and counts. */
  readonly texts?: boolean;
}

/**
 * Sends each trajectory as a trace with its reward and metrics as scores, each sampled turn as a generation where texts are sent, and each row of metrics
 * as a trace `metrics`. All belong to the session `<project>/<name>`. What is sent again has the same ids, so that it stands there once. Langfuse
 * has no scores that are not finite: those are in the trace's metadata alone.
 */
export function langfuseTracker(options: LangfuseTrackerOptions = {}): Tracker {
  refuseUnknownKeys('langfuseTracker', options, [
    ...TRACKER_OPTION_NAMES,
    'publicKey',
    'secretKey',
    'baseURL',
    'texts',
  ]);
  const { publicKey, secretKey, baseURL, texts = false, ...limits } = options;
  const sink = new LangfuseSink(publicKey, secretKey, baseURL);
  return createTracker(sink, { ...limits, trajectories: texts ? 'texts' : 'numbers' });
}

/** Trajectories or scores of one request. */
const MAX_ITEMS = 50;

class LangfuseSink implements TrackerSink {
  readonly name = 'langfuse';
  readonly #http: TrackerHttp;
  #run: RunNames = { project: '', name: '' };

  constructor(publicOption: string | undefined, secretOption: string | undefined, baseURL: string | undefined) {
    const { env } = process;
    const publicKey = readKey('langfuseTracker', publicOption, 'publicKey', 'LANGFUSE_PUBLIC_KEY');
    const secretKey = readKey('langfuseTracker', secretOption, 'secretKey', 'LANGFUSE_SECRET_KEY');
    const basic = Buffer.from(`${publicKey}:${secretKey}`).toString('base64');
    this.#http = createTrackerHttp({
      what: 'tracker langfuse',
      baseURL: baseURL ?? env.LANGFUSE_BASE_URL ?? env.LANGFUSE_HOST ?? 'https://cloud.langfuse.com',
      headers: {
        authorization: `Basic ${basic}`,
        'x-langfuse-public-key': publicKey,
        'x-langfuse-ingestion-version': '4',
      },
      secrets: [basic, secretKey],
    });
  }

  async start(run: TrackerRun): Promise<void> {
    this.#run = run;
  }

  async logMetrics(rows: readonly TrackerRow[], signal: AbortSignal): Promise<void> {
    for (const part of chunk(rows))
      await this.#sendSpans(
        part.map((row) => this.#rowSpan(row)),
        signal,
      );
  }

  async logTrajectories(batch: TrackerTrajectories, signal: AbortSignal, onProgress: () => void): Promise<void> {
    const traced = traceTrajectories(this.#run, batch);
    for (const part of chunk(traced)) {
      await this.#sendSpans(
        part.flatMap((item) => this.#spans(item)),
        signal,
      );
      onProgress();
    }
    for (const part of chunk(traced.flatMap(toScores))) {
      await this.#http.send({ path: '/api/public/scores', body: part }, signal);
      onProgress();
    }
  }

  async #sendSpans(spans: readonly object[], signal: AbortSignal): Promise<void> {
    const resource = { attributes: toAttributes({ 'service.name': 'agent-reinforcement-trainer' }) };
    const scopeSpans = [{ scope: { name: 'agent-reinforcement-trainer' }, spans }];
    await this.#http.send(
      { path: '/api/public/otel/v1/traces', body: { resourceSpans: [{ resource, scopeSpans }] } },
      signal,
    );
  }

  #rowSpan(row: TrackerRow): object {
    const id = rowId(this.#run, row);
    const metrics = Object.entries(row.metrics).map(([name, value]) => [name, toJsonNumber(value)]);
    const facts = { ...this.#run, step: row.step, split: row.split };
    return this.#span(id, id, null, 'metrics', [row.recordedAt.getTime(), row.recordedAt.getTime()], {
      'langfuse.observation.type': 'span',
      ...toMetadata({ project: facts.project, name: facts.name, step: facts.step, split: facts.split }),
      'langfuse.observation.output': JSON.stringify(Object.fromEntries(metrics)),
    });
  }

  #spans({ id, startMs, endMs, facts, scores, trajectory, turns }: TracedTrajectory): object[] {
    const { texts } = trajectory;
    const times = [startMs, endMs] as const;
    const histories = texts?.histories.map(({ messages, tools }) => ({
      messages: messages.map((entry) => entry.message),
      tools,
    }));
    const root = this.#span(id, id, null, 'rollout', times, {
      'langfuse.observation.type': 'agent',
      ...toMetadata({ ...facts, scores }),
      ...(texts && toMetadata({ metadata: texts.metadata, logs: texts.logs })),
      ...(histories && { 'langfuse.observation.input': JSON.stringify(histories) }),
      ...(turns.length > 0 && { 'langfuse.observation.output': JSON.stringify(turns.at(-1)!.output) }),
    });
    const children = turns.map((turn) =>
      this.#span(id, turn.id, id, 'turn', times, {
        'langfuse.observation.type': 'generation',
        'langfuse.observation.model.name': turn.model,
        'langfuse.observation.input': JSON.stringify(turn.input),
        'langfuse.observation.output': JSON.stringify(turn.output),
      }),
    );
    return [root, ...children];
  }

  #span(
    trace: string,
    id: string,
    parent: string | null,
    name: string,
    [startMs, endMs]: readonly [number, number],
    attributes: Readonly<Record<string, string>>,
  ): object {
    const session = { 'session.id': `${this.#run.project}/${this.#run.name}`, ...attributes };
    return {
      traceId: toTraceId(trace),
      spanId: toSpanId(id),
      ...(parent !== null && { parentSpanId: toSpanId(parent) }),
      name,
      kind: 1,
      startTimeUnixNano: toNanoseconds(startMs),
      endTimeUnixNano: toNanoseconds(endMs),
      attributes: toAttributes(session),
      status: {},
    };
  }
}

function toScores({ id, scores, endMs }: TracedTrajectory): object[] {
  const finite = Object.entries(scores).filter(([, value]) => Number.isFinite(value));
  return finite.map(([name, value]) => ({
    id: deriveId(id, name).slice(0, 32),
    traceId: toTraceId(id),
    name,
    value,
    dataType: 'NUMERIC',
    timestamp: new Date(endMs).toISOString(),
  }));
}

/** Values as JSON, strings too, so that '1' and 1 stay two things. */
function toMetadata(values: Readonly<Record<string, unknown>>): Record<string, string> {
  const entries = Object.entries(values).map(([key, value]) => [
    `langfuse.observation.metadata.${key}`,
    JSON.stringify(value, (_key, inner: unknown) => (typeof inner === 'number' ? toJsonNumber(inner) : inner)),
  ]);
  return Object.fromEntries(entries);
}

function toAttributes(values: Readonly<Record<string, string>>): object[] {
  return Object.entries(values).map(([key, stringValue]) => ({ key, value: { stringValue } }));
}

function toTraceId(id: string): string {
  return id.slice(0, 32);
}

function toSpanId(id: string): string {
  return id.slice(32, 48);
}

function toNanoseconds(ms: number): string {
  return (BigInt(Math.round(ms * 1000)) * 1000n).toString();
}

function chunk<T>(items: readonly T[]): T[][] {
  const count = Math.ceil(items.length / MAX_ITEMS);
  return Array.from({ length: count }, (_, index) => items.slice(index * MAX_ITEMS, (index + 1) * MAX_ITEMS));
}
