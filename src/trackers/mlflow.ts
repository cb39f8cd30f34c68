/**
 * MLflow by its REST API 2.0. Layer 6. Left out: models, data sets, system metrics, traces.
 * Source: mlflow/protos/service.proto; a real server is in `npm run test:trackers`.
 */
import { ApiError } from '../core/errors.ts';
import { refuseUnknownKeys } from '../core/options.ts';
import type {
  Tracker,
  TrackerConfig,
  TrackerRow,
  TrackerRun,
  TrackerSink,
  TrackerTrajectories,
} from '../sdk/tracker.ts';
import { createTracker, TRACKER_OPTION_NAMES, type TrackerOptions } from '../sdk/tracker-queue.ts';
import { createTrackerHttp, readField, readText, type TrackerHttp } from './http.ts';

export interface MlflowTrackerOptions extends TrackerOptions {
  /** Default: MLFLOW_TRACKING_URI of the environment, else http://127.0.0.1:5000. */
  readonly baseURL?: string;
  /** Bearer token; default: MLFLOW_TRACKING_TOKEN. */
  readonly token?: string;
  /** Default: MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD. */
  readonly username?: string;
  readonly password?: string;
  /** Default: MLFLOW_EXPERIMENT_NAME, else the model's project. */
  readonly experiment?: string;
  /** Also trajectories as artifacts, `trajectories/<split>/<step>-<time>.jsonl`; the server must serve artifacts. Default false. */
  readonly texts?: boolean;
}

/**
 * Sends metrics by policy step and the configuration as parameters. A restarted program goes on with the run that has the tag `art.run`,
 * `<project>/<name>`. A metric that is sent again because the answer was lost is kept once. NaN and infinity are sent as they are.
 */
export function mlflowTracker(options: MlflowTrackerOptions = {}): Tracker {
  const names = ['baseURL', 'token', 'username', 'password', 'experiment', 'texts'];
  refuseUnknownKeys('mlflowTracker', options, [...TRACKER_OPTION_NAMES, ...names]);
  const { baseURL, token, username, password, experiment, texts = false, ...limits } = options;
  const sink = new MlflowSink({ baseURL, token, username, password, experiment });
  return createTracker(sink, { ...limits, trajectories: texts ? 'texts' : 'none' });
}

type Connection = { readonly [K in 'baseURL' | 'token' | 'username' | 'password' | 'experiment']: string | undefined };

const WHAT = 'tracker mlflow';
/** Limits of one log-batch call. */
const MAX_METRICS = 1000;
const MAX_PARAMS = 100;
const MAX_PARAM_CHARACTERS = 6000;

interface StoredRun {
  readonly id: string;
  readonly artifactUri: string;
  readonly params: ReadonlySet<string>;
}

class MlflowSink implements TrackerSink {
  readonly name = 'mlflow';
  readonly #http: TrackerHttp;
  readonly #experiment: string | undefined;
  #run: StoredRun | undefined;

