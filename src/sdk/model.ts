/** Models as the user holds them: a name, an OpenAI client, and for a trainable one its backend. Layer 5. */
import OpenAI from 'openai';
import { ConfigError } from '../core/errors.ts';
import { refuseUnknownKeys } from '../core/options.ts';
import type { TrajectoryGroup } from '../core/trajectory.ts';
import { addMetrics, qualifyMetrics, trajectoryMetrics } from '../core/trajectory-metrics.ts';
import type { Checkpoint, CopyResult, Removed } from '../wire/checkpoint-names.ts';
import type { RunState } from '../wire/state.ts';
import type { Backend, InferenceEndpoint, TrainResult } from './backend.ts';
import type { CallOptions } from './call.ts';
import { addCaptureServer, captureFetch } from './capture-scope.ts';
import type { CheckpointRange, ConfirmOptions, DeleteCheckpointsOptions, DeletedCheckpoints } from './checkpoints.ts';
import type { DistillCallOptions, DistillOptions } from './distill.ts';
import { encodeLogGroups, type Loggable, toGroups } from './encode.ts';
import type { MetricOptions, MetricPoint } from './metric-calls.ts';
import { ModelTrackers } from './model-trackers.ts';
import type { SftCallOptions, SftExample, SftOptions } from './sft.ts';
import type { Tracker } from './tracker.ts';
import type { PullOptions, PushOptions } from './transfers.ts';

/** Long rollouts on a slow machine are ordinary: the limit of Python ART's client. */
const INFERENCE_TIMEOUT_MS = 1_200_000;

export interface ModelInit {
  readonly name: string;
  readonly project: string;
  /** Root of an OpenAI-compatible API, as in `https://api.openai.com/v1`. */
  readonly inferenceBaseURL: string;
  readonly inferenceApiKey: string;
  /** Name that the endpoint knows the model by; default `name`. */
  readonly inferenceModelName?: string;
  /** Where rows of `log` go; default nowhere. One tracker object follows one model. */
  readonly trackers?: readonly Tracker[];
}

/** What a rollout needs of a model, trainable or not. */
export interface ChatModel {
  readonly name: string;
  readonly project: string;
  openaiClient(): OpenAI;
  getInferenceName(step?: number): string;
}

/** A model behind any OpenAI-compatible endpoint, to compare with: it is not trained. */
export class Model implements ChatModel {
  readonly name: string;
  readonly project: string;
  readonly trackers: ModelTrackers;
  readonly #endpoint: InferenceEndpoint;
  #client: OpenAI | undefined;

  constructor(init: ModelInit) {
    const known = ['name', 'project', 'inferenceBaseURL', 'inferenceApiKey', 'inferenceModelName', 'trackers'];
    refuseUnknownKeys('Model', init, known);
    this.name = init.name;
    this.project = init.project;
    const modelName = init.inferenceModelName ?? init.name;
    this.#endpoint = { baseURL: init.inferenceBaseURL, apiKey: init.inferenceApiKey, modelName };
    this.trackers = new ModelTrackers(init.trackers ?? [], init, { inferenceModelName: modelName });
  }

  /** Where it is served: what any client of OpenAI's API needs. */
  endpoint(): InferenceEndpoint {
    return this.#endpoint;
  }

  /** The official client, one per model, unmodified. */
  openaiClient(): OpenAI {
    this.#client ??= createOpenAI(this.#endpoint);
    return this.#client;
  }

  /** The `model` field of a request. Throws ConfigError for a step: this model has none. */
  getInferenceName(step?: number): string {
    if (step !== undefined) throw new ConfigError(`model ${this.name}: only a TrainableModel has steps, got ${step}`);
    return this.#endpoint.modelName;
  }

  /** Sends a row to the trackers, with the metrics that a TrainableModel's has. Throws ConfigError when there is no tracker. */
  log(entries: Loggable, options: Omit<LogOptions, 'signal'> = {}): void {
    refuseUnknownKeys('log options', options, ['split', 'metrics', 'step']);
    if (this.trackers.health().length === 0) {
      throw new ConfigError(
        `model ${this.name}: log needs a tracker (trackers: [...]); only a TrainableModel has a history`,
      );
    }
    encodeLogGroups(entries); // refuses what a TrainableModel's log refuses
    const { split = 'val', metrics = {}, step = 0 } = options;
    this.trackers.logRow({ step, split, metrics: metricsOfLog(split, entries, metrics), groups: toGroups(entries) });
  }
}

