/** What a model is registered with. Layer 5. */
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
import type { RunState } from '../wire/state.ts';
import type { CallOptions } from './call.ts';
import type { CheckpointRange, ConfirmOptions, DeleteCheckpointsOptions, DeletedCheckpoints } from './checkpoints.ts';
import type { DistillCallOptions, DistillOptions } from './distill.ts';
import type { Loggable } from './encode.ts';
import type { FollowOptions, JobFilter } from './jobs.ts';
import type { MetricOptions, MetricPoint } from './metric-calls.ts';
import type { LogOptions, TrainableModel } from './model.ts';
import type { TrainOptions } from './options.ts';
import type { SftCallOptions, SftExample, SftOptions } from './sft.ts';
import type { TrainCallOptions } from './training-calls.ts';
import type { PullOptions, PushOptions } from './transfers.ts';

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

/** A model as the list of a server's models has it. */
export interface ModelSummary extends ModelState {
  readonly name: string;
  readonly project: string;
  readonly baseModel: string;
}

/** A `TrainableModel`, or the name of any model that the server has. */
export interface ModelReference {
  readonly name: string;
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
  /** Learns from examples: the same adapter and step counter as `train`. */
  trainSft(
    model: TrainableModel,
    examples: readonly SftExample[],
    options?: SftOptions,
    call?: SftCallOptions,
  ): Promise<TrainResult>;
  /** Moves the policy towards a teacher on what the policy sampled; rewards are not read. */
  distill(
    model: TrainableModel,
    groups: readonly TrajectoryGroup[],
    options: DistillOptions,
    call?: DistillCallOptions,
  ): Promise<TrainResult>;
  getStep(model: TrainableModel, options?: CallOptions): Promise<number>;
  log(model: TrainableModel, entries: Loggable, options?: LogOptions): Promise<void>;
  history(model: TrainableModel, options?: CallOptions): Promise<readonly HistoryRow[]>;
  getState(model: TrainableModel, options?: CallOptions): Promise<ModelState>;

  listModels(options?: CallOptions): Promise<readonly ModelSummary[]>;
  /** Stops a model and moves its run to the trash. */
  deleteModel(model: ModelReference, options?: ConfirmOptions): Promise<{ readonly trashId: string }>;
  /** One metric over the steps: of the history, or measured by a clock (`time/…`, `throughput/…`). */
  getMetric(model: ModelReference, metric: string, options?: MetricOptions): Promise<readonly MetricPoint[]>;
  listMetrics(model: ModelReference, options?: CallOptions): Promise<readonly string[]>;

  /** What programs keep with the model's run; `{}` where nothing was written. */
  readState(model: ModelReference, options?: CallOptions): Promise<RunState>;
  /** Merges objects at every depth, replaces everything else; returns the state after it. */
  mergeState(model: ModelReference, patch: RunState, options?: CallOptions): Promise<RunState>;
  overwriteState(model: ModelReference, state: RunState, options?: CallOptions): Promise<void>;

  /** By ascending step. */
  listCheckpoints(model: ModelReference, range?: CheckpointRange): Promise<readonly Checkpoint[]>;
  getCheckpoint(model: ModelReference, step: number, options?: CallOptions): Promise<Checkpoint>;
  /** Moves all checkpoints to the trash but the best, the newest and those that `keep` names. */
  deleteCheckpoints(model: ModelReference, options?: DeleteCheckpointsOptions): Promise<DeletedCheckpoints>;
  /**
   * Begins a new model with a copy of another's checkpoint: same step number, adapter and optimizer state. Register it afterwards.
   * Made again, it is the same fork, however far the new model has come.
   */
  fork(model: TrainableModel, source: ForkSource, options?: CallOptions): Promise<Fork>;
  /** Copies a checkpoint to S3-compatible storage or the Hugging Face hub, with the server's credentials. */
  pushCheckpoint(model: ModelReference, options: PushOptions): Promise<CopyResult>;
  /**
   * Fetches a checkpoint that was pushed. A model that is not on the server yet begins with it, and is registered afterwards; a registered
   * one gets it beside its own.
   */
  pullCheckpoint(model: TrainableModel, options: PullOptions): Promise<CopyResult>;
  /** Serves an earlier step and trains on from it; later checkpoints move to the trash. */
  rollback(model: ModelReference, step: number, options?: ConfirmOptions): Promise<Removed>;
  getRetention(model: ModelReference, options?: CallOptions): Promise<RetentionRule>;
  /** From here on, after every step, checkpoints that the rule does not keep are deleted for good. */
  setRetention(model: ModelReference, rule: Partial<RetentionRule>, options?: ConfirmOptions): Promise<RetentionRule>;

  /** What was deleted, of all models, oldest first. */
  listTrash(options?: CallOptions): Promise<readonly TrashItem[]>;
  restoreFromTrash(id: string, options?: CallOptions): Promise<TrashItem>;
  /** Deletes for good. */
  purgeFromTrash(id: string, options?: ConfirmOptions): Promise<TrashItem>;

  listJobs(filter?: JobFilter): Promise<readonly Job[]>;
  getJob(id: string, options?: CallOptions): Promise<Job>;
  /** Resolves with the job as it ended, however that went. */
  followJob(id: string, options?: FollowOptions): Promise<Job>;
  /** Asks a job to stop; its step is undone. */
  cancelJob(id: string, options?: CallOptions): Promise<Job>;

  close(): Promise<void>;
}