  constructor(options: Connection) {
    const { env } = process;
    const token = options.token ?? env.MLFLOW_TRACKING_TOKEN ?? '';
    const username = options.username ?? env.MLFLOW_TRACKING_USERNAME ?? '';
    const password = options.password ?? env.MLFLOW_TRACKING_PASSWORD ?? '';
    const basic = Buffer.from(`${username}:${password}`).toString('base64');
    const authorization = token !== '' ? `Bearer ${token}` : username !== '' ? `Basic ${basic}` : '';
    this.#experiment = options.experiment ?? env.MLFLOW_EXPERIMENT_NAME;
    this.#http = createTrackerHttp({
      what: WHAT,
      baseURL: options.baseURL ?? env.MLFLOW_TRACKING_URI ?? 'http://127.0.0.1:5000',
      ...(authorization !== '' && { headers: { authorization } }),
      secrets: authorization === '' ? [] : [authorization, token, password, basic],
    });
  }

  async start({ project, name, config }: TrackerRun, signal: AbortSignal): Promise<void> {
    const experimentId = await this.#findExperiment(this.#experiment ?? project, signal);
    const tag = `${project}/${name}`;
    const run =
      (await this.#findRun(experimentId, tag, signal)) ?? (await this.#createRun(experimentId, name, tag, signal));
    this.#run = run;
    await this.#post('runs/update', { run_id: run.id, status: 'RUNNING' }, signal);
    await this.updateConfig(config, signal);
  }

  async updateConfig(config: TrackerConfig, signal: AbortSignal): Promise<void> {
    const { id, params: known } = this.#run!;
    const params = flatten(config).filter(({ key }) => !known.has(key)); // a parameter of MLflow never changes
    for (let start = 0; start < params.length; start += MAX_PARAMS) {
      await this.#post('runs/log-batch', { run_id: id, params: params.slice(start, start + MAX_PARAMS) }, signal);
    }
    this.#run = { ...this.#run!, params: new Set([...known, ...params.map(({ key }) => key)]) };
  }

  async logMetrics(rows: readonly TrackerRow[], signal: AbortSignal, onProgress: () => void): Promise<void> {
    const metrics = rows.flatMap(({ step, recordedAt, metrics: values }) =>
      Object.entries(values).map(([name, value]) => ({
        key: toName(name),
        value: Number.isFinite(value) ? value : String(value),
        timestamp: recordedAt.getTime(),
        step,
      })),
    );
    for (let start = 0; start < metrics.length; start += MAX_METRICS) {
      const part = metrics.slice(start, start + MAX_METRICS);
      await this.#post('runs/log-batch', { run_id: this.#run!.id, metrics: part }, signal);
      onProgress();
    }
  }

  async logTrajectories(trajectories: TrackerTrajectories, signal: AbortSignal): Promise<void> {
    const { step, split, recordedAt, groups } = trajectories;
    const { artifactUri } = this.#run!;
    const place = /^mlflow-artifacts:\/*(.*)$/.exec(artifactUri)?.[1];
    if (place === undefined) {
      const scheme = artifactUri.split(':')[0];
      throw new ApiError(
        `${WHAT}: trajectories need a server with --serve-artifacts, got artifacts at ${scheme}:`,
        400,
      );
    }
    const file = `trajectories/${toName(split)}/${step}-${recordedAt.getTime()}.jsonl`;
    const body = groups.map((group) => `${JSON.stringify(group)}\n`).join('');
    const path = `/api/2.0/mlflow-artifacts/artifacts/${place}/${file}`;
    await this.#http.send(
      { method: 'PUT', path, body, headers: { 'content-type': 'application/octet-stream' } },
      signal,
    );
  }

  async close(signal: AbortSignal): Promise<void> {
    await this.#post('runs/update', { run_id: this.#run!.id, status: 'FINISHED', end_time: Date.now() }, signal);
  }

  async #findExperiment(name: string, signal: AbortSignal): Promise<string> {
    const path = `/api/2.0/mlflow/experiments/get-by-name?experiment_name=${encodeURIComponent(name)}`;
    try {
      const answer = await this.#http.send({ method: 'GET', path }, signal);
      return readText(WHAT, answer, 'experiment', 'experiment_id');
    } catch (error) {
      if (!(error instanceof ApiError && error.status === 404)) throw error;
      return readText(WHAT, await this.#post('experiments/create', { name }, signal), 'experiment_id');
    }
  }

  async #findRun(experimentId: string, tag: string, signal: AbortSignal): Promise<StoredRun | undefined> {
    const filter = `tags.\`art.run\` = '${tag.replaceAll("'", '')}'`;
    const body = { experiment_ids: [experimentId], filter, max_results: 1, order_by: ['attributes.start_time DESC'] };
    const runs = readField(await this.#post('runs/search', body, signal), 'runs');
    return Array.isArray(runs) && runs.length > 0 ? toStoredRun(runs[0]) : undefined;
  }

  async #createRun(experimentId: string, name: string, tag: string, signal: AbortSignal): Promise<StoredRun> {
    const tags = [{ key: 'art.run', value: tag.replaceAll("'", '') }];
    const body = { experiment_id: experimentId, run_name: name, start_time: Date.now(), tags };
    return toStoredRun(readField(await this.#post('runs/create', body, signal), 'run'));
  }

  #post(call: string, body: object, signal: AbortSignal): Promise<unknown> {
    return this.#http.send({ path: `/api/2.0/mlflow/${call}`, body }, signal);
  }
}

function toStoredRun(run: unknown): StoredRun {
  const params = readField(run, 'data', 'params');
  return {
    id: readText(WHAT, run, 'info', 'run_id'),
    artifactUri: readText(WHAT, run, 'info', 'artifact_uri'),
    params: new Set(Array.isArray(params) ? params.map((param) => String(readField(param, 'key'))) : []),
  };
}

/** Characters that MLflow refuses in names become `_`. */
function toName(name: string): string {
  return name.replaceAll(/[^\w\-. :/]/g, '_');
}

/** Nested keys joined by dots, as in `lora.rank`; lists as JSON. */
function flatten(config: TrackerConfig, prefix = ''): { readonly key: string; readonly value: string }[] {
  return Object.entries(config).flatMap(([key, value]) => {
    const name = toName(prefix + key);
    if (typeof value === 'object' && value !== null && !Array.isArray(value)) {
      return flatten(value as TrackerConfig, `${name}.`);
    }
    const text = typeof value === 'string' ? value : JSON.stringify(value);
    return [{ key: name, value: text.slice(0, MAX_PARAM_CHARACTERS) }];
  });
}
