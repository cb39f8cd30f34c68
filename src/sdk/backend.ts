/** What a model is registered with. Layer 5. */
import type { TrajectoryGroup } from '../core/trajectory.ts';
import type { CallOptions } from './call.ts';
import type { Loggable } from './encode.ts';
import type { LogOptions, TrainableModel } from './model.ts';
import type { TrainOptions } from './options.ts';
import type { TrainCallOptions } from './training-calls.ts';

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
