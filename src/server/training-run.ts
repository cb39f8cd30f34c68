/**
 * One registered model: trains it step by step, and keeps its folder. Layer 5.
 * A step is: update, publish, prove, commit the checkpoint, append to history. A step that fails before the commit is undone: the newest
 * checkpoint is loaded and served again. An idempotency key trains once, however often and through whatever restart it is sent.
 */
import { createHash } from 'node:crypto';
import { AbortedError, CheckpointError, EngineError, messageOf } from '../core/errors.ts';
import { defaultTrainConfig, inexactImportanceCap, type TrainConfig } from '../core/train-config.ts';
import { refuse } from '../wire/errors.ts';
import type {
  LogRequest,
  ModelInfo,
  TrainProgress,
  TrainRequest,
  TrainResult,
  WireTrainOptions,
} from '../wire/training.ts';
import type { CheckpointStore, StoredCheckpoint } from './checkpoints.ts';
import { createRows, type MetricFiles, type MetricRow, type MetricRows } from './metric-files.ts';
import { createSerialQueue, type SerialQueue } from './serial-queue.ts';
import type { ServedModel } from './served-model.ts';
import { largestDifference, proveServed } from './served-proof.ts';
import {
  addMetrics,
  batchMetrics,
  type Metrics,
  qualifyMetrics,
  stalenessMetrics,
  trajectoryMetrics,
} from './train-metrics.ts';
import { runUpdates } from './train-step.ts';
import { buildTrainingBatch, type TrainingBatch } from './training-batch.ts';
import { addTrajectories, formatTrajectories, writeTrajectories } from './trajectory-files.ts';

const changedMetric = 'train/served_policy_changed';

export interface TrainingRunOptions {
  /** `step()` is asked of the run. */
  readonly model: Omit<ServedModel, 'step'>;
  readonly directory: string;
  readonly baseModel: string;
  readonly baseModelSha256: string;
  readonly packageVersion: string;
  readonly checkpoints: CheckpointStore;
  readonly metricFiles: MetricFiles;
  readonly probeIds: readonly number[];
  readonly maxPositions: number;
  /** Nats by which sampler and trainer may differ on the probe text. */
  readonly probeTolerance: number;
  /** `train` calls that may wait behind the running one. */
  readonly maxWaitingTrainCalls: number;
  readonly onWarning: (message: string) => void;
}

/** A `train` call under way; several requests with one idempotency key share it. */
export interface TrainJob {
  readonly result: Promise<TrainResult>;
  /** Calls back for each progress report until the returned function is called. */
  readonly subscribe: (listener: (progress: TrainProgress) => void) => () => void;
}

/** What is known about a `train` call before its turn comes; the sampled turns are looked up then, so none can be dropped later. */
interface PreparedStep {
  readonly idempotencyKey: string;
  readonly config: TrainConfig;
  readonly batch: TrainingBatch;
  readonly metrics: Metrics;
  readonly trajectories: string;
}

/** Steps run one after another; logs run beside them. Whoever opened it closes it. */
export class TrainingRun {
  readonly model: ServedModel;
  readonly directory: string;
  readonly #options: TrainingRunOptions;
  readonly #logQueue: SerialQueue = createSerialQueue();
  readonly #trainQueue: SerialQueue = createSerialQueue();
  readonly #jobs: Map<string, TrainJob> = new Map();
  readonly #closing: AbortController = new AbortController();
  #step: number;
  #servedLogprobs: readonly number[];
  #isEngineAhead = false;
  #unwrittenRows: MetricRows[] = [];

