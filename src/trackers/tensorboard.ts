/** Rows of a run as an event file that TensorBoard reads, on this computer. Layer 6. */
import { hostname } from 'node:os';
import { join } from 'node:path';
import { refuseUnknownKeys } from '../core/options.ts';
import type { Tracker, TrackerConfig, TrackerRow, TrackerRun, TrackerSink } from '../sdk/tracker.ts';
import { createTracker, TRACKER_OPTION_NAMES, type TrackerOptions } from '../sdk/tracker-queue.ts';
import { type AppendFile, openAppendFile } from './append-file.ts';
import { encodeScalars, encodeText, encodeVersion } from './tensorboard-events.ts';
import { checkDirectory, toFolderName } from './tracker-folder.ts';

export interface TensorBoardTrackerOptions extends TrackerOptions {
  /** What `tensorboard --logdir` gets; files are written into `<directory>/<project>/<name>/`. */
  readonly directory: string;
}

/**
 * Writes scalars, the policy step as their step, and the configuration as a text. Each start writes a new file: TensorBoard joins the files of a
 * folder. Values are float32, as TensorBoard keeps them; NaN and infinity are written as they are. Trajectories are not.
 */
export function tensorBoardTracker(options: TensorBoardTrackerOptions): Tracker {
  refuseUnknownKeys('tensorBoardTracker', options, [...TRACKER_OPTION_NAMES, 'directory']);
  const { directory, ...limits } = options;
  checkDirectory('tensorBoardTracker', directory);
  return createTracker(new TensorBoardSink(directory), limits);
}

/** Of this process, so that no two files have one name. */
let files = 0;

class TensorBoardSink implements TrackerSink {
  readonly name = 'tensorboard';
  readonly #directory: string;
  #file: AppendFile | undefined;

  constructor(directory: string) {
    this.#directory = directory;
  }

  async start({ project, name, config }: TrackerRun): Promise<void> {
    await this.close(); // a start that failed may have left a file open
    const now = new Date();
    const seconds = Math.floor(now.getTime() / 1000);
    const fileName = `events.out.tfevents.${seconds}.${toFolderName(hostname())}.${process.pid}.${files++}.v2`;
    const path = join(this.#directory, toFolderName(project), toFolderName(name), fileName);
    this.#file = await openAppendFile(path, async () => 0);
    await this.#file.append(encodeVersion(now));
    await this.updateConfig(config);
  }

  async updateConfig(config: TrackerConfig): Promise<void> {
    const markdown = `    ${JSON.stringify(config, null, 2).replaceAll('\n', '\n    ')}`;
    await this.#file?.append(encodeText({ recordedAt: new Date(), step: 0 }, 'config', markdown));
  }

  async logMetrics(rows: readonly TrackerRow[]): Promise<void> {
    const records = rows.map(({ recordedAt, step, metrics }) => encodeScalars({ recordedAt, step }, metrics));
    await this.#file?.append(Buffer.concat(records));
  }

  async close(): Promise<void> {
    await this.#file?.close();
    this.#file = undefined;
  }
}
