/**
 * Weights & Biases by its own protocol: GraphQL for the run, the file stream for its rows. Layer 6.
 * Source: what wandb's Python client 0.31.0 sends, recorded in test/fixtures/trackers/wandb.json. Left out: files, media, system metrics, console.
 */
import { ApiError } from '../core/errors.ts';
import { refuseUnknownKeys } from '../core/options.ts';
import type { Tracker, TrackerConfig, TrackerRow, TrackerRun, TrackerSink } from '../sdk/tracker.ts';
import { createTracker, TRACKER_OPTION_NAMES, type TrackerOptions } from '../sdk/tracker-queue.ts';
import { createTrackerHttp, readField, readKey, readText, type TrackerHttp } from './http.ts';

export interface WandbTrackerOptions extends TrackerOptions {
  /** Default: WANDB_API_KEY of the environment. */
  readonly apiKey?: string;
  /** Default: WANDB_BASE_URL, else https://api.wandb.ai. */
  readonly baseURL?: string;
  /** Team or user; default: WANDB_ENTITY, else the key's own. */
  readonly entity?: string;
  /** Default: the model's project. */
  readonly project?: string;
  /** Default: the model's name; a run of this id goes on. */
  readonly runId?: string;
}

/**
 * Sends metrics and configuration, never trajectories. The x axis is `training_step`, so that evaluations may come late. A row that is sent again,
 * because the answer was lost, takes its own place. A restarted program goes on with the run of the same id.
 */
export function wandbTracker(options: WandbTrackerOptions = {}): Tracker {
  const names = ['apiKey', 'baseURL', 'entity', 'project', 'runId'];
  refuseUnknownKeys('wandbTracker', options, [...TRACKER_OPTION_NAMES, ...names]);
  const { apiKey, baseURL, entity, project, runId, ...limits } = options;
  return createTracker(new WandbSink({ apiKey, baseURL, entity, project, runId }), limits);
}

export interface WandbSinkOptions {
  readonly apiKey: string | undefined;
  readonly baseURL: string | undefined;
  readonly entity: string | undefined;
  readonly project: string | undefined;
  readonly runId: string | undefined;
  /** A run that is silent for minutes is shown as crashed; default 30 s. */
  readonly heartbeatMs?: number;
}

const WHAT = 'tracker wandb';

/** Definitions of the x axis, as `define_metric('training_step')` and `define_metric('*', step_metric='training_step')` leave them. */
const METRIC_DEFINITIONS = [
  { 1: 'training_step', 6: [3], 7: [] },
  { 2: '*', 5: 1, 6: [1], 7: [] },
];

const VIEWER = 'query Viewer { viewer { id entity username } }';

const RESUME_STATUS = `query RunResumeStatus($project: String, $entity: String, $name: String!) {
  model(name: $project, entityName: $entity) {
    bucket(name: $name, missingOk: true) { id name summaryMetrics historyLineCount historyTail }
  }
}`;

const UPSERT = `mutation UpsertBucket($name: String, $project: String, $entity: String, $displayName: String, $config: JSONString) {
  upsertBucket(input: {name: $name, modelName: $project, entityName: $entity, displayName: $displayName, config: $config}) {
    bucket { id name project { name entity { name } } historyLineCount }
    inserted
  }
}`;

export class WandbSink implements TrackerSink {
  readonly name = 'wandb';
  readonly #http: TrackerHttp;
  readonly #options: WandbSinkOptions;
  #run: { readonly entity: string; readonly project: string; readonly id: string } | undefined;
  #startedAtMs = 0;
  /** Lines that the server has; the next row's place. */
  #lines = 0;
  #step = 0;
  #summary: Record<string, unknown> = {};
  #heartbeat: NodeJS.Timeout | undefined;

