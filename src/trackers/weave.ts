/**
 * Weave: calls and feedback of its trace server. Layer 6.
 * Source: what Weave's Python client 0.54.0 sends, recorded in test/fixtures/trackers/weave.json. Left out: ops with code, objects, files.
 */
import { ConfigError } from '../core/errors.ts';
import { refuseUnknownKeys } from '../core/options.ts';
import type { Tracker, TrackerRow, TrackerRun, TrackerSink, TrackerTrajectories } from '../sdk/tracker.ts';
import { createTracker, TRACKER_OPTION_NAMES, type TrackerOptions } from '../sdk/tracker-queue.ts';
import { createTrackerHttp, readKey, type TrackerHttp } from './http.ts';
import {
  deriveId,
  type RunNames,
  rowId,
  type TracedTrajectory,
  toJsonNumber,
  toUuid,
  traceTrajectories,
} from './traces.ts';

export interface WeaveTrackerOptions extends TrackerOptions {
  /** Default: WANDB_API_KEY of the environment. */
  readonly apiKey?: string;
  /** Default: WF_TRACE_SERVER_URL, else https://trace.wandb.ai. */
  readonly baseURL?: string;
  /** Team or user; default: WANDB_ENTITY. */
  readonly entity?: string;
  /** Default: the model's project. It must exist: wandbTracker makes it. */
  readonly project?: string;
  /** Also messages, tools, metadata and logs. Default false: rewards, metrics and counts. */
  readonly texts?: boolean;
}

/**
 * Sends each trajectory as a call `rollout`, its reward and metrics as feedback, each sampled turn as a call below it where texts are sent, and each row
 * of metrics as a call `metrics`. What is sent again has the same ids. Values that are not finite are sent as texts.
 */
export function weaveTracker(options: WeaveTrackerOptions = {}): Tracker {
  refuseUnknownKeys('weaveTracker', options, [
    ...TRACKER_OPTION_NAMES,
    'apiKey',
    'baseURL',
    'entity',
    'project',
    'texts',
  ]);
  const { apiKey, baseURL, entity = process.env.WANDB_ENTITY, project, texts = false, ...limits } = options;
  if (!entity) throw new ConfigError('weaveTracker: needs entity, or WANDB_ENTITY in the environment: a team or user');
  const sink = new WeaveSink({ apiKey, baseURL, entity, project });
  return createTracker(sink, { ...limits, trajectories: texts ? 'texts' : 'numbers' });
}

interface WeaveSinkOptions {
  readonly apiKey: string | undefined;
  readonly baseURL: string | undefined;
  readonly entity: string;
  readonly project: string | undefined;
}

interface Call {
  readonly id: string;
  readonly trace: string;
  readonly parent: string | null;
  readonly op: string;
  readonly startMs: number;
  readonly endMs: number;
  readonly attributes: object;
  readonly inputs: object;
  readonly output: unknown;
  readonly summary?: object;
}

/** Trajectories of one request. */
const MAX_TRAJECTORIES = 50;

class WeaveSink implements TrackerSink {
  readonly name = 'weave';
  readonly #http: TrackerHttp;
  readonly #entity: string;
  readonly #projectOption: string | undefined;
  #run: RunNames = { project: '', name: '' };
  #project = '';

  constructor({ apiKey, baseURL, entity, project }: WeaveSinkOptions) {
    const key = readKey('weaveTracker', apiKey, 'apiKey', 'WANDB_API_KEY');
    const basic = Buffer.from(`api:${key}`).toString('base64');
    this.#entity = entity;
    this.#projectOption = project;
    this.#http = createTrackerHttp({
      what: 'tracker weave',
      baseURL: baseURL ?? process.env.WF_TRACE_SERVER_URL ?? 'https://trace.wandb.ai',
      headers: { authorization: `Basic ${basic}` },
      secrets: [basic, key],
    });
  }

  async start(run: TrackerRun): Promise<void> {
    this.#run = run;
    this.#project = this.#projectOption ?? run.project;
  }

  async logMetrics(rows: readonly TrackerRow[], signal: AbortSignal): Promise<void> {
    const calls = rows.map((row): Call => {
      const id = rowId(this.#run, row);
      const time = row.recordedAt.getTime();
      const attributes = { project: this.#run.project, name: this.#run.name, step: row.step, split: row.split };
      const output = toJson(row.metrics);
      return { id, trace: id, parent: null, op: 'metrics', startMs: time, endMs: time, attributes, inputs: {}, output };
    });
    await this.#complete(calls, signal);
  }

  async logTrajectories(batch: TrackerTrajectories, signal: AbortSignal, onProgress: () => void): Promise<void> {
    const traced = traceTrajectories(this.#run, batch);
    for (let start = 0; start < traced.length; start += MAX_TRAJECTORIES) {
      const part = traced.slice(start, start + MAX_TRAJECTORIES);
      await this.#complete(part.flatMap(toCalls), signal);
      const feedback = part.flatMap((item) => this.#feedback(item));
      await this.#http.send({ path: '/feedback/batch/create', body: { batch: feedback } }, signal);
      onProgress();
    }
  }

  async #complete(calls: readonly Call[], signal: AbortSignal): Promise<void> {
    const [entity, project] = [this.#entity, this.#project].map(encodeURIComponent);
    const batch = calls.map(({ id, trace, parent, op, startMs, endMs, attributes, inputs, output, summary = {} }) => ({
      project_id: `${this.#entity}/${this.#project}`,
      id: toUuid(id),
      trace_id: toUuid(deriveId(trace, 'trace')),
      op_name: op,
      started_at: new Date(startMs).toISOString(),
      ended_at: new Date(endMs).toISOString(),
      parent_id: parent === null ? null : toUuid(parent),
      attributes,
      inputs,
      output,
      summary,
      exception: null,
    }));
    await this.#http.send({ path: `/v2/${entity}/${project}/calls/complete`, body: { batch } }, signal);
  }

  #feedback({ id, scores }: TracedTrajectory): object[] {
    const project = `${this.#entity}/${this.#project}`;
    return Object.entries(scores).map(([name, value]) => ({
      id: toUuid(deriveId(id, name)),
      project_id: project,
      weave_ref: `weave:///${project}/call/${toUuid(id)}`,
      feedback_type: name,
      payload: { value: toJsonNumber(value) },
    }));
  }
}

function toCalls({ id, startMs, endMs, facts, scores, trajectory, turns }: TracedTrajectory): Call[] {
  const { texts } = trajectory;
  const histories = texts?.histories.map(({ messages, tools }) => ({
    messages: messages.map((entry) => entry.message),
    tools,
  }));
  const times = { trace: id, startMs, endMs };
  const root: Call = {
    ...times,
    id,
    parent: null,
    op: 'rollout',
    attributes: { ...facts, ...(texts && { metadata: texts.metadata }) },
    inputs: histories === undefined ? {} : { histories },
    output: { ...(turns.length > 0 && { message: turns.at(-1)!.output }), ...(texts && { logs: texts.logs }) },
    summary: toJson(scores),
  };
  const children = turns.map((turn): Call => {
    const inputs = { messages: turn.input, model: turn.model };
    return { ...times, id: turn.id, parent: id, op: 'turn', attributes: {}, inputs, output: turn.output };
  });
  return [root, ...children];
}

function toJson(values: Readonly<Record<string, number>>): Record<string, number | string> {
  return Object.fromEntries(Object.entries(values).map(([name, value]) => [name, toJsonNumber(value)]));
}