  /** The engine must hold, and serve, the newest checkpoint; `servedLogprobs` are its probe logprobs. Use `openTrainingRun`. */
  constructor(options: TrainingRunOptions, newest: StoredCheckpoint, servedLogprobs: readonly number[]) {
    this.#options = options;
    this.#step = newest.manifest.step;
    this.#servedLogprobs = servedLogprobs;
    this.directory = options.directory;
    this.model = { ...options.model, step: () => this.#step };
  }

  async info(): Promise<ModelInfo> {
    const engine = await this.model.engine.doInfo();
    return {
      name: this.model.name,
      project: this.model.project,
      base_model: this.#options.baseModel,
      step: this.#step,
      parameters: engine.parameters,
      trainable_parameters: engine.trainableParameters,
      directory: this.directory,
      engine: {
        rss_bytes: engine.rssBytes,
        peak_rss_bytes: engine.peakRssBytes,
        sampled_tokens: engine.sampledTokens,
        prefilled_tokens: engine.prefilledTokens,
        sampling_seconds: engine.samplingSeconds,
        trained_tokens: engine.trainedTokens,
        training_seconds: engine.trainingSeconds,
      },
    };
  }

  history(): readonly MetricRow[] {
    return this.#options.metricFiles.history();
  }

  /** Logs trajectories and metrics of a split, e.g. an evaluation; returns the step they were logged for. */
  async log(request: LogRequest): Promise<number> {
    const { split, groups } = request;
    const step = request.step ?? this.#step;
    const metrics = trajectoryMetrics(split, groups);
    addMetrics(metrics, qualifyMetrics(split, request.metrics));
    if (Object.keys(metrics).length === 0) {
      throw refuse(400, 'invalid_value', 'log: needs at least one group or metric, got none', 'groups');
    }
    const rows = createRows({ split, step }, metrics, new Date(), this.#options.onWarning);
    const text = formatTrajectories(groups, this.model.completions);
    await this.#logQueue(async () => {
      await addTrajectories({ directory: this.directory, split, step }, text);
      await this.#options.metricFiles.append(rows);
    });
    return step;
  }

