/** What both gathers share: concurrency, time limits, counting of failures, progress, stopping. Layer 5. */
import { setMaxListeners } from 'node:events';
import pLimit, { type LimitFunction } from 'p-limit';
import { AbortedError, ConfigError, DataError, RolloutError } from '../core/errors.ts';
import { requireIntegers } from '../core/options.ts';
import { type RolloutException, Trajectory, TrajectoryGroup } from '../core/trajectory.ts';
import { pause } from '../core/wait.ts';
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
  /** Failures to bear, of rollouts and of `afterEach`: a count, or below 1 a share of all rollouts. One more rejects. Default 0. */
  readonly maxExceptions?: number;
  /** Rollouts that run at once; default 128. */
  readonly maxConcurrency?: number;
  /** Limit of one rollout; default none. */
  readonly timeoutMs?: number;
  readonly signal?: AbortSignal;
  /** After every rollout. */
  readonly onProgress?: (progress: GatherProgress) => void;
  /** After every failure, also of rollouts whose group is dropped. */
  readonly onException?: (exception: RolloutException) => void;
  /** Draw a progress bar on standard error; default: if that is a terminal. */
  readonly progress?: boolean;
}

/** Names of `GatherOptions`. */
export const gatherOptionNames: readonly string[] = Object.keys({
  description: true,
  maxExceptions: true,
  maxConcurrency: true,
  timeoutMs: true,
  signal: true,
  onProgress: true,
  onException: true,
  progress: true,
} satisfies { [K in keyof Required<GatherOptions>]: true });

type Work<T> = (context: RolloutContext) => Promise<T>;

/** How long a gather that stops waits for rollouts that were told, so that they can clean up; those that do not listen go on alone. */
const STOP_GRACE_MS = 1000;

/**
 * Starts all work of a gather and waits for it. `rollouts_P`: number of rollouts per group.
 * The first rejection of any work, and the caller's signal, stop the rest. `limit`: of concurrency, where several gathers share one.
 */
export async function runGather<T>(
  rollouts_P: readonly number[],
  options: GatherOptions,
  start: (run: GatherRun) => Promise<T>[],
  limit: LimitFunction = createLimit(options),
): Promise<T[]> {
  const run = new GatherRun(rollouts_P, options, limit);
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
    run.stop(error);
    await run.windDown();
    throw run.signal.reason;
  } finally {
    signal?.removeEventListener('abort', stop);
    run.end();
  }
}

/** Throws ConfigError on a `maxConcurrency` that is no positive integer. */
export function createLimit({ maxConcurrency = 128 }: Pick<GatherOptions, 'maxConcurrency'>): LimitFunction {
  requireIntegers('gather', { maxConcurrency }, 1);
  return pLimit(maxConcurrency);
}

/** A gather under way. */
export class GatherRun {
  readonly #controller = new AbortController();
  readonly #options: GatherOptions;
  readonly #limit: LimitFunction;
  readonly #tally: GatherTally;
  readonly #running = new Set<Promise<unknown>>();
  readonly #bar: ProgressBar | undefined;

  constructor(rollouts_P: readonly number[], options: GatherOptions, limit: LimitFunction) {
    const { maxExceptions = 0, description = 'gather', progress } = options;
    this.#options = options;
    this.#tally = new GatherTally(rollouts_P);
    allowedExceptions(maxExceptions, 0);
    this.#limit = limit;
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

  /** After `stop`: until what runs has settled, at most STOP_GRACE_MS. */
  async windDown(): Promise<void> {
    if (this.#running.size === 0) return;
    const settled = new AbortController();
    void Promise.allSettled(this.#running).then(() => settled.abort());
    await pause(STOP_GRACE_MS, settled.signal);
  }

  /** A group more than was known at the start; returns its index. */
  addGroup(rollouts: number): number {
    return this.#tally.addGroup(rollouts);
  }

  /** Work after the rollouts of a group, as a judge does; null when it failed, which counts as the failure of a rollout does. */
  async afterGroup<T>(what: string, work: () => T | Promise<T>): Promise<{ readonly result: T } | null> {
    try {
      return { result: await work() };
    } catch (error) {
      this.#bear(what, error);
      return null;
    }
  }

  /** The trajectory, or its failure, already counted. Rejects only when the whole gather stops. */
  async rollout(what: string, group: number, work: Work<Trajectory>): Promise<Trajectory | RolloutException> {
    const outcome = await this.#attempt(what, async (context) => {
      const trajectory: unknown = await work(context);
      if (trajectory instanceof Trajectory) return trajectory;
      throw new DataError(`${what}: a rollout must return a Trajectory, got ${typeof trajectory}`);
    });
    if (outcome instanceof Trajectory) this.#count(outcome);
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
    for (const trajectory of result ?? []) this.#count(trajectory);
    this.#finish(group);
    return result;
  }

  #attempt<T>(what: string, work: Work<T>): Promise<T | RolloutException> {
    const { timeoutMs = 0 } = this.#options;
    return this.#limit(async () => {
      try {
        return await withDeadline({ what, timeoutMs, signal: this.signal }, (signal) => this.#start(work, signal));
      } catch (error) {
        return this.#bear(what, error);
      }
    });
  }

  /** Once its time is up nobody waits for the work any more, whatever it does: it cannot finish twice. */
  #start<T>(work: Work<T>, signal: AbortSignal): Promise<T> {
    const running = Promise.resolve(work({ signal }));
    this.#running.add(running);
    const forget = (): boolean => this.#running.delete(running);
    running.then(forget, forget);
    return running;
  }

  /** Counts a failure; one too many stops the gather and is thrown. */
  #bear(what: string, error: unknown): RolloutException {
    if (this.signal.aborted) throw this.signal.reason;
    const exception = describeException(error);
    const count = this.#tally.addException(error);
    this.#options.onException?.(exception);
    const { maxExceptions = 0 } = this.#options;
    const allowed = allowedExceptions(maxExceptions, this.#tally.rolloutsTotal);
    if (count <= allowed) return exception;
    this.stop(this.#tooMany(count, allowed, `${what} failed with ${exception.type}: ${exception.message}`));
    throw this.signal.reason;
  }

  #count(trajectory: Trajectory): void {
    countCompletionTokens(trajectory);
    this.#tally.addTrajectory(trajectory);
  }

  #tooMany(exceptions: number, allowed: number, last: string): RolloutError {
    const { maxExceptions = 0 } = this.#options;
    const { rolloutsTotal, firstException } = this.#tally;
    return new RolloutError(
      `gather: at most ${allowed} of ${rolloutsTotal} rollouts may fail (maxExceptions ${maxExceptions}), got ${exceptions}; ${last}`,
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

/** A thrown value as data of its group. */
export function describeException(error: unknown): RolloutException {
  if (!(error instanceof Error)) return { type: typeof error, message: String(error) };
  const { name: type, message, stack } = error;
  return { type, message, ...(stack !== undefined && { stack }) };
}

/** Sets the metric `completion_tokens` where all choices tell their tokens, as our server's do, and the rollout did not set it. */
export function countCompletionTokens(trajectory: Trajectory): void {
  const counts = trajectory.allChoices().map((choice) => choice.art?.completion_tokens);
  if (counts.length === 0 || 'completion_tokens' in trajectory.metrics) return;
  if (counts.every((count) => count !== undefined)) {
    trajectory.metrics.completion_tokens = counts.reduce((sum, count) => sum + count, 0);
  }
}
