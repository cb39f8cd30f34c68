/**
 * The `Tracker` around a `TrackerSink`: a bounded queue, one call at a time with a time limit, tries again with growing pauses. Layer 5.
 * Nothing here waits in the caller's way. A pause between two tries keeps no process alive; a call under way does, up to its limit.
 */
import { AbortedError, ApiError, ConfigError, messageOf } from '../core/errors.ts';
import { refuseUnknownKeys } from '../core/options.ts';
import { withDeadline } from './deadline.ts';
import {
  type FlushOptions,
  isRefusal,
  mergeConfig,
  type Tracker,
  type TrackerConfig,
  type TrackerHealth,
  type TrackerRow,
  type TrackerRun,
  type TrackerSink,
  type TrackerTrajectories,
} from './tracker.ts';

/** Options that every tracker has. */
export interface TrackerOptions {
  /** Longest time without an answer of the tracker; default 10 s. */
  readonly timeoutMs?: number;
  /** Rows that may wait; beyond, the oldest are dropped and counted. Default 1,000. */
  readonly maxQueuedRows?: number;
  /** Batches of trajectories that may wait, as above; default 8. */
  readonly maxQueuedTrajectories?: number;
  /** Pause before the second try; it doubles with each further one, up to `maxRetryDelayMs`. Default 1 s. */
  readonly retryDelayMs?: number;
  /** Default 60 s. */
  readonly maxRetryDelayMs?: number;
  /** Told once for each kind of failure; default console.warn. */
  readonly onWarning?: (message: string) => void;
}

export const TRACKER_OPTION_NAMES: readonly string[] = [
  'timeoutMs',
  'maxQueuedRows',
  'maxQueuedTrajectories',
  'retryDelayMs',
  'maxRetryDelayMs',
  'onWarning',
];

export interface CreateTrackerOptions extends TrackerOptions {
  /** What the sink gets of trajectories, where it takes them: `texts`, or rewards and metrics alone. Default `numbers`. */
  readonly trajectories?: 'none' | 'numbers' | 'texts';
}

/** Rows of one call. */
const MAX_BATCH_ROWS = 500;

type Phase = 'start' | 'updateConfig' | 'log' | 'close';

type Entry =
  | { readonly kind: 'row'; readonly row: TrackerRow }
  | { readonly kind: 'trajectories'; readonly trajectories: TrackerTrajectories };

/** A tracker from what speaks to it. Throws ConfigError for options out of range. */
export function createTracker(sink: TrackerSink, options: CreateTrackerOptions = {}): Tracker {
  refuseUnknownKeys(`tracker ${sink.name}`, options, [...TRACKER_OPTION_NAMES, 'trajectories']);
  return new QueuedTracker(sink, options);
}

class QueuedTracker implements Tracker {
  readonly name: string;
  readonly trajectories: Tracker['trajectories'];
  readonly #sink: TrackerSink;
  readonly #limits: Required<Omit<TrackerOptions, 'onWarning'>>;
  readonly #onWarning: (message: string) => void;
  readonly #warned = new Set<string>();
  #run: TrackerRun | undefined;
  #isOpen = false;
  #isConfigSent = true;
  #isEnding = false;
  #queue: Entry[] = [];
  #underWay: readonly Entry[] = [];
  #pump: Promise<void> | undefined;
  #stop = new AbortController();
  #wake: () => void = () => {};
  #phase: Phase = 'start';
  #failures = 0;
  #sent = 0;
  #dropped = 0;
  #lastError: string | null = null;

  constructor(sink: TrackerSink, options: CreateTrackerOptions) {
    const { trajectories = 'numbers', onWarning = (message: string) => console.warn(message), ...limits } = options;
    this.name = sink.name;
    this.trajectories = sink.logTrajectories === undefined ? 'none' : trajectories;
    this.#sink = sink;
    this.#onWarning = onWarning;
    this.#limits = {
      timeoutMs: 10_000,
      maxQueuedRows: 1000,
      maxQueuedTrajectories: 8,
      retryDelayMs: 1000,
      maxRetryDelayMs: 60_000,
      ...limits,
    };
    for (const [name, value] of Object.entries(this.#limits)) {
      if (!(Number.isFinite(value) && value > 0)) {
        throw new ConfigError(`tracker ${sink.name}: ${name} must be > 0, got ${value}`);
      }
    }
  }

