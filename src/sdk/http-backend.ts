/** Backends that speak to a server over HTTP: each method of `Backend` once, wherever the server is. Layer 5. */
import { randomUUID } from 'node:crypto';
import { defaultDistillConfig } from '../core/distill-config.ts';
import { ConfigError } from '../core/errors.ts';
import { refuseUnknownKeys } from '../core/options.ts';
import { defaultSftConfig } from '../core/sft-config.ts';
import { defaultTrainConfig } from '../core/train-config.ts';
import type { TrajectoryGroup } from '../core/trajectory.ts';
import type {
  Checkpoint,
  CopyResult,
  Fork,
  ForkSource,
  Job,
  Removed,
  RetentionRule,
  TrashItem,
} from '../wire/checkpoint-names.ts';
import { describeIssue } from '../wire/errors.ts';
import type { RunState } from '../wire/state.ts';
import { registerRequest } from '../wire/training.ts';
import { fromModelInfo, fromTrainResult, toRegisterRequest } from '../wire/training-names.ts';
import type {
  Backend,
  HistoryRow,
  InferenceEndpoint,
  ModelReference,
  ModelState,
  ModelSummary,
  TrainResult,
} from './backend.ts';
import { type Api, type ApiAddress, type CallOptions, createApi } from './call.ts';
import {
  type CheckpointRange,
  type ConfirmOptions,
  callCheckpoint,
  callDeleteCheckpoints,
  callDeleteModel,
  callFork,
  callListCheckpoints,
  callListTrash,
  callPurgeTrash,
  callRestoreTrash,
  callRetention,
  callRollback,
  callSetRetention,
  type DeleteCheckpointsOptions,
  type DeletedCheckpoints,
} from './checkpoints.ts';
import { callDistill, type DistillCallOptions, type DistillOptions, encodeDistillOptions } from './distill.ts';
import { encodeLogGroups, encodeTrainGroups, type Loggable, toGroups } from './encode.ts';
import { callCancelJob, callFollowJob, callJob, callListJobs, type FollowOptions, type JobFilter } from './jobs.ts';
import { callListModels, callMetric, callMetricNames, type MetricOptions, type MetricPoint } from './metric-calls.ts';
import { type LogOptions, metricsOfLog, type TrainableModel } from './model.ts';
import { encodeTrainOptions, type TrainOptions } from './options.ts';
import {
  callSft,
  encodeSftExamples,
  encodeSftOptions,
  type SftCallOptions,
  type SftExample,
  type SftOptions,
} from './sft.ts';
import { callMergeState, callOverwriteState, callReadState } from './state-calls.ts';
import {
  callHistory,
  callLog,
  callModelInfo,
  callRegister,
  callTrain,
  type TrainCallOptions,
} from './training-calls.ts';
import { callPull, callPush, type PullOptions, type PushOptions } from './transfers.ts';

/** The methods of `Backend` as calls of a server; where that is, a subclass says. */
export abstract class HttpBackend implements Backend {
  readonly #api: Api = createApi(() => this.connect());
  readonly #models = new Set<TrainableModel>();

  /** The server's address; asked at each call, so that the first one may start it. */
  protected abstract connect(): Promise<ApiAddress>;