  constructor(options: WandbSinkOptions) {
    const apiKey = readKey('wandbTracker', options.apiKey, 'apiKey', 'WANDB_API_KEY');
    const authorization = `Basic ${Buffer.from(`api:${apiKey}`).toString('base64')}`;
    const baseURL = options.baseURL ?? process.env.WANDB_BASE_URL ?? 'https://api.wandb.ai';
    this.#options = options;
    this.#http = createTrackerHttp({
      what: WHAT,
      baseURL,
      headers: { authorization },
      secrets: [apiKey, authorization],
    });
  }

  async start({ project: runProject, name: runName, config }: TrackerRun, signal: AbortSignal): Promise<void> {
    const { project = runProject, runId: id = runName } = this.#options;
    const entity = this.#options.entity ?? process.env.WANDB_ENTITY ?? (await this.#findEntity(signal));
    this.#run = { entity, project, id };
    const status = await this.#query('RunResumeStatus', RESUME_STATUS, { project, entity, name: id }, signal);
    const bucket = readField(status, 'model', 'bucket');
    const [last = {}] = parseList(readField(bucket, 'historyTail')).slice(-1);
    this.#lines = toCount(readField(bucket, 'historyLineCount'));
    this.#step = typeof last._step === 'number' ? last._step + 1 : this.#lines;
    this.#startedAtMs = Date.now() - (typeof last._runtime === 'number' ? last._runtime * 1000 : 0);
    this.#summary = parseObject(readField(bucket, 'summaryMetrics'));
    await this.#upsert(config, id, signal);
    clearInterval(this.#heartbeat);
    this.#heartbeat = setInterval(() => this.#beat(), this.#options.heartbeatMs ?? 30_000);
    this.#heartbeat.unref();
  }

  async updateConfig(config: TrackerConfig, signal: AbortSignal): Promise<void> {
    await this.#upsert(config, null, signal);
  }

  async logMetrics(rows: readonly TrackerRow[], signal: AbortSignal): Promise<void> {
    const summary = { ...this.#summary };
    const content = rows.map(({ step, metrics, recordedAt }, index) => {
      const runtime = Math.max(0, recordedAt.getTime() - this.#startedAtMs) / 1000;
      const line = { ...metrics, training_step: step, _timestamp: recordedAt.getTime() / 1000, _runtime: runtime };
      Object.assign(summary, line, { _step: this.#step + index });
      return writeLine({ ...line, _step: this.#step + index });
    });
    const files = {
      'wandb-history.jsonl': { offset: this.#lines, content },
      'wandb-summary.json': { offset: 0, content: [writeLine(summary)] },
    };
    await this.#stream({ files }, signal);
    this.#lines += rows.length;
    this.#step += rows.length;
    this.#summary = summary;
  }

  async close(signal: AbortSignal): Promise<void> {
    clearInterval(this.#heartbeat);
    await this.#stream({ complete: true, exitcode: 0 }, signal);
  }

  async #findEntity(signal: AbortSignal): Promise<string> {
    return readText(WHAT, await this.#query('Viewer', VIEWER, {}, signal), 'viewer', 'entity');
  }

  async #upsert(config: TrackerConfig, displayName: string | null, signal: AbortSignal): Promise<void> {
    const { entity, project, id } = this.#run!;
    const values = Object.entries(config).map(([key, value]) => [key, { value }]);
    const text = JSON.stringify({ ...Object.fromEntries(values), _wandb: { value: { m: METRIC_DEFINITIONS } } });
    const variables = { name: id, project, entity, displayName, config: text };
    const data = await this.#query('UpsertBucket', UPSERT, variables, signal);
    readText(WHAT, data, 'upsertBucket', 'bucket', 'name');
  }

  async #query(operationName: string, query: string, variables: object, signal: AbortSignal): Promise<unknown> {
    const answer = await this.#http.send({ path: '/graphql', body: { query, variables, operationName } }, signal);
    const errors = readField(answer, 'errors');
    if (Array.isArray(errors) && errors.length > 0) {
      throw new ApiError(`${WHAT}: ${operationName}: ${String(readField(errors[0], 'message'))}`, 502);
    }
    return readField(answer, 'data');
  }

  async #stream(body: object, signal: AbortSignal): Promise<void> {
    const { entity, project, id } = this.#run!;
    const path = `/files/${[entity, project, id].map(encodeURIComponent).join('/')}/file_stream`;
    await this.#http.send({ path, body }, signal);
  }

  #beat(): void {
    this.#stream({}, AbortSignal.timeout(10_000)).catch(() => {}); // the next row tells what is wrong
  }
}

/** A line as wandb's client writes it: numbers that JSON lacks stand as `NaN`, `Infinity`, `-Infinity`. */
function writeLine(values: Readonly<Record<string, unknown>>): string {
  const fields = Object.entries(values).map(([key, value]) => {
    const text = typeof value === 'number' ? String(value) : JSON.stringify(value);
    return `${JSON.stringify(key)}:${text}`;
  });
  return `{${fields.join(',')}}`;
}

function toCount(value: unknown): number {
  return Number.isInteger(value) && (value as number) >= 0 ? (value as number) : 0;
}

/** JSON text of an object; empty for what is something else, or has numbers that JSON lacks. */
function parseObject(text: unknown): Record<string, unknown> {
  try {
    const value: unknown = JSON.parse(String(text));
    return typeof value === 'object' && value !== null && !Array.isArray(value) ? { ...value } : {};
  } catch {
    return {};
  }
}

/** JSON text of a list of JSON texts of objects, which `historyTail` is. */
function parseList(text: unknown): Record<string, unknown>[] {
  try {
    const list: unknown = JSON.parse(String(text));
    return Array.isArray(list) ? list.map(parseObject) : [];
  } catch {
    return [];
  }
}
