/**
 * One registered model: trains it step by step, and keeps its folder. Layer 5.
 * A step is: update, publish, prove, commit the checkpoint, append to history. A step that fails before the commit is undone: the newest
 * checkpoint is loaded and served again. An idempotency key trains once, however often and through whatever restart it is sent.
 */
import { AbortedError, messageOf } from '../../core/errors.ts';
import type { Engine } from '../../engines/engine.ts';
import type { SupervisedEngine } from '../../engines/supervised-engine.ts';
import type { DistillRequest } from '../../wire/distill.ts';
import { refuse, refuseBusy } from '../../wire/errors.ts';
import type { NewEvent } from '../../wire/events.ts';
import type { WireJob } from '../../wire/jobs.ts';
import type { SftRequest } from '../../wire/sft.ts';
import type { LogRequest, ModelInfo, TrainRequest, TrainResult } from '../../wire/training.ts';
import { toModelInfo } from '../../wire/training-names.ts';
import type { ServedModel } from '../inference/served-model.ts';
import type { Who } from '../security/caller.ts';
import type { StoragePolicy } from '../security/storage-policy.ts';
import type { CheckpointStore, StoredCheckpoint } from '../store/checkpoints.ts';
import { createRows, type MetricFiles, type MetricRows } from '../store/metric-files.ts';
import { createSerialQueue, type SerialQueue } from '../store/serial-queue.ts';
import { resultOf, rowsOf } from '../store/step-result.ts';
import { addTrajectories, formatTrajectories, hashData, writeTrajectories } from '../store/trajectory-files.ts';
import { prepareDistillation } from './distill-job.ts';
import type { Teacher } from './distill-teacher.ts';
import {
  cancelledError,
  closingError,
  createJobBook,
  identify,
  type JobBook,
  type JobContext,
  type JobIdentity,
  jobId,
  type TrainJob,
} from './jobs.ts';
import type { LoadedPolicy, PolicyLoader } from './policy-loader.ts';
import { largestDifference, proveServed } from './served-proof.ts';
import { encodeConversations, prepareSft } from './sft-job.ts';
import { findKnownJob, stepEvents, storedJobs } from './stored-jobs.ts';
import { addMetrics, type Metrics, qualifyMetrics, trajectoryMetrics } from './train-metrics.ts';
import { changedMetric, type PreparedJob, prepareTraining } from './training-job.ts';

/** Deaths of the engine that one step is trained again after; training that kills it is not tried for ever. */
const maxDeathsPerStep = 3;
/** A step waits longer than a request for its engine: nothing else can be done. */
const restartLimitMs = 600_000;

export interface TrainingRunOptions {
  /** `step()` is asked of the run. */
  readonly model: Omit<ServedModel, 'step'>;
  /** The model's. */
  readonly engine: SupervisedEngine;
  readonly policies: PolicyLoader;
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
  readonly storage: StoragePolicy;
  readonly onWarning: (message: string) => void;
  /** Default: nobody follows. */
  readonly onEvent?: (event: NewEvent) => void;
}

/** A job, and who asked for it. */
interface OwnedJob extends PreparedJob {
  readonly by: Who;
}

/** Steps run one after another; logs run beside them. Whoever opened it closes it. */
export class TrainingRun {
  readonly model: ServedModel;
  readonly directory: string;
  readonly #options: TrainingRunOptions;
  readonly #logQueue: SerialQueue = createSerialQueue();
  readonly #trainQueue: SerialQueue = createSerialQueue();
  readonly #jobs: JobBook;
  readonly #onEvent: (event: NewEvent) => void;
  readonly #closing: AbortController = new AbortController();
  #step: number;
  #servedLogprobs: readonly number[];
  /** The engine that may hold, or serve, what is not committed. */
  #aheadEngine: Engine | null = null;
  #unwrittenRows: MetricRows[] = [];
  #lastStepSeconds = 5;

