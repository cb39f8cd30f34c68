/** Rows of a run as lines of JSON, on this computer. Layer 6. */
import { mkdir, rename, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { refuseUnknownKeys } from '../core/options.ts';
import type {
  Tracker,
  TrackerConfig,
  TrackerRow,
  TrackerRun,
  TrackerSink,
  TrackerTrajectories,
} from '../sdk/tracker.ts';
import { createTracker, TRACKER_OPTION_NAMES, type TrackerOptions } from '../sdk/tracker-queue.ts';
import { type AppendFile, endOfLines, openAppendFile } from './append-file.ts';
import { checkDirectory, toFolderName } from './tracker-folder.ts';

export interface JsonlTrackerOptions extends TrackerOptions {
  /** Files are written into `<directory>/<project>/<name>/`. */
  readonly directory: string;
  /** Also `trajectories.jsonl`, with messages, tools, metadata and logs. Default false: rewards and metrics alone. */
  readonly texts?: boolean;
}

/**
 * Writes `metrics.jsonl`, `trajectories.jsonl` and `config.json`. A line is flushed before it counts as sent; a line that a crash cut is
 * removed when the run goes on. A value that is not finite is the string `NaN`, `Infinity` or `-Infinity`.
 */
export function jsonlTracker(options: JsonlTrackerOptions): Tracker {
  refuseUnknownKeys('jsonlTracker', options, [...TRACKER_OPTION_NAMES, 'directory', 'texts']);
  const { directory, texts = false, ...limits } = options;
  checkDirectory('jsonlTracker', directory);
  return createTracker(new JsonlSink(directory), { ...limits, trajectories: texts ? 'texts' : 'numbers' });
}

class JsonlSink implements TrackerSink {
  readonly name = 'jsonl';
  readonly #directory: string;
  #folder = '';
  #files = new Map<string, Promise<AppendFile>>();

  constructor(directory: string) {
    this.#directory = directory;
  }

  async start({ project, name, config }: TrackerRun): Promise<void> {
    this.#folder = join(this.#directory, toFolderName(project), toFolderName(name));
    await this.updateConfig(config);
  }

  async updateConfig(config: TrackerConfig): Promise<void> {
    await mkdir(this.#folder, { recursive: true });
    const path = join(this.#folder, 'config.json');
    await writeFile(`${path}.part`, `${JSON.stringify(config, null, 2)}\n`);
    await rename(`${path}.part`, path);
  }

  async logMetrics(rows: readonly TrackerRow[]): Promise<void> {
    await this.#append('metrics.jsonl', rows.map(formatRow));
  }

  async logTrajectories({ step, split, recordedAt, groups }: TrackerTrajectories): Promise<void> {
    const head = { training_step: step, split, recorded_at: recordedAt.toISOString() };
    const lines = groups.map((group, index) => JSON.stringify({ ...head, group: index, ...group }, writeNumber));
    await this.#append('trajectories.jsonl', lines);
  }

  async close(): Promise<void> {
    const files = [...this.#files.values()];
    this.#files.clear();
    for (const file of files) await (await file).close();
  }

  async #append(name: string, lines: readonly string[]): Promise<void> {
    let file = this.#files.get(name);
    if (file === undefined) {
      file = openAppendFile(join(this.#folder, name), endOfLines);
      this.#files.set(name, file);
      file.catch(() => this.#files.delete(name)); // so that the next try opens it again
    }
    await (await file).append(Buffer.from(lines.map((line) => `${line}\n`).join('')));
  }
}

function formatRow({ step, split, recordedAt, metrics }: TrackerRow): string {
  return JSON.stringify({ training_step: step, split, recorded_at: recordedAt.toISOString(), ...metrics }, writeNumber);
}

/** JSON has no NaN and no infinity; null would hide which it was. */
function writeNumber(_key: string, value: unknown): unknown {
  return typeof value === 'number' && !Number.isFinite(value) ? String(value) : value;
}
