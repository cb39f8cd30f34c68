/** What both gathers share: concurrency, time limits, counting of failures, progress, stopping. Layer 5. */
import { setMaxListeners } from 'node:events';
import pLimit, { type LimitFunction } from 'p-limit';
import { AbortedError, ConfigError, DataError, RolloutError } from '../core/errors.ts';
import { type RolloutException, Trajectory, TrajectoryGroup } from '../core/trajectory.ts';
import { withDeadline } from './deadline.ts';
import { createProgressBar, type ProgressBar } from './gather-bar.ts';
import { type GatherProgress, GatherTally } from './gather-tally.ts';

export interface RolloutContext {
  /** Fires when the gather stops or the rollout's time is up; pass it on to every call. */
  readonly signal: AbortSignal;
}

/** Produces one trajectory. */
export type Rollout = (context: RolloutContext) => Promise<Trajectory>;

export interface GatherOptions {
  /** Text beside the progress bar; default `gather`. */
  readonly description?: string;
  /** Failures to bear: a count, or below 1 a share of all rollouts. One more rejects. Default 0. */
  readonly maxExceptions?: number;
  /** Rollouts that run at once; default 128. */
  readonly maxConcurrency?: number;
  /** Limit of one rollout; default none. */
  readonly timeoutMs?: number;
  readonly signal?: AbortSignal;
  /** After every rollout. */
  readonly onProgress?: (progress: GatherProgress) => void;
  /** Draw a progress bar on standard error; default: if that is a terminal. */
  readonly progress?: boolean;
}

type Work<T> = (context: RolloutContext) => Promise<T>;

/**
 * Starts all work of a gather and waits for it. `rollouts_P`: number of rollouts per group.
 * The first rejection of any work, and the caller's signal, stop the rest.
 */
export async function runGather<T>(
  rollouts_P: readonly number[],
  options: GatherOptions,
  start: (run: GatherRun) => Promise<T>[],
): Promise<T[]> {
  const run = new GatherRun(rollouts_P, options);
  const { signal, description = 'gather' } = options;
  const stop = (): void =>
    run.stop(new AbortedError(`${description}: aborted by the caller`, { cause: signal?.reason }));
  try {
    if (signal?.aborted) stop();
    signal?.addEventListener('abort', stop, { once: true });
    const work = start(run);
    for (const promise of work) promise.catch((error: unknown) => run.stop(error));
    return await Promise.all(work);
  } catch (error) {
    throw run.signal.aborted ? run.signal.reason : error;
  } finally {
    signal?.removeEventListener('abort', stop);
    run.end();
  }
}

/** A gather under way. */
export class GatherRun {
  readonly #controller = new AbortController();
  readonly #options: GatherOptions;
  readonly #limit: LimitFunction;
  readonly #allowed: number;
  readonly #tally: GatherTally;
  readonly #bar: ProgressBar | undefined;

  constructor(rollouts_P: readonly number[], options: GatherOptions) {
    const { maxExceptions = 0, maxConcurrency = 128, description = 'gather', progress } = options;
    if (!Number.isInteger(maxConcurrency) || maxConcurrency < 1) {
      throw new ConfigError(`gather: maxConcurrency must be a positive integer, got ${maxConcurrency}`);
    }
    this.#options = options;
    this.#tally = new GatherTally(rollouts_P);
    this.#allowed = allowedExceptions(maxExceptions, this.#tally.rolloutsTotal);
    this.#limit = pLimit(maxConcurrency);
    this.#bar = createProgressBar(description, progress);
    setMaxListeners(0, this.signal); // one listener for each running rollout is no leak
  }

  get signal(): AbortSignal {
    return this.#controller.signal;
  }

  /** What is queued never starts; what runs gets its signal fired. The first reason stays. */
  stop(reason: unknown): void {
    this.#controller.abort(reason);
  }

  end(): void {
    this.#bar?.stop();
  }

  /** The trajectory, or its failure, already counted. Rejects only when the whole gather stops. */
  async rollout(what: string, group: number, work: Work<Trajectory>): Promise<Trajectory | RolloutException> {
    const outcome = await this.#attempt(what, async (context) => {
      const trajectory: unknown = await work(context);
      if (trajectory instanceof Trajectory) return trajectory;
      throw new DataError(`${what}: a rollout must return a Trajectory, got ${typeof trajectory}`);
    });
    if (outcome instanceof Trajectory) this.#tally.addTrajectory(outcome);
    this.#finish(group);
    return outcome;
  }

  /** The same for a source that gives a whole group and counts as one rollout; null when it failed. */
  async group(what: string, group: number, work: Work<TrajectoryGroup>): Promise<TrajectoryGroup | null> {
    const outcome = await this.#attempt(what, async (context) => {
      const result: unknown = await work(context);
      if (result instanceof TrajectoryGroup) return result;
      throw new DataError(`${what}: must give a TrajectoryGroup, got ${typeof result}`);
    });
    const result = outcome instanceof TrajectoryGroup ? outcome : null;
    for (const trajectory of result ?? []) this.#tally.addTrajectory(trajectory);
    this.#finish(group);
    return result;
  }

  #attempt<T>(what: string, work: Work<T>): Promise<T | RolloutException> {
    const { timeoutMs = 0 } = this.#options;
    return this.#limit(async () => {
      try {
        return await withDeadline({ what, timeoutMs, signal: this.signal }, (signal) => work({ signal }));
      } catch (error) {
        if (this.signal.aborted) throw this.signal.reason;
        const exception = describeException(error);
        const count = this.#tally.addException(error);
        if (count <= this.#allowed) return exception;
        this.stop(this.#tooMany(count, `${what} failed with ${exception.type}: ${exception.message}`));
        throw this.signal.reason;
      }
    });
  }

  #tooMany(exceptions: number, last: string): RolloutError {
    const { maxExceptions = 0 } = this.#options;
    const { rolloutsTotal, firstException } = this.#tally;
    return new RolloutError(
      `gather: at most ${this.#allowed} of ${rolloutsTotal} rollouts may fail (maxExceptions ${maxExceptions}), got ${exceptions}; ${last}`,
      { cause: firstException, details: { exceptions, maxExceptions, rolloutsTotal } },
    );
  }

  #finish(group: number): void {
    this.#tally.finishRollout(group);
    if (this.signal.aborted) return;
    const progress = this.#tally.progress();
    this.#bar?.update(progress);
    this.#options.onProgress?.(progress);
  }
}

function allowedExceptions(maxExceptions: number, rollouts: number): number {
  if (Number.isInteger(maxExceptions) && maxExceptions >= 0) return maxExceptions;
  if (maxExceptions > 0 && maxExceptions < 1) return Math.floor(maxExceptions * rollouts);
  throw new ConfigError(`gather: maxExceptions must be a count or a share between 0 and 1, got ${maxExceptions}`);
}

function describeException(error: unknown): RolloutException {
  return error instanceof Error
    ? { type: error.name, message: error.message }
    : { type: typeof error, message: String(error) };
}
