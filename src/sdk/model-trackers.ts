/** The trackers of one model: every row goes to each of them, once. Layer 5. */
import { ConfigError } from '../core/errors.ts';
import type { TrajectoryGroup } from '../core/trajectory.ts';
import { trackGroups } from './tracked-groups.ts';
import {
  type FlushOptions,
  mergeConfig,
  type Tracker,
  type TrackerConfig,
  type TrackerHealth,
  type TrackerRow,
} from './tracker.ts';

/** What is sent for a row; `groups` are the trajectories behind it. */
export interface TrackedRow extends Omit<TrackerRow, 'recordedAt'> {
  readonly groups?: readonly TrajectoryGroup[];
}

export class ModelTrackers {
  readonly #trackers: readonly Tracker[];
  #config: TrackerConfig;

  /** Throws ConfigError if a tracker is that of another run. Nothing is sent before the first row. */
  constructor(
    trackers: readonly Tracker[],
    run: { readonly project: string; readonly name: string },
    config: TrackerConfig,
  ) {
    const odd = trackers.find((tracker) => typeof tracker?.logMetrics !== 'function');
    if (odd !== undefined) {
      throw new ConfigError(
        `model ${run.name}: trackers must be Tracker objects, got ${typeof odd}; wrap a sink by createTracker`,
      );
    }
    this.#trackers = [...trackers];
    this.#config = mergeConfig({}, config);
    for (const tracker of this.#trackers) tracker.start({ project: run.project, name: run.name, config: this.#config });
  }

  /** Sends a row and the trajectories behind it, without waiting: for rows that neither `train` nor `log` sends. */
  logRow({ groups = [], ...row }: TrackedRow): void {
    const recordedAt = new Date();
    const { step, split } = row;
    const kinds = new Set(this.#trackers.map((tracker) => tracker.trajectories));
    const numbers = kinds.has('numbers') ? trackGroups(groups, false) : [];
    const texts = kinds.has('texts') ? trackGroups(groups, true) : [];
    for (const tracker of this.#trackers) {
      if (Object.keys(row.metrics).length > 0) tracker.logMetrics({ ...row, recordedAt });
      if (groups.length === 0 || tracker.trajectories === 'none') continue;
      tracker.logTrajectories({ step, split, groups: tracker.trajectories === 'texts' ? texts : numbers, recordedAt });
    }
  }

  /**
   * Adds to the configuration that trackers show for the run, object by object, also before its first row.
   * Throws ConfigError for a value that differs from the one that is there.
   */
  updateConfig(config: TrackerConfig): void {
    this.#config = mergeConfig(this.#config, config);
    for (const tracker of this.#trackers) tracker.updateConfig(config);
  }

  /** Adds `options` under `key` unless something is there: the options of a run's first call. */
  noteOptions(key: string, options: object): void {
    if (this.#trackers.length > 0 && !Object.hasOwn(this.#config, key)) this.updateConfig({ [key]: options });
  }

  /** Waits until all is sent, or the time is over; never throws for what a tracker does. */
  async flush(options: FlushOptions = {}): Promise<readonly TrackerHealth[]> {
    return Promise.all(this.#trackers.map((tracker) => tracker.flush(options)));
  }

  /** As `flush`, and ends the runs; what could not be sent is named in a warning. The backend's `close` does this. */
  async close(options: FlushOptions = {}): Promise<readonly TrackerHealth[]> {
    return Promise.all(this.#trackers.map((tracker) => tracker.close(options)));
  }

  health(): readonly TrackerHealth[] {
    return this.#trackers.map((tracker) => tracker.health());
  }
}
