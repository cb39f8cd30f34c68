/** Copies of checkpoints as jobs, beside training: state, progress, result, cancelling. Layer 5. Remembered until the server ends. */
import { createHash } from 'node:crypto';
import { AbortedError } from '../../core/errors.ts';
import { toHttpError } from '../../wire/errors.ts';
import type { TransferProgress, TransferResult, WireTransferJob } from '../../wire/transfers.ts';
import type { TransferContext } from '../store/remote-checkpoints.ts';

/** Ended copies that are remembered. */
const maxEnded = 200;

export interface TransferJob {
  readonly id: string;
  readonly result: Promise<TransferResult>;
  readonly subscribe: (listener: (progress: TransferProgress) => void) => () => void;
  readonly describe: () => WireTransferJob;
}

export interface TransferBook {
  readonly list: () => readonly TransferJob[];
  readonly get: (id: string) => TransferJob | undefined;
  /** Starts a copy, or joins the one that runs for the same request. */
  readonly start: (
    of: { readonly kind: WireTransferJob['kind']; readonly model: string; readonly request: object },
    run: (context: TransferContext) => Promise<TransferResult>,
  ) => TransferJob;
  /** False if it has ended. */
  readonly cancel: (id: string) => boolean;
  /** Cuts off what runs, and waits for it. */
  readonly close: () => Promise<void>;
}

/** `onChange` gets a job whenever its state changes and when it reports progress. */
export function createTransferBook(onChange: (job: WireTransferJob) => void): TransferBook {
  const jobs = new Map<string, Entry>();
  return {
    list: () => [...jobs.values()].map(({ job }) => job),
    get: (id) => jobs.get(id)?.job,
    start: ({ kind, model, request }, run) => {
      const hash = createHash('sha256').update(JSON.stringify([kind, model, request]));
      const id = `job-${hash.digest('hex').slice(0, 24)}`;
      const known = jobs.get(id);
      if (known !== undefined && !known.isEnded()) return known.job;
      const entry = startJob({ id, kind, model }, run, onChange);
      jobs.delete(id); // an earlier copy of the same; the new one stands at the end
      jobs.set(id, entry);
      for (const [other, { isEnded }] of jobs) if (jobs.size > maxEnded && isEnded()) jobs.delete(other);
      return entry.job;
    },
    cancel: (id) => jobs.get(id)?.cancel(new AbortedError(`job ${id}: was cancelled`, { details: cancelled })) ?? false,
    close: async () => {
      const running = [...jobs.values()].filter(({ isEnded }) => !isEnded());
      for (const { job, cancel } of running) cancel(new AbortedError(`job ${job.id}: the server is shutting down`));
      await Promise.allSettled(running.map(({ job }) => job.result));
    },
  };
}

const cancelled = { code: 'job_cancelled' };

interface Entry {
  readonly job: TransferJob;
  readonly isEnded: () => boolean;
  readonly cancel: (reason: AbortedError) => boolean;
}

function startJob(
  identity: Pick<WireTransferJob, 'id' | 'kind' | 'model'>,
  run: (context: TransferContext) => Promise<TransferResult>,
  onChange: (job: WireTransferJob) => void,
): Entry {
  const aborter = new AbortController();
  const listeners = new Set<(progress: TransferProgress) => void>();
  const now = new Date().toISOString();
  let state: WireTransferJob = {
    ...identity,
    ...{ state: 'running', progress: null, result: null, error: null },
    ...{ created_at: now, started_at: now, finished_at: null },
  };
  const change = (next: Partial<WireTransferJob>): void => {
    state = { ...state, ...next };
    onChange(state);
  };
  const onProgress = (progress: TransferProgress): void => {
    change({ progress });
    for (const listener of listeners) listener(progress);
  };
  change({});
  const work = run({ onProgress, signal: aborter.signal }).catch((error: unknown) => {
    throw aborter.signal.aborted ? aborter.signal.reason : error;
  });
  const result = work.then(
    (done) => {
      change({ state: 'done', result: done, finished_at: new Date().toISOString() });
      return done;
    },
    (error: unknown) => {
      const isCancelled = error instanceof AbortedError && error.details.code === cancelled.code;
      const ended = { error: toHttpError(error).body.error, finished_at: new Date().toISOString() };
      change({ state: isCancelled ? 'cancelled' : 'failed', ...ended });
      throw error;
    },
  );
  result.catch(() => {}); // told by the job
  const job: TransferJob = {
    id: identity.id,
    result,
    subscribe: (listener) => {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
    describe: () => state,
  };
  return {
    job,
    isEnded: () => state.finished_at !== null,
    cancel: (reason) => {
      if (state.finished_at !== null) return false;
      aborter.abort(reason);
      return true;
    },
  };
}