/** Metrics of the row that a `log` call makes: of the trajectories, and those the caller gives. Throws DataError for a name that is taken. */
export function metricsOfLog(
  split: string,
  entries: Loggable,
  metrics: Readonly<Record<string, number>>,
): Record<string, number> {
  const row = trajectoryMetrics(split, toGroups(entries));
  addMetrics(row, qualifyMetrics(split, metrics));
  return row;
}

export interface LoraInit {
  readonly rank?: number;
  readonly alpha?: number;
  /** Names of linear layers, as in PEFT; default all of a decoder layer. */
  readonly targetModules?: readonly string[];
}

export interface TrainableModelInit {
  /** Letters, digits, dots, dashes, underscores. Served as `name` (the newest policy) and `name@step`. */
  readonly name: string;
  readonly project: string;
  /**
   * On the machine of the server: a folder in Hugging Face's format or a .gguf file, by a path that begins with `/`, `./`, `../` or `~/`;
   * or an id of the hub, `org/name[@revision][:file.gguf]`, which is downloaded.
   */
  readonly baseModel: string;
  /** Default rank 8, alpha 16. */
  readonly lora?: LoraInit;
  /** Seed of the adapter's initial weights; default 0. */
  readonly seed?: number;
  /** Jinja text that takes the place of the base model's own chat template. */
  readonly chatTemplate?: string;
  /** Where rows of `train`, `log` and fine-tuning go beside the history; default nowhere. One tracker object follows one model. */
  readonly trackers?: readonly Tracker[];
}

export interface LogOptions extends CallOptions {
  /** Default `val`. */
  readonly split?: string;
  readonly metrics?: Readonly<Record<string, number>>;
  /** Default: the newest step. */
  readonly step?: number;
}

/** A model that learns: LoRA on `baseModel`, held by the backend that it is registered with. */
export class TrainableModel implements ChatModel {
  readonly name: string;
  readonly project: string;
  readonly baseModel: string;
  readonly lora: { readonly rank: number; readonly alpha: number; readonly targetModules?: readonly string[] };
  readonly seed: number;
  readonly chatTemplate: string | undefined;
  readonly trackers: ModelTrackers;
  #registration: { readonly backend: Backend; readonly endpoint: Promise<InferenceEndpoint> } | undefined;
  #endpoint: InferenceEndpoint | undefined;
  #client: OpenAI | undefined;

  constructor(init: TrainableModelInit) {
    refuseUnknownKeys('TrainableModel', init, [
      'name',
      'project',
      'baseModel',
      'lora',
      'seed',
      'chatTemplate',
      'trackers',
    ]);
    refuseUnknownKeys('TrainableModel.lora', init.lora ?? {}, ['rank', 'alpha', 'targetModules']);
    this.name = init.name;
    this.project = init.project;
    this.baseModel = init.baseModel;
    this.lora = { rank: 8, alpha: 16, ...init.lora };
    this.seed = init.seed ?? 0;
    this.chatTemplate = init.chatTemplate;
    const { baseModel, lora, seed } = this;
    this.trackers = new ModelTrackers(init.trackers ?? [], init, { baseModel, lora, seed });
  }

