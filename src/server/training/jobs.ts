/**
 * The `train` and `sft` calls of one model as jobs: state, progress, result, cancelling. Layer 5.
 * Ended jobs are remembered in bounded number; what trained is found in the checkpoints for ever.
 */
import { createHash } from 'node:crypto';
import { AbortedError, type ApiError, EngineError } from '../../core/errors.ts';
import { refuse, toHttpError } from '../../wire/errors.ts';
import type { JobKind, JobState, WireJob } from '../../wire/jobs.ts';
import type { TrainProgress, TrainResult } from '../../wire/training.ts';

/** Ended jobs of one model that are remembered with their errors and times. */
const maxEndedJobs = 200;

/** A call under way or ended; several requests with one idempotency key share it. */
export interface TrainJob {
  readonly id: string;
  readonly result: Promise<TrainResult>;
  /** Calls back for each progress report until the returned function is called. */
  readonly subscribe: (listener: (progress: TrainProgress) => void) => () => void;
  readonly describe: () => WireJob;
}

const cancelledCode = 'job_cancelled';

/** What a job is started with. */
export interface JobIdentity {
  readonly kind: JobKind;
  readonly idempotencyKey: string;
  readonly requestSha256: string;
}

export interface JobContext {
  /** Fires when the job is cancelled. */
  readonly signal: AbortSignal;
  /** Tells that its turn in the queue has come. */
  readonly start: () => void;
  readonly onProgress: (progress: TrainProgress) => void;
}

export interface JobBook {
  /** The one that waits or runs under this key. */
  readonly findActive: (idempotencyKey: string) => (TrainJob & JobIdentity) | undefined;
  readonly get: (id: string) => TrainJob | undefined;
  readonly list: () => readonly TrainJob[];
  readonly activeCount: () => number;
  readonly start: (identity: JobIdentity, run: (context: JobContext) => Promise<TrainResult>) => TrainJob;
  /** Stops a job between two engine calls, or before it starts; false if it has ended. */
  readonly cancel: (id: string) => boolean;
  /** Resolves when all have ended, however that went. */
  readonly settle: () => Promise<void>;
}

/** Name of a job: the same in every process for the same call. */
export function jobId(model: string, { kind, idempotencyKey }: Omit<JobIdentity, 'requestSha256'>): string {
  const hash = createHash('sha256').update(JSON.stringify([model, kind, idempotencyKey]));
  return `job-${hash.digest('hex').slice(0, 24)}`;
}

/** What a request starts; the SHA-256 without its key tells two bodies under one key apart. */
export function identify(kind: JobKind, request: { readonly idempotency_key: string }): JobIdentity {
  const { idempotency_key: idempotencyKey, ...body } = request;
  const requestSha256 = createHash('sha256').update(kind).update(JSON.stringify(body)).digest('hex');
  return { kind, idempotencyKey, requestSha256 };
}

/** A job that has its result already, from a checkpoint. */
export function finishedJob(
  model: string,
  identity: Omit<JobIdentity, 'requestSha256'>,
  result: TrainResult,
): TrainJob {
  const id = jobId(model, identity);
  return {
    id,
    result: Promise.resolve(result),
    subscribe: () => () => {},
    describe: () => ({
      id,
      kind: identity.kind,
      model,
      idempotency_key: identity.idempotencyKey,
      state: 'done',
      progress: null,
      result,
      error: null,
      created_at: null,
      started_at: null,
      finished_at: null,
    }),
  };
}

/** `onChange` gets a job whenever its state changes and when it reports progress. */
export function createJobBook(model: string, onChange: (job: WireJob) => void): JobBook {
  const jobs = new Map<string, Job>();
  const active = new Map<string, Job>();
  const forgetOldest = (): void => {
    let ended = jobs.size - active.size;
    for (const [id, job] of jobs) {
      if (ended <= maxEndedJobs) return;
      if (active.has(job.idempotencyKey) && active.get(job.idempotencyKey) === job) continue;
      jobs.delete(id);
      ended -= 1;
    }
  };
  return {
    findActive: (key) => active.get(key),
    get: (id) => jobs.get(id),
    list: () => [...jobs.values()],
    activeCount: () => active.size,
    start: (identity, run) => {
      const job = new Job(model, identity, run, onChange);
      jobs.delete(job.id); // an earlier attempt that failed; the new one stands at the end
      jobs.set(job.id, job);
      active.set(identity.idempotencyKey, job);
      const settle = (): void => {
        active.delete(identity.idempotencyKey);
        forgetOldest();
      };
      job.result.then(settle, settle);
      return job;
    },
    cancel: (id) => jobs.get(id)?.cancel() ?? false,
    settle: async () => {
      await Promise.allSettled([...active.values()].map((job) => job.result));
    },
  };
}