  start(run: TrackerRun): void {
    const { project, name } = this.#run ?? run;
    if (project !== run.project || name !== run.name) {
      throw new ConfigError(
        `tracker ${this.name}: follows one run, ${project}/${name}; make another for ${run.project}/${run.name}`,
      );
    }
    if (this.#run === undefined) this.#run = { ...run, config: mergeConfig({}, run.config) };
    else this.updateConfig(run.config);
  }

  logMetrics(row: TrackerRow): void {
    this.#add({ kind: 'row', row: { ...row, metrics: { ...row.metrics } } });
  }

  logTrajectories(trajectories: TrackerTrajectories): void {
    if (this.trajectories !== 'none') this.#add({ kind: 'trajectories', trajectories });
  }

  updateConfig(config: TrackerConfig): void {
    const run = this.#startedRun();
    const merged = mergeConfig(run.config, config);
    if (JSON.stringify(merged) === JSON.stringify(run.config)) return;
    this.#run = { ...run, config: merged };
    if (!this.#isOpen) return;
    this.#isConfigSent = false;
    this.#resume();
  }

  async flush(options: FlushOptions = {}): Promise<TrackerHealth> {
    refuseUnknownKeys(`tracker ${this.name}: flush`, options, ['timeoutMs', 'signal']);
    this.#wake();
    const isDone = await this.#waitForPump(options);
    if (!isDone) this.#warn('flush', `${this.#describeWaiting()} could not be sent in time and stay queued`);
    return this.health();
  }

  async close(options: FlushOptions = {}): Promise<TrackerHealth> {
    refuseUnknownKeys(`tracker ${this.name}: close`, options, ['timeoutMs', 'signal']);
    this.#isEnding = true;
    this.#wake();
    this.#resume();
    if (!(await this.#waitForPump(options))) {
      const count = this.#queue.length + this.#underWay.length;
      const outcome = count === 0 ? 'its run could not be ended in time' : `lost: ${this.#describeWaiting()}`;
      this.#dropped += count;
      this.#queue = [];
      this.#stop.abort(new AbortedError(`tracker ${this.name}: closed`));
      this.#wake();
      this.#underWay = [];
      this.#stop = new AbortController();
      this.#pump = undefined;
      this.#warn('close', `closed; ${outcome}`);
    }
    this.#isOpen = false;
    this.#isEnding = false;
    return this.health();
  }

  health(): TrackerHealth {
    return {
      name: this.name,
      sent: this.#sent,
      queued: this.#queue.length + this.#underWay.length,
      dropped: this.#dropped,
      lastError: this.#lastError,
      isUp: this.#failures === 0,
    };
  }

  #startedRun(): TrackerRun {
    if (this.#run !== undefined) return this.#run;
    throw new ConfigError(`tracker ${this.name}: must be given to a model (trackers: [...]) or started first`);
  }

  #add(entry: Entry): void {
    this.#startedRun();
    this.#queue.push(entry);
    const limit = entry.kind === 'row' ? this.#limits.maxQueuedRows : this.#limits.maxQueuedTrajectories;
    const count = this.#queue.filter(({ kind }) => kind === entry.kind).length;
    if (count > limit) {
      this.#queue.splice(
        this.#queue.findIndex(({ kind }) => kind === entry.kind),
        1,
      );
      this.#dropped += 1;
      const what = entry.kind === 'row' ? 'rows' : 'batches of trajectories';
      this.#warn(
        `full ${entry.kind}`,
        `more than ${limit} ${what} wait; the oldest are dropped and counted in its health`,
      );
    }
    this.#resume();
  }

