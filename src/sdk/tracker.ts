/**
 * Trackers: where the rows of a run go beside its history. Layer 5, no protocol. What speaks to a tracker is a `TrackerSink`; the `Tracker`
 * around it (tracker-queue.ts) has a bounded queue, so that a tracker that is down, hangs or answers nonsense never stops or slows training.
 */
import { ApiError, ConfigError } from '../core/errors.ts';
import { isJsonObject } from '../core/json.ts';
import type { TrackedGroup } from './tracked-groups.ts';

/** What a tracker is told about a run before its first row. */
export interface TrackerRun {
  readonly project: string;
  /** Name of the model. The same name in the same project is the same run, also after a restart. */
  readonly name: string;
  /** JSON data: the model's settings and what `updateConfig` added. */
  readonly config: TrackerConfig;
}

export type TrackerConfig = Readonly<Record<string, unknown>>;

/** Metrics of one split at one policy step. Rows of earlier steps may follow those of later ones: an evaluation that took long. */
export interface TrackerRow {
  /** The policy step; trackers call it `training_step`. */
  readonly step: number;
  readonly split: string;
  /** Names with their section, as in `train/reward`. Values need not be finite: a sink sends them as they are or counts them as left out. */
  readonly metrics: Readonly<Record<string, number>>;
  readonly recordedAt: Date;
}

/** The trajectories of one row. */
export interface TrackerTrajectories {
  readonly step: number;
  readonly split: string;
  readonly groups: readonly TrackedGroup[];
  readonly recordedAt: Date;
}

/**
 * The side of a tracker that speaks its protocol. Calls come one after the other; one that throws is made again with the same argument, or
 * given up where the tracker refuses it for good (`isRefusal`). `signal` fires when the call takes too long; `onProgress` sets its clock back, after each part of
 * a call that sends several.
 */
export interface TrackerSink {
  /** As in `wandb`; in warnings and in the health. */
  readonly name: string;
  /** Opens or resumes the run. */
  start(run: TrackerRun, signal: AbortSignal): Promise<void>;
  /** Rows in the order they were logged; at most 500. */
  logMetrics(rows: readonly TrackerRow[], signal: AbortSignal, onProgress: () => void): Promise<void>;
  /** Left out: this tracker takes no trajectories. */
  logTrajectories?(trajectories: TrackerTrajectories, signal: AbortSignal, onProgress: () => void): Promise<void>;
  /** The whole configuration again, after `updateConfig`. */
  updateConfig?(config: TrackerConfig, signal: AbortSignal): Promise<void>;
  /** Ends the run, or closes the file. `start` may follow. */
  close?(signal: AbortSignal): Promise<void>;
}

export interface FlushOptions {
  /** Default 10 s. */
  readonly timeoutMs?: number;
  readonly signal?: AbortSignal | undefined;
}

export interface TrackerHealth {
  readonly name: string;
  /** Rows and batches of trajectories that the tracker has taken. */
  readonly sent: number;
  /** Waiting, those under way included. */
  readonly queued: number;
  /** Lost: pushed out of a full queue, refused by the tracker, or left when it was closed. */
  readonly dropped: number;
  /** The newest failure; null if there was none. It never holds a key. */
  readonly lastError: string | null;
  /** Whether the newest call succeeded; true before the first. */
  readonly isUp: boolean;
}

/** A tracker of one run. Its methods never wait for the tracker and never throw for what it does, but `flush` and `close`, which wait for a time. */
export interface Tracker {
  readonly name: string;
  /** Whether it takes trajectories, and the texts in them. */
  readonly trajectories: 'none' | 'numbers' | 'texts';
  /** Names the run; nothing is sent before its first row. Throws ConfigError if the tracker belongs to another run. */
  start(run: TrackerRun): void;
  logMetrics(row: TrackerRow): void;
  logTrajectories(trajectories: TrackerTrajectories): void;
  /** Adds to the run's configuration. Throws ConfigError for a value that differs from what is there. */
  updateConfig(config: TrackerConfig): void;
  /** Waits until all that was logged is sent, or the time is over; what is left then stays queued and is named in a warning. */
  flush(options?: FlushOptions): Promise<TrackerHealth>;
  /** As `flush`, and ends the run; what is left is lost. A row that is logged later opens the run again. */
  close(options?: FlushOptions): Promise<TrackerHealth>;
  health(): TrackerHealth;
}

/**
 * `current` with `update` merged into it, object by object. Throws ConfigError that names the first value that differs from the one set
 * before: a run's configuration does not change under the rows that were logged with it.
 */
export function mergeConfig(current: TrackerConfig, update: TrackerConfig, path = 'config'): TrackerConfig {
  const merged: Record<string, unknown> = { ...current };
  for (const [key, value] of Object.entries(update)) {
    const place = `${path}.${key}`;
    const before = Object.hasOwn(merged, key) ? merged[key] : undefined;
    if (before === undefined) merged[key] = toPlain(value, place);
    else if (isJsonObject(before) && isJsonObject(value)) merged[key] = mergeConfig(before, value, place);
    else if (JSON.stringify(before) !== JSON.stringify(value)) {
      throw new ConfigError(
        `tracker ${place}: must stay what it was set to, ${JSON.stringify(before)}, got ${JSON.stringify(value)}`,
      );
    }
  }
  return merged;
}

/** A copy that a caller's later changes do not reach. */
function toPlain(value: unknown, place: string): unknown {
  const text = JSON.stringify(value);
  if (text === undefined && value !== undefined) {
    throw new ConfigError(`tracker ${place}: must be JSON data, got a ${typeof value}`);
  }
  return text === undefined ? undefined : JSON.parse(text);
}

/** Statuses that do not say that this very content is wrong: no key, no access, no such run yet, too slow, too many. */
const LATER_STATUSES: ReadonlySet<number> = new Set([401, 403, 404, 408, 425, 429]);

/** Whether the tracker refuses what was sent, so that the same content must not be sent again. */
export function isRefusal(error: unknown): boolean {
  return error instanceof ApiError && error.status >= 400 && error.status < 500 && !LATER_STATUSES.has(error.status);
}
