/** What a model is registered with, and the backend that speaks to a server over HTTP. Layer 5. */
import { ConfigError } from '../core/errors.ts';
import { refuseUnknownKeys } from '../core/options.ts';
import type { TrajectoryGroup } from '../core/trajectory.ts';
import { describeIssue } from '../wire/errors.ts';
import { registerRequest } from '../wire/training.ts';
import { fromModelInfo, fromTrainResult, toRegisterRequest } from '../wire/training-names.ts';
import { type CallOptions, createTrainingClient, type TrainCallOptions, type TrainingClient } from './client.ts';
import { encodeLogGroups, encodeTrainGroups, type Loggable } from './encode.ts';
import type { LogOptions, TrainableModel } from './model.ts';
import { encodeTrainOptions, type TrainOptions } from './options.ts';

/** Where a registered model is served. */
export interface InferenceEndpoint {
  readonly baseURL: string;
  readonly apiKey: string;
  readonly modelName: string;
}

export interface TrainResult {
  /** The policy step that is served from here on. */
  readonly step: number;
  /** The row that the history got, and the step's timings. */
  readonly metrics: Readonly<Record<string, number>>;
  readonly checkpointPath: string;
  readonly adapterSha256: string;
}

/** One row of the history: `step`, `split`, and metrics by name. */
export type HistoryRow = Readonly<Record<string, number | string>>;

/** A registered model as its server holds it. */
export interface ModelState {
  readonly step: number;
  readonly parameters: number;
  readonly trainableParameters: number;
  /** On the server's machine: history.jsonl, timings.jsonl, checkpoints/, trajectories/. */
  readonly directory: string;
  /** Memory of the engine's process; totals since it started. */
  readonly engine: {
    readonly rssBytes: number;
    readonly peakRssBytes: number;
    readonly sampledTokens: number;
    readonly prefilledTokens: number;
    readonly samplingSeconds: number;
    readonly trainedTokens: number;
    readonly trainingSeconds: number;
  };
}

/** An engine with all around it: tokenizer, checkpoints, serving. Users change machines by changing the backend. */
export interface Backend {
  /** Loads, resumes and serves the model. Idempotent. */
  register(model: TrainableModel, options?: CallOptions): Promise<InferenceEndpoint>;
  /** One step: trains on the groups, publishes the new policy, proves it is served, writes a checkpoint. */
  train(
    model: TrainableModel,
    groups: readonly TrajectoryGroup[],
    options?: TrainOptions,
    call?: TrainCallOptions,
  ): Promise<TrainResult>;
  getStep(model: TrainableModel, options?: CallOptions): Promise<number>;
  log(model: TrainableModel, entries: Loggable, options?: LogOptions): Promise<void>;
  history(model: TrainableModel, options?: CallOptions): Promise<readonly HistoryRow[]>;
  getState(model: TrainableModel, options?: CallOptions): Promise<ModelState>;
  close(): Promise<void>;
}

export interface RemoteBackendOptions {
  /** Root of a server, as in `http://gpu-box:8000`. */
  readonly baseURL: string;
  /** Key of the server (`art keys create`); default: the environment's ART_API_KEY, else `art-local`, which a server without keys ignores. */
  readonly apiKey?: string;
}

/** A server somewhere else, already running. */
export class RemoteBackend implements Backend {
  readonly #client: TrainingClient;
  readonly #baseURL: string;
  readonly #apiKey: string;

  constructor(options: RemoteBackendOptions) {
    refuseUnknownKeys('RemoteBackend', options, ['baseURL', 'apiKey']);
    if (!URL.canParse(options.baseURL)) {
      throw new ConfigError(`RemoteBackend: baseURL must be a URL like http://host:8000, got ${options.baseURL}`);
    }
    this.#baseURL = options.baseURL.replace(/\/+$/, '');
    this.#apiKey = checkApiKey(options.apiKey ?? process.env.ART_API_KEY ?? 'art-local');
    this.#client = createTrainingClient({ baseURL: this.#baseURL, apiKey: this.#apiKey });
  }

  async register(model: TrainableModel, options: CallOptions = {}): Promise<InferenceEndpoint> {
    const body = toRegisterRequest(model);
    const request = registerRequest.safeParse(body);
    if (!request.success)
      throw new ConfigError(`TrainableModel: ${describeIssue(request.error.issues[0], body).message}`);
    await this.#client.register(request.data, options);
    return { baseURL: `${this.#baseURL}/v1`, apiKey: this.#apiKey, modelName: model.name };
  }

  async train(
    model: TrainableModel,
    groups: readonly TrajectoryGroup[],
    options: TrainOptions = {},
    call: TrainCallOptions = {},
  ): Promise<TrainResult> {
    const request = { options: encodeTrainOptions(options), groups: encodeTrainGroups(groups) };
    return fromTrainResult(await this.#client.train(model.name, request, call));
  }

  async getStep(model: TrainableModel, options: CallOptions = {}): Promise<number> {
    return (await this.#client.model(model.name, options)).step;
  }

  async log(model: TrainableModel, entries: Loggable, options: LogOptions = {}): Promise<void> {
    const { split = 'val', step = null, metrics = {}, signal } = options;
    await this.#client.log(model.name, { split, step, metrics, groups: encodeLogGroups(entries) }, { signal });
  }

  async history(model: TrainableModel, options: CallOptions = {}): Promise<readonly HistoryRow[]> {
    return (await this.#client.history(model.name, options)).rows;
  }

  async getState(model: TrainableModel, options: CallOptions = {}): Promise<ModelState> {
    return fromModelInfo(await this.#client.model(model.name, options));
  }

  /** The server is not ours: nothing to do. */
  async close(): Promise<void> {}
}

/** Throws ConfigError, which does not quote the key, if no header can carry it. */
function checkApiKey(key: string): string {
  if (/^[\x21-\x7e]+$/.test(key)) return key;
  throw new ConfigError(
    `RemoteBackend: apiKey (or ART_API_KEY) must be printable ASCII without spaces, got ${key.length} other characters`,
  );
}