  #resume(): void {
    if (this.#pump !== undefined) return;
    const pump = this.#drain(this.#stop.signal).finally(() => {
      if (this.#pump === pump) this.#pump = undefined;
    });
    this.#pump = pump;
  }

  /** Sends until nothing waits. Never rejects. */
  async #drain(stop: AbortSignal): Promise<void> {
    await null; // what is logged in one go is sent in one call
    while (!stop.aborted) {
      try {
        if (!(await this.#sendNext(stop))) return;
        if (!stop.aborted) this.#failures = 0;
      } catch (error) {
        if (stop.aborted) return;
        this.#recordFailure(error);
        if (error instanceof ApiError && error.status === 404) this.#isOpen = false; // the run is gone: open it anew
        if (!isRefusal(error) || !this.#giveUp()) await this.#pause();
      }
    }
  }

  /**
   * Leaves out what the newest call brought and the tracker refuses: of several rows the half that holds the culprit is sought; one
   * alone is dropped. False where nothing can be left out, because the run itself could not be opened or ended.
   */
  #giveUp(): boolean {
    if (this.#phase === 'updateConfig') this.#isConfigSent = true;
    else if (this.#phase === 'log') {
      const [...batch] = this.#underWay;
      this.#underWay = batch.splice(0, Math.floor(batch.length / 2));
      if (this.#underWay.length === 0) this.#dropped += batch.length;
      else this.#queue.unshift(...batch);
    } else return false;
    return true;
  }

  /** One call of the sink; false when there is nothing to send. */
  async #sendNext(stop: AbortSignal): Promise<boolean> {
    const run = this.#startedRun();
    if (this.#underWay.length === 0) this.#underWay = this.#takeBatch();
    if (this.#underWay.length > 0 && !this.#isOpen) {
      await this.#call('start', stop, (signal) => this.#sink.start(run, signal));
      this.#isOpen = true;
      this.#isConfigSent = this.#run === run;
      return true;
    }
    if (!this.#isConfigSent) {
      await this.#call('updateConfig', stop, async (signal) => this.#sink.updateConfig?.(run.config, signal));
      this.#isConfigSent = this.#run === run;
      return true;
    }
    const batch = this.#underWay;
    if (batch.length > 0) {
      await this.#call('log', stop, (signal, restart) => this.#log(batch, signal, restart));
      this.#underWay = [];
      this.#sent += batch.length;
      return true;
    }
    if (!this.#isEnding || !this.#isOpen) return false;
    await this.#call('close', stop, async (signal) => this.#sink.close?.(signal));
    this.#isOpen = false;
    return false;
  }

  /** The oldest rows up to one call's worth, or one batch of trajectories; removed from the queue. */
  #takeBatch(): Entry[] {
    if (this.#queue[0]?.kind === 'trajectories') return this.#queue.splice(0, 1);
    const end = this.#queue.findIndex(({ kind }) => kind !== 'row');
    return this.#queue.splice(0, Math.min(end === -1 ? this.#queue.length : end, MAX_BATCH_ROWS));
  }

  async #log(batch: readonly Entry[], signal: AbortSignal, onProgress: () => void): Promise<void> {
    const rows = batch.flatMap((entry) => (entry.kind === 'row' ? [entry.row] : []));
    if (rows.length > 0) return this.#sink.logMetrics(rows, signal, onProgress);
    for (const entry of batch) {
      if (entry.kind === 'trajectories') await this.#sink.logTrajectories?.(entry.trajectories, signal, onProgress);
    }
  }

  #call(what: Phase, signal: AbortSignal, work: Parameters<typeof withDeadline<void>>[1]): Promise<void> {
    this.#phase = what;
    const { timeoutMs } = this.#limits;
    return withDeadline({ what: `tracker ${this.name}: ${what}`, timeoutMs, signal }, work);
  }

  #recordFailure(error: unknown): void {
    this.#failures += 1;
    this.#lastError = messageOf(error);
    const kind = error instanceof ApiError ? `status ${error.status}` : error instanceof Error ? error.name : 'unknown';
    const outcome = isRefusal(error) ? 'what it refuses is dropped' : 'rows wait and are sent later';
    this.#warn(kind, `${this.#lastError}; training goes on, ${outcome}`);
  }

  #warn(kind: string, message: string): void {
    if (this.#warned.has(kind)) return;
    this.#warned.add(kind);
    try {
      const text = message.startsWith(`tracker ${this.name}:`) ? message : `tracker ${this.name}: ${message}`;
      this.#onWarning(text);
    } catch {
      // A logger that fails must not stop training either.
    }
  }

  /** Until the next try, or `#wake`. */
  #pause(): Promise<void> {
    const { retryDelayMs, maxRetryDelayMs } = this.#limits;
    const delayMs = Math.min(retryDelayMs * 2 ** (this.#failures - 1), maxRetryDelayMs);
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, delayMs);
      timer.unref(); // a tracker that is down keeps no program alive
      this.#wake = () => {
        clearTimeout(timer);
        resolve();
      };
    });
  }

  /** False if the time was over, or the caller gave up, before all was sent. */
  async #waitForPump({ timeoutMs = 10_000, signal }: FlushOptions): Promise<boolean> {
    try {
      await withDeadline({ what: `tracker ${this.name}: flush`, timeoutMs, signal }, async () => {
        while (this.#pump !== undefined) await this.#pump;
      });
      return true;
    } catch (error) {
      if (error instanceof AbortedError) return false;
      throw error;
    }
  }

  /** As in `12 rows (steps 3–9) and 2 batches of trajectories`. */
  #describeWaiting(): string {
    const entries = [...this.#underWay, ...this.#queue];
    const rows = entries.flatMap((entry) => (entry.kind === 'row' ? [entry.row.step] : []));
    const batches = entries.length - rows.length;
    const steps = rows.length > 0 ? ` (steps ${Math.min(...rows)}–${Math.max(...rows)})` : '';
    return `${rows.length} rows${steps} and ${batches} batches of trajectories`;
  }
}