class Job implements TrainJob, JobIdentity {
  readonly id: string;
  readonly kind: JobKind;
  readonly idempotencyKey: string;
  readonly requestSha256: string;
  readonly result: Promise<TrainResult>;
  readonly #model: string;
  readonly #onChange: (job: WireJob) => void;
  readonly #aborter: AbortController = new AbortController();
  readonly #listeners: Set<(progress: TrainProgress) => void> = new Set();
  readonly #createdAt: string = new Date().toISOString();
  #state: JobState = 'queued';
  #progress: TrainProgress | null = null;
  #outcome: Pick<WireJob, 'result' | 'error'> = { result: null, error: null };
  #startedAt: string | null = null;
  #finishedAt: string | null = null;

  constructor(
    model: string,
    identity: JobIdentity,
    run: (context: JobContext) => Promise<TrainResult>,
    onChange: (job: WireJob) => void,
  ) {
    this.#model = model;
    this.#onChange = onChange;
    this.kind = identity.kind;
    this.idempotencyKey = identity.idempotencyKey;
    this.requestSha256 = identity.requestSha256;
    this.id = jobId(model, identity);
    onChange(this.describe());
    this.result = run({
      signal: this.#aborter.signal,
      start: () => this.#start(),
      onProgress: (progress) => this.#report(progress),
    });
    this.result.then(
      (result) => this.#end('done', { result, error: null }),
      (error: unknown) => {
        const isCancelled = error instanceof AbortedError && error.details.code === cancelledCode;
        const state = isCancelled ? 'cancelled' : 'failed';
        this.#end(state, { result: null, error: toHttpError(error).body.error });
      },
    );
  }

  subscribe(listener: (progress: TrainProgress) => void): () => void {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  describe(): WireJob {
    return {
      id: this.id,
      kind: this.kind,
      model: this.#model,
      idempotency_key: this.idempotencyKey,
      state: this.#state,
      progress: this.#progress,
      ...this.#outcome,
      created_at: this.#createdAt,
      started_at: this.#startedAt,
      finished_at: this.#finishedAt,
    };
  }

  cancel(): boolean {
    if (this.#finishedAt !== null) return false;
    this.#aborter.abort(cancelledError(this.id));
    if (this.#state === 'queued') {
      this.#state = 'cancelled';
      this.#onChange(this.describe());
    }
    return true;
  }

  #start(): void {
    if (this.#aborter.signal.aborted) throw cancelledError(this.id);
    this.#startedAt = new Date().toISOString();
    this.#state = 'running';
    this.#onChange(this.describe());
  }

  #report(progress: TrainProgress): void {
    this.#progress = progress;
    for (const listener of this.#listeners) listener(progress);
    this.#onChange(this.describe());
  }

  #end(state: JobState, outcome: Pick<WireJob, 'result' | 'error'>): void {
    this.#finishedAt = new Date().toISOString();
    this.#state = state;
    this.#outcome = outcome;
    this.#onChange(this.describe());
  }
}

/** Why a cancelled job ended. */
export function cancelledError(id: string): AbortedError {
  return new AbortedError(`job ${id}: was cancelled; its step was undone`, { details: { code: cancelledCode } });
}

/** The key of a call, on another one. */
export function reusedKeyError(key: string): ApiError {
  return refuse(
    409,
    'idempotency_key_reused',
    `idempotency_key: must be new for a request with another body, got ${JSON.stringify(key)} again`,
    'idempotency_key',
  );
}

/** What those get whose call the end of the server cut short. */
export function closingError(): EngineError {
  return new EngineError('train: the server is shutting down; send the call again with the same idempotency key', {
    details: { isRetryable: true },
  });
}