  async register(model: TrainableModel, options: CallOptions = {}): Promise<InferenceEndpoint> {
    const body = toRegisterRequest(model);
    const request = registerRequest.safeParse(body);
    if (!request.success)
      throw new ConfigError(`TrainableModel: ${describeIssue(request.error.issues[0], body).message}`);
    await callRegister(this.#api, request.data, options);
    this.#models.add(model);
    const { baseURL, apiKey } = await this.connect();
    return { baseURL: `${baseURL}/v1`, apiKey, modelName: model.name };
  }

  async train(
    model: TrainableModel,
    groups: readonly TrajectoryGroup[],
    options: TrainOptions = {},
    call: TrainCallOptions = {},
  ): Promise<TrainResult> {
    const request = { options: encodeTrainOptions(options), groups: encodeTrainGroups(groups) };
    const adam = { ...defaultTrainConfig.adam, ...options.adam };
    model.trackers.noteOptions('train', { ...defaultTrainConfig, ...options, adam });
    const result = fromTrainResult(await callTrain(this.#api, model.name, request, call));
    model.trackers.logRow({ step: result.step, split: 'train', metrics: result.metrics, groups });
    return result;
  }

  async trainSft(
    model: TrainableModel,
    examples: readonly SftExample[],
    options: SftOptions = {},
    { idempotencyKey = randomUUID(), ...call }: SftCallOptions = {},
  ): Promise<TrainResult> {
    const request = {
      idempotency_key: idempotencyKey,
      options: encodeSftOptions(options),
      conversations: encodeSftExamples(examples),
    };
    model.trackers.noteOptions('sft', { ...defaultSftConfig, ...options });
    const result = fromTrainResult(await callSft(this.#api, model.name, request, call));
    model.trackers.logRow({ step: result.step, split: 'sft', metrics: result.metrics, groups: [] });
    return result;
  }

  async distill(
    model: TrainableModel,
    groups: readonly TrajectoryGroup[],
    options: DistillOptions,
    { idempotencyKey = randomUUID(), ...call }: DistillCallOptions = {},
  ): Promise<TrainResult> {
    const settings = encodeDistillOptions(model, options);
    const request = { idempotency_key: idempotencyKey, ...settings, groups: encodeTrainGroups(groups, false) };
    model.trackers.noteOptions('distill', { ...defaultDistillConfig, ...options, teacher: settings.teacher });
    const result = fromTrainResult(await callDistill(this.#api, model.name, request, call));
    model.trackers.logRow({ step: result.step, split: 'distill', metrics: result.metrics, groups });
    return result;
  }

  async getStep(model: TrainableModel, options: CallOptions = {}): Promise<number> {
    return (await callModelInfo(this.#api, model.name, options)).step;
  }

  async log(model: TrainableModel, entries: Loggable, options: LogOptions = {}): Promise<void> {
    const { split = 'val', step = null, metrics = {}, signal } = options;
    const request = { split, step, metrics, groups: encodeLogGroups(entries) };
    const logged = await callLog(this.#api, model.name, request, { signal });
    const row = { step: logged.step, split, metrics: metricsOfLog(split, entries, metrics) };
    model.trackers.logRow({ ...row, groups: toGroups(entries) });
  }

  async history(model: TrainableModel, options: CallOptions = {}): Promise<readonly HistoryRow[]> {
    return callHistory(this.#api, model.name, options);
  }

  async getState(model: TrainableModel, options: CallOptions = {}): Promise<ModelState> {
    return fromModelInfo(await callModelInfo(this.#api, model.name, options));
  }

  async listModels(options: CallOptions = {}): Promise<readonly ModelSummary[]> {
    return callListModels(this.#api, options);
  }

  async deleteModel({ name }: ModelReference, options: ConfirmOptions = {}): Promise<{ readonly trashId: string }> {
    return callDeleteModel(this.#api, name, options);
  }

  async getMetric(
    { name }: ModelReference,
    metric: string,
    options: MetricOptions = {},
  ): Promise<readonly MetricPoint[]> {
    return callMetric(this.#api, name, metric, options);
  }

  async listMetrics({ name }: ModelReference, options: CallOptions = {}): Promise<readonly string[]> {
    return callMetricNames(this.#api, name, options);
  }

  async readState({ name }: ModelReference, options: CallOptions = {}): Promise<RunState> {
    return callReadState(this.#api, name, options);
  }

  async mergeState({ name }: ModelReference, patch: RunState, options: CallOptions = {}): Promise<RunState> {
    return callMergeState(this.#api, name, patch, options);
  }

  async overwriteState({ name }: ModelReference, state: RunState, options: CallOptions = {}): Promise<void> {
    return callOverwriteState(this.#api, name, state, options);
  }

  async listCheckpoints({ name }: ModelReference, range: CheckpointRange = {}): Promise<readonly Checkpoint[]> {
    return callListCheckpoints(this.#api, name, range);
  }

  async getCheckpoint({ name }: ModelReference, step: number, options: CallOptions = {}): Promise<Checkpoint> {
    return callCheckpoint(this.#api, name, step, options);
  }

  async deleteCheckpoints(
    { name }: ModelReference,
    options: DeleteCheckpointsOptions = {},
  ): Promise<DeletedCheckpoints> {
    return callDeleteCheckpoints(this.#api, name, options);
  }

  async fork(model: TrainableModel, source: ForkSource, options: CallOptions = {}): Promise<Fork> {
    return callFork(this.#api, model, source, options);
  }

  async pushCheckpoint({ name }: ModelReference, options: PushOptions): Promise<CopyResult> {
    return callPush(this.#api, name, options);
  }

  async pullCheckpoint(model: TrainableModel, options: PullOptions): Promise<CopyResult> {
    return callPull(this.#api, model, options);
  }

  async rollback({ name }: ModelReference, step: number, options: ConfirmOptions = {}): Promise<Removed> {
    return callRollback(this.#api, name, step, options);
  }

  async getRetention({ name }: ModelReference, options: CallOptions = {}): Promise<RetentionRule> {
    return callRetention(this.#api, name, options);
  }

  async setRetention(
    { name }: ModelReference,
    rule: Partial<RetentionRule>,
    options: ConfirmOptions = {},
  ): Promise<RetentionRule> {
    return callSetRetention(this.#api, name, rule, options);
  }

  async listTrash(options: CallOptions = {}): Promise<readonly TrashItem[]> {
    return callListTrash(this.#api, options);
  }

  async restoreFromTrash(id: string, options: CallOptions = {}): Promise<TrashItem> {
    return callRestoreTrash(this.#api, id, options);
  }

  async purgeFromTrash(id: string, options: ConfirmOptions = {}): Promise<TrashItem> {
    return callPurgeTrash(this.#api, id, options);
  }

  async listJobs(filter: JobFilter = {}): Promise<readonly Job[]> {
    return callListJobs(this.#api, filter);
  }

  async getJob(id: string, options: CallOptions = {}): Promise<Job> {
    return callJob(this.#api, id, options);
  }

  async followJob(id: string, options: FollowOptions = {}): Promise<Job> {
    return callFollowJob(this.#api, id, options);
  }

  async cancelJob(id: string, options: CallOptions = {}): Promise<Job> {
    return callCancelJob(this.#api, id, options);
  }

  abstract close(): Promise<void>;

  /** Sends what the trackers of registered models still hold, for a bounded time, and ends their runs. */
  protected async closeTrackers(): Promise<void> {
    await Promise.all([...this.#models].map((model) => model.trackers.close()));
  }
}

export interface RemoteBackendOptions {
  /** Root of a server, as in `http://gpu-box:8000`. */
  readonly baseURL: string;
  /** Key of the server (`art keys create`); default: the environment's ART_API_KEY, else `art-local`, which a server without keys ignores. */
  readonly apiKey?: string;
}

/** A server somewhere else, already running. */
export class RemoteBackend extends HttpBackend {
  readonly #address: ApiAddress;

  constructor(options: RemoteBackendOptions) {
    refuseUnknownKeys('RemoteBackend', options, ['baseURL', 'apiKey']);
    if (!URL.canParse(options.baseURL)) {
      throw new ConfigError(`RemoteBackend: baseURL must be a URL like http://host:8000, got ${options.baseURL}`);
    }
    super();
    this.#address = {
      baseURL: options.baseURL.replace(/\/+$/, ''),
      apiKey: checkApiKey(options.apiKey ?? process.env.ART_API_KEY ?? 'art-local'),
    };
  }

  protected override async connect(): Promise<ApiAddress> {
    return this.#address;
  }

  /** Ends the runs of trackers, for at most 10 s. The server is not ours: it goes on. */
  async close(): Promise<void> {
    await this.closeTrackers();
  }
}

/** Throws ConfigError, which does not quote the key, if no header can carry it. */
function checkApiKey(key: string): string {
  if (/^[\x21-\x7e]+$/.test(key)) return key;
  throw new ConfigError(
    `RemoteBackend: apiKey (or ART_API_KEY) must be printable ASCII without spaces, got ${key.length} other characters`,
  );
}