  /** Makes the backend load, serve and train this model. Called again with the same backend, it does nothing more. */
  async register(backend: Backend, options: CallOptions = {}): Promise<void> {
    if (this.#registration?.backend !== backend) {
      this.#endpoint = undefined;
      this.#client = undefined;
      this.#registration = { backend, endpoint: backend.register(this, options) };
    }
    const registration = this.#registration;
    try {
      const endpoint = await registration.endpoint;
      if (this.#registration !== registration) return;
      this.#endpoint = endpoint;
      addCaptureServer(endpoint);
    } catch (error) {
      if (this.#registration === registration) this.#registration = undefined; // so that the next call tries again
      throw error;
    }
  }

  /** The backend this model is registered with. Throws ConfigError when there is none. */
  backend(): Backend {
    if (this.#registration === undefined) throw this.#notRegistered();
    return this.#registration.backend;
  }

  /** Where it is served: what any client of OpenAI's API needs. Throws ConfigError before `register` has finished. */
  endpoint(): InferenceEndpoint {
    if (this.#endpoint === undefined) throw this.#notRegistered();
    return this.#endpoint;
  }

  /** The official client, one per registration, unmodified. Throws ConfigError before `register` has finished. */
  openaiClient(): OpenAI {
    if (this.#endpoint === undefined) throw this.#notRegistered();
    this.#client ??= createOpenAI(this.#endpoint);
    return this.#client;
  }

  /** The `model` field of a request: the newest policy, or the policy of one step. */
  getInferenceName(step?: number): string {
    if (this.#endpoint === undefined) throw this.#notRegistered();
    return step === undefined ? this.#endpoint.modelName : `${this.#endpoint.modelName}@${step}`;
  }

  /** Learns from conversations, or from trajectories whoever sampled them: the same adapter and step counter as training by reward. */
  async trainSft(
    examples: readonly SftExample[],
    options: SftOptions = {},
    call: SftCallOptions = {},
  ): Promise<TrainResult> {
    return this.backend().trainSft(this, examples, options, call);
  }

  /** Moves the policy towards a teacher on what the policy sampled (on-policy distillation); rewards are not read. */
  async distill(
    groups: readonly TrajectoryGroup[],
    options: DistillOptions,
    call: DistillCallOptions = {},
  ): Promise<TrainResult> {
    return this.backend().distill(this, groups, options, call);
  }

  /** Newest policy step: the number of finished `train` calls, of earlier processes too. */
  async getStep(options: CallOptions = {}): Promise<number> {
    return this.backend().getStep(this, options);
  }

  /** Adds a row to the history from trajectories or groups, from `metrics` alone (`log([], { metrics })`), or from both. */
  async log(entries: Loggable, options: LogOptions = {}): Promise<void> {
    refuseUnknownKeys('log options', options, ['split', 'metrics', 'step', 'signal']);
    return this.backend().log(this, entries, options);
  }

  /** By ascending step. */
  async listCheckpoints(range: CheckpointRange = {}): Promise<readonly Checkpoint[]> {
    return this.backend().listCheckpoints(this, range);
  }

  /** The checkpoint of a step; default the newest. */
  async getCheckpoint(step?: number, options: CallOptions = {}): Promise<Checkpoint> {
    const backend = this.backend();
    return backend.getCheckpoint(this, step ?? (await backend.getStep(this, options)), options);
  }

  /** Moves all checkpoints to the trash but the best, the newest and those that `keep` names. Needs `confirm: true`. */
  async deleteCheckpoints(options: DeleteCheckpointsOptions = {}): Promise<DeletedCheckpoints> {
    return this.backend().deleteCheckpoints(this, options);
  }

  /** Serves an earlier step and trains on from it; later checkpoints move to the trash. Needs `confirm: true`. */
  async rollback(step: number, options: ConfirmOptions = {}): Promise<Removed> {
    return this.backend().rollback(this, step, options);
  }

  /** Copies a checkpoint to S3-compatible storage or the Hugging Face hub, with the server's credentials. */
  async pushCheckpoint(options: PushOptions): Promise<CopyResult> {
    return this.backend().pushCheckpoint(this, options);
  }

  /** Fetches a checkpoint that was pushed; a newer one than the newest is served. Of a new model: `backend.pullCheckpoint`. */
  async pullCheckpoint(options: PullOptions): Promise<CopyResult> {
    return this.backend().pullCheckpoint(this, options);
  }

  /** One metric over the steps. */
  async getMetric(metric: string, options: MetricOptions = {}): Promise<readonly MetricPoint[]> {
    return this.backend().getMetric(this, metric, options);
  }

  /** What programs keep with the run, across restarts; `{}` where nothing was written. */
  async readState(options: CallOptions = {}): Promise<RunState> {
    return this.backend().readState(this, options);
  }

  /** Merges objects at every depth, replaces everything else; returns the state after it. */
  async mergeState(patch: RunState, options: CallOptions = {}): Promise<RunState> {
    return this.backend().mergeState(this, patch, options);
  }

  async overwriteState(state: RunState, options: CallOptions = {}): Promise<void> {
    return this.backend().overwriteState(this, state, options);
  }

  #notRegistered(): ConfigError {
    return new ConfigError(`model ${this.name}: must be registered first; await model.register(backend)`);
  }
}

function createOpenAI({ baseURL, apiKey }: InferenceEndpoint): OpenAI {
  return new OpenAI({ baseURL, apiKey, timeout: INFERENCE_TIMEOUT_MS, fetch: captureFetch });
}