  /** The engine must hold, and serve, what was loaded. Use `openTrainingRun`. */
  constructor(
    options: TrainingRunOptions,
    { newest, servedLogprobs }: Omit<LoadedPolicy, 'probeIds' | 'maxPositions'>,
  ) {
    this.#options = options;
    this.#step = newest.manifest.step;
    this.#servedLogprobs = servedLogprobs;
    this.directory = options.directory;
    this.model = { ...options.model, step: () => this.#step };
    this.#onEvent = options.onEvent ?? (() => {});
    this.#jobs = createJobBook(this.model.name, (job) => this.#onEvent({ type: 'job', data: job }));
  }

  async info(): Promise<ModelInfo> {
    const { name, project } = this.model;
    const { baseModel } = this.#options;
    const identity = { name, project, base_model: baseModel, step: this.#step, directory: this.directory };
    return toModelInfo(identity, await this.model.engine.doInfo());
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
    const text = formatTrajectories(groups, this.model, this.#options.storage);
    await this.#logQueue(async () => {
      await addTrajectories({ directory: this.directory, split, step }, text);
      await this.#options.metricFiles.append(rows);
    });
    return step;
  }

  /**
   * Starts a training step, or finds the one that has the same idempotency key. Invalid groups throw here, before anything runs.
   * Throws ApiError 409 if the key was used for another request, 429 if too many calls wait already.
   */
  train(request: TrainRequest, by: Who = { kind: 'local' }): TrainJob {
    return this.#submit(identify('train', request), by, ({ requestSha256 }) =>
      prepareTraining(request, requestSha256, this.#options),
    );
  }

  /** As `train`, on conversations; with `checkpoint_every` it makes several steps, and one that was cut off goes on after the last of them. */
  async sft(request: SftRequest, by: Who = { kind: 'local' }): Promise<TrainJob> {
    const identity = identify('sft', request);
    const known = this.#find(identity);
    if (known !== undefined) return known;
    const encoded = await encodeConversations(request, this.#options);
    return this.#submit(identity, by, ({ requestSha256 }) =>
      prepareSft(request, encoded, requestSha256, this.#options),
    );
  }

  /** As `train`, towards a teacher that scores what the policy sampled. */
  distill(request: DistillRequest, teacher: Teacher, by: Who = { kind: 'local' }): TrainJob {
    return this.#submit(identify('distill', request), by, ({ requestSha256 }) =>
      prepareDistillation(request, requestSha256, teacher, this.#options),
    );
  }

  /** A job that this process knows or whose checkpoint is there. */
  job(id: string): WireJob | undefined {
    const known = this.#jobs.get(id);
    if (known !== undefined) return known.describe();
    return storedJobs(this.model.name, this.#options.checkpoints).find((job) => job.id === id);
  }

  /** All jobs, those of earlier processes first. */
  jobs(): readonly WireJob[] {
    const known = this.#jobs.list().map((job) => job.describe());
    const ids = new Set(known.map(({ id }) => id));
    return [...storedJobs(this.model.name, this.#options.checkpoints).filter(({ id }) => !ids.has(id)), ...known];
  }

  /** The job as something to follow, if it waits or runs. */
  activeJob(id: string): TrainJob | undefined {
    return this.#jobs.get(id);
  }

  /** Stops a job between two engine calls and undoes its step; false if it has ended. */
  cancelJob(id: string): boolean {
    return this.#jobs.cancel(id);
  }

  /** Checkpoints may be given up or put back here, between two steps; what is the newest afterwards is loaded and served. */
  async changeCheckpoints<T>(work: (checkpoints: CheckpointStore) => Promise<T>): Promise<T> {
    return this.#trainQueue(async () => {
      if (this.#closing.signal.aborted) throw closingError();
      const { checkpoints } = this.#options;
      try {
        return await work(checkpoints);
      } finally {
        await this.#serveNewest(checkpoints.newest()?.manifest.step ?? this.#step);
      }
    });
  }

  get checkpoints(): CheckpointStore {
    return this.#options.checkpoints;
  }

  get baseModel(): string {
    return this.#options.baseModel;
  }

  get metricFiles(): MetricFiles {
    return this.#options.metricFiles;
  }

  /** Training jobs that wait or run. */
  activeJobs(): number {
    return this.#jobs.activeCount();
  }

  /** Stops the running step between two engine calls, and fails those that wait; there are no more. */
  stopTraining(): void {
    this.#closing.abort(closingError());
  }

  async close(): Promise<void> {
    this.stopTraining();
    await this.#jobs.settle();
    await this.#logQueue(() => this.model.engine.close());
    await this.model.completions.close();
  }

  #find(identity: JobIdentity): TrainJob | undefined {
    return findKnownJob(this.model.name, identity, this.#options.checkpoints, this.#jobs);
  }

  #submit(identity: JobIdentity, by: Who, prepare: (identity: JobIdentity) => PreparedJob): TrainJob {
    const { maxWaitingTrainCalls } = this.#options;
    const known = this.#find(identity);
    if (known !== undefined) return known;
    if (this.#closing.signal.aborted) throw closingError();
    if (this.#jobs.activeCount() > maxWaitingTrainCalls) {
      throw refuseBusy(
        'train_queue_full',
        `model ${this.model.name}: at most ${maxWaitingTrainCalls} train calls may wait behind the running one, got one more`,
        this.#lastStepSeconds,
      );
    }
    const prepared: OwnedJob = { ...prepare(identity), by };
    const { rolloutIds = [] } = prepared;
    const { rollouts } = this.model.completions;
    rollouts.reserve(rolloutIds);
    const run = (context: JobContext): Promise<TrainResult> => this.#runJob(prepared, context);
    return this.#jobs.start(prepared, (context) =>
      this.#trainQueue(() => run(context)).finally(() => rollouts.release(rolloutIds)),
    );
  }

  async #runJob(prepared: OwnedJob, context: JobContext): Promise<TrainResult> {
    if (this.#closing.signal.aborted) throw closingError();
    context.start();
    let part = this.#options.checkpoints.partsByKey(prepared.idempotencyKey).length;
    for (; part < prepared.parts - 1; part++) await this.#runStep(prepared, part, context);
    return resultOf(await this.#runStep(prepared, part, context));
  }

  /** One part of a job: a policy step. It is trained again when the engine dies meanwhile. */
  async #runStep(prepared: OwnedJob, part: number, context: JobContext): Promise<StoredCheckpoint> {
    for (let deaths = 0; ; deaths++) {
      const engine = await this.#session();
      this.#aheadEngine = engine;
      try {
        const committed = await this.#advance(engine, prepared, part, context);
        this.#aheadEngine = null;
        await this.#addToHistory(committed);
        for (const event of stepEvents(this.model.name, committed)) this.#onEvent(event);
        context.onProgress({ stage: 'checkpoint', done: part + 1, total: prepared.parts });
        return committed;
      } catch (error) {
        const isRepeated = deaths < maxDeathsPerStep && !context.signal.aborted && (await this.#hasDied(engine));
        if (!isRepeated) {
          await this.#undo(engine, error);
          if (!(error instanceof AbortedError)) throw error;
          throw this.#closing.signal.aborted ? closingError() : cancelledError(jobId(this.model.name, prepared));
        }
        const { name } = this.model;
        this.#options.onWarning(`model ${name}: step ${this.#step + 1} is trained again: ${messageOf(error)}`);
      }
    }
  }

  /** The engine of one life, at the newest checkpoint. */
  async #session(): Promise<Engine> {
    const { signal } = this.#closing;
    if (signal.aborted) throw closingError();
    const engine = await this.#options.engine
      .session({ limitMs: restartLimitMs, signal })
      .catch((error: unknown) => Promise.reject(signal.aborted ? closingError() : error));
    if (this.#aheadEngine === engine) await this.#restore(engine);
    return engine;
  }

  /** Whether it runs no longer. Its death reaches who waits for a call, and its supervisor, in one turn of the loop. */
  async #hasDied(engine: Engine): Promise<boolean> {
    await new Promise(setImmediate);
    return !this.#closing.signal.aborted && !this.#options.engine.isCurrent(engine);
  }

  /** Update, publish, prove, commit. */
  async #advance(engine: Engine, prepared: OwnedJob, part: number, context: JobContext): Promise<StoredCheckpoint> {
    const { onProgress } = context;
    const { kind, idempotencyKey, requestSha256, config, hasData } = prepared;
    const startedAt = performance.now();
    const [parentStep, step] = [this.#step, this.#options.checkpoints.nextStep()];
    onProgress({ stage: 'batch', done: 1, total: 1 });
    const signal = AbortSignal.any([this.#closing.signal, context.signal]);
    const updates = await prepared.update({ engine, step: parentStep, nextStep: step, part, signal, onProgress });
    await engine.doPublish({ step });
    onProgress({ stage: 'publish', done: 1, total: 1 });
    const served = await proveServed(engine, this.#options.probeIds, step, this.#options.probeTolerance);
    onProgress({ stage: 'verify', done: 1, total: 1 });
    const isChanged = largestDifference(served, this.#servedLogprobs) !== 0;
    if (!isChanged && hasData) {
      this.#options.onWarning(
        `step ${step}: the served policy scores the probe text exactly as step ${parentStep} did`,
      );
    }
    const seconds = (performance.now() - startedAt) / 1000;
    this.#lastStepSeconds = seconds;
    const metrics: Metrics = {
      ...updates.metrics,
      [`${kind}/${changedMetric}`]: isChanged ? 1 : 0,
      'time/step_backend_train_s': seconds,
      'time/step_trainer_s': updates.seconds,
      ...(updates.trainedTokens > 0 && { 'throughput/avg_trainer_tok_per_s': updates.trainedTokens / updates.seconds }),
      'engine/rss_bytes': (await engine.doInfo()).rssBytes,
    };
    const rows = createRows({ split: kind, step }, metrics, new Date(), this.#options.onWarning);
    if (prepared.trajectories !== null) {
      await writeTrajectories({ directory: this.directory, split: kind, step }, prepared.trajectories);
    }
    const { baseModel, baseModelSha256, packageVersion, policies, checkpoints } = this.#options;
    const manifest = {
      ...{ step, parentStep, baseModel, baseModelSha256, packageVersion, idempotencyKey, config },
      ...{ dataSha256: hashData(prepared.trajectories), trainedBy: prepared.by },
      request: { kind, sha256: requestSha256, part, parts: prepared.parts },
      ...(prepared.rolloutIds !== undefined &&
        prepared.rolloutIds.length > 0 && { rollouts: [...prepared.rolloutIds] }),
      history: [rows.history],
      timings: [rows.timing],
    };
    return await policies.commits(async () => {
      const committed = await checkpoints.commit(manifest, (directory) => engine.doSave({ directory }));
      this.#step = step;
      this.#servedLogprobs = served;
      policies.noteStep(step);
      this.model.completions.rollouts.markTrained(prepared.rolloutIds ?? [], step);
      return committed;
    });
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

  async #undo(engine: Engine, reason: unknown): Promise<void> {
    if (this.#closing.signal.aborted || !this.#options.engine.isCurrent(engine)) return;
    try {
      await this.#restore(engine);
    } catch (error) {
      this.#options.onWarning(
        `model ${this.model.name}: step ${this.#step} could not be restored (${messageOf(error)}) after: ${messageOf(reason)}; ` +
          'it is tried again before the next step',
      );
    }
  }

  /** Loads and serves the newest checkpoint again. */
  async #restore(engine: Engine): Promise<void> {
    this.#servedLogprobs = (await this.#options.policies.restore(engine)).servedLogprobs;
    this.#aheadEngine = null;
  }

  async #serveNewest(step: number): Promise<void> {
    if (step === this.#step) return;
    const fromStep = this.#step;
    this.#step = step;
    const { signal } = this.#closing;
    const engine = await this.#options.engine.session({ limitMs: restartLimitMs, signal });
    this.#aheadEngine = engine;
    await this.#restore(engine);
    this.#onEvent({ type: 'model.rolled_back', data: { model: this.model.name, from_step: fromStep, step } });
  }
}