  /**
   * Starts a training step, or finds the one that has the same idempotency key. Invalid groups throw here, before anything runs.
   * Throws ApiError 409 if too many calls wait already.
   */
  train(request: TrainRequest): TrainJob {
    const key = request.idempotency_key;
    const stored = this.#options.checkpoints.findByKey(key);
    if (stored !== undefined) return { result: Promise.resolve(resultOf(stored)), subscribe: () => () => {} };
    const running = this.#jobs.get(key);
    if (running !== undefined) return running;
    if (this.#closing.signal.aborted) throw closingError();
    const waiting = Math.max(0, this.#jobs.size - 1);
    if (this.#jobs.size > 0 && waiting >= this.#options.maxWaitingTrainCalls) {
      throw refuse(
        409,
        'train_queue_full',
        `model ${this.model.name}: at most ${this.#options.maxWaitingTrainCalls} train calls may wait behind the running one, got one more`,
      );
    }
    return this.#enqueue(this.#prepare(request));
  }

  /** Stops the running step between two engine calls, fails those that wait, and closes the engine. */
  async close(): Promise<void> {
    this.#closing.abort(closingError());
    await Promise.allSettled([...this.#jobs.values()].map((job) => job.result));
    await this.#logQueue(() => this.model.engine.close());
  }

  #prepare(request: TrainRequest): PreparedStep {
    const config = trainConfigOf(request.options, this.#options.probeTolerance);
    const batch = buildTrainingBatch(request.groups, this.model.completions, {
      isNormalized: config.normalizeAdvantages,
      turnDiscount: config.turnDiscount,
      maxTokens: this.#options.maxPositions,
    });
    // The placeholder keeps users' metrics off the name; the step replaces it.
    const metrics: Metrics = { [changedMetric]: 0, ...batchMetrics(batch) };
    addMetrics(metrics, trajectoryMetrics('train', request.groups));
    return {
      idempotencyKey: request.idempotency_key,
      config,
      batch,
      metrics,
      trajectories: formatTrajectories(request.groups, this.model.completions),
    };
  }

  #enqueue(prepared: PreparedStep): TrainJob {
    const listeners = new Set<(progress: TrainProgress) => void>();
    const onProgress = (progress: TrainProgress): void => {
      for (const listener of listeners) listener(progress);
    };
    const result = this.#trainQueue(() => this.#runStep(prepared, onProgress));
    const job: TrainJob = {
      result,
      subscribe: (listener) => {
        listeners.add(listener);
        return () => listeners.delete(listener);
      },
    };
    this.#jobs.set(prepared.idempotencyKey, job);
    const settle = (): void => void this.#jobs.delete(prepared.idempotencyKey);
    result.then(settle, settle);
    return job;
  }

  async #runStep(prepared: PreparedStep, onProgress: (progress: TrainProgress) => void): Promise<TrainResult> {
    if (this.#closing.signal.aborted) throw closingError();
    if (this.#isEngineAhead) await this.#restore();
    let committed: StoredCheckpoint;
    this.#isEngineAhead = true;
    try {
      committed = await this.#advance(prepared, onProgress);
    } catch (error) {
      await this.#undo(error);
      throw error instanceof AbortedError ? closingError() : error;
    }
    this.#isEngineAhead = false;
    await this.#addToHistory(committed);
    onProgress({ stage: 'checkpoint', done: 1, total: 1 });
    return resultOf(committed);
  }

  /** Update, publish, prove, commit. */
  async #advance(prepared: PreparedStep, onProgress: (progress: TrainProgress) => void): Promise<StoredCheckpoint> {
    const { batch, config } = prepared;
    const { engine } = this.model;
    const startedAt = performance.now();
    const [parentStep, step] = [this.#step, this.#step + 1];
    onProgress({ stage: 'batch', done: 1, total: 1 });
    if (batch.trajectories.length === 0) this.#warnNothingTrainable(step, batch);
    const signal = this.#closing.signal;
    const updates = await runUpdates({ engine, batch, config, step: parentStep, signal, onProgress });
    await engine.doPublish({ step });
    onProgress({ stage: 'publish', done: 1, total: 1 });
    const served = await proveServed(engine, this.#options.probeIds, step, this.#options.probeTolerance);
    onProgress({ stage: 'verify', done: 1, total: 1 });
    const isChanged = largestDifference(served, this.#servedLogprobs) !== 0;
    if (!isChanged && batch.trajectories.length > 0) {
      this.#options.onWarning(
        `step ${step}: the served policy scores the probe text exactly as step ${parentStep} did`,
      );
    }
    const seconds = (performance.now() - startedAt) / 1000;
    const metrics: Metrics = {
      ...prepared.metrics,
      ...stalenessMetrics(batch, parentStep),
      ...updates.metrics,
      [changedMetric]: isChanged ? 1 : 0,
      'time/step_backend_train_s': seconds,
      'time/step_trainer_s': updates.seconds,
      ...(updates.trainedTokens > 0 && { 'throughput/avg_trainer_tok_per_s': updates.trainedTokens / updates.seconds }),
      'engine/rss_bytes': (await engine.doInfo()).rssBytes,
    };
    const rows = createRows({ split: 'train', step }, metrics, new Date(), this.#options.onWarning);
    await writeTrajectories({ directory: this.directory, split: 'train', step }, prepared.trajectories);
    const committed = await this.#options.checkpoints.commit(
      {
        step,
        parentStep,
        baseModelSha256: this.#options.baseModelSha256,
        packageVersion: this.#options.packageVersion,
        idempotencyKey: prepared.idempotencyKey,
        config: { ...config },
        history: [rows.history],
        timings: [rows.timing],
      },
      (directory) => engine.doSave({ directory }),
    );
    this.#step = step;
    this.#servedLogprobs = served;
    return committed;
  }

  /** The step is committed, whatever happens to its rows: they are in the checkpoint, and are added with those of a later step. */
  async #addToHistory(committed: StoredCheckpoint): Promise<void> {
    this.#unwrittenRows.push(rowsOf(committed)!);
    try {
      for (const rows of this.#unwrittenRows) await this.#options.metricFiles.complete(rows);
      this.#unwrittenRows = [];
    } catch (error) {
      this.#options.onWarning(
        `model ${this.model.name}: step ${this.#step} is trained, but not yet in history.jsonl: ${messageOf(error)}`,
      );
    }
  }

  async #undo(reason: unknown): Promise<void> {
    if (this.#closing.signal.aborted) return;
    try {
      await this.#restore();
    } catch (error) {
      this.#options.onWarning(
        `model ${this.model.name}: step ${this.#step} could not be restored (${messageOf(error)}) after: ${messageOf(reason)}; ` +
          'it is tried again before the next step',
      );
    }
  }

  /** Loads and serves the newest checkpoint again. */
  async #restore(): Promise<void> {
    const newest = this.#options.checkpoints.newest();
    if (newest === undefined) throw new CheckpointError(`${this.directory}: must hold a checkpoint, got none`);
    const { engine } = this.model;
    await engine.doLoad({ directory: newest.directory });
    await engine.doPublish({ step: this.#step });
    this.#servedLogprobs = await proveServed(engine, this.#options.probeIds, this.#step, this.#options.probeTolerance);
    this.#isEngineAhead = false;
  }

  #warnNothingTrainable(step: number, { counts }: TrainingBatch): void {
    this.#options.onWarning(
      `step ${step}: nothing to train on, so the weights stay as they are: of ${counts.groups} groups, ` +
        `${counts.zeroVarianceGroups} have equal rewards throughout or fewer than two trajectories; ` +
        `${counts.droppedTrajectories} trajectories exceed the context of ${this.#options.maxPositions} tokens`,
    );
  }
}

/** The rows that a training step's checkpoint carries; null for step 0. */
export function rowsOf({ manifest }: StoredCheckpoint): MetricRows | null {
  const [history] = manifest.history;
  const [timing] = manifest.timings;
  return history === undefined || timing === undefined ? null : { history, timing };
}

/** The answer to a `train` call, from its checkpoint alone, so that it is the same at any later time. */
function resultOf(checkpoint: StoredCheckpoint): TrainResult {
  const { files, history, timings, step } = checkpoint.manifest;
  const weights = files['adapter_model.safetensors'] ?? files['model.safetensors'];
  const metrics: Metrics = {};
  for (const [name, value] of [...history, ...timings].flatMap((row) => Object.entries(row))) {
    if (typeof value === 'number' && name !== 'step' && name !== 'training_step') metrics[name] = value;
  }
  return { step, metrics, checkpoint_path: checkpoint.directory, adapter_sha256: weights?.sha256 ?? hashFiles(files) };
}

/** For engines whose weights have another name: one hash over the names and hashes of all files. */
function hashFiles(files: StoredCheckpoint['manifest']['files']): string {
  const lines = Object.entries(files).map(([name, { sha256 }]) => `${name} ${sha256}\n`);
  return createHash('sha256').update(lines.join('')).digest('hex');
}

/** The configuration that the options of a request describe, defaults filled in. */
function trainConfigOf(options: WireTrainOptions, probeTolerance: number): TrainConfig {
  const base = defaultTrainConfig;
  const inexactCap = probeTolerance > 0 ? inexactImportanceCap : base.importanceCap;
  return {
    learningRate: options.learning_rate ?? base.learningRate,
    loss: options.loss ?? base.loss,
    clipLow: options.clip_low === undefined ? base.clipLow : options.clip_low,
    clipHigh: options.clip_high === undefined ? base.clipHigh : options.clip_high,
    importanceCap: options.importance_cap ?? inexactCap,
    normalizeAdvantages: options.normalize_advantages ?? base.normalizeAdvantages,
    turnDiscount: options.turn_discount ?? base.turnDiscount,
    entropyBonus: options.entropy_bonus ?? base.entropyBonus,
    gradientSteps: options.gradient_steps ?? base.gradientSteps,
    epochs: options.epochs ?? base.epochs,
    maxGradNorm: options.max_grad_norm ?? base.maxGradNorm,
    adam: {
      beta1: options.adam?.beta1 ?? base.adam.beta1,
      beta2: options.adam?.beta2 ?? base.adam.beta2,
      epsilon: options.adam?.epsilon ?? base.adam.epsilon,
      weightDecay: options.adam?.weight_decay ?? base.adam.weightDecay,
    },
    seed: options.seed ?? base.seed,
  };
}

function closingError(): EngineError {
  return new EngineError('train: the server is shutting down; send the call again with the same idempotency key', {
    details: { isRetryable: true },
  });
}
