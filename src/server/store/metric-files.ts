/**
 * `history.jsonl` and `timings.jsonl` of one model. Layer 5. Append-only, one JSON object a line; a row is one write and one fsync.
 * The same seed gives a byte-identical history.jsonl: keys stand in a fixed order, and whatever a clock or the operating system measures
 * goes to timings.jsonl. Logging the same content twice for a split and step adds nothing; other content adds a row and replaces none.
 */
import { readFile, truncate } from 'node:fs/promises';
import { join } from 'node:path';
import { DataError } from '../../core/errors.ts';
import { appendFileAtomic, isMissing } from '../../formats/atomic-files.ts';
import type { Metrics } from '../training/train-metrics.ts';
import { createSerialQueue } from './serial-queue.ts';

/** A row as in the file: `step`, `training_step`, `split`, then metrics by name; timings also hold `recorded_at`. */
export type MetricRow = Readonly<Record<string, number | string>>;

export interface MetricRows {
  readonly history: MetricRow;
  readonly timing: MetricRow;
}

export interface MetricFiles {
  /** Rows of history.jsonl, oldest first. */
  readonly history: () => readonly MetricRow[];
  /** Rows of timings.jsonl, oldest first. */
  readonly timings: () => readonly MetricRow[];
  /** Appends both rows unless history holds the same row already; tells whether it did. */
  readonly append: (rows: MetricRows) => Promise<boolean>;
  /** Appends those of two stored rows that their files lack, e.g. because the process died before writing them. */
  readonly complete: (rows: MetricRows) => Promise<void>;
}

/** `step`, `training_step` and `split`: a row of no more than these says nothing. */
const headFields = 3;

/** Whether a metric is measured by a clock or of the process, so that it differs between two runs of one seed. */
export function isMeasured(name: string): boolean {
  return /^(time|throughput|engine)\//.test(name) || /(^|[/_])(duration|latency|rss|recorded_at)(_[a-z]+)?$/.test(name);
}

/** Splits metrics into the two rows. Values that are not finite are left out and named to `onWarning`. */
export function createRows(
  key: { readonly split: string; readonly step: number },
  metrics: Readonly<Metrics>,
  recordedAt: Date,
  onWarning: (message: string) => void,
): MetricRows {
  const head = { step: key.step, training_step: key.step, split: key.split };
  const history: Record<string, number | string> = { ...head };
  const timing: Record<string, number | string> = { ...head, recorded_at: recordedAt.toISOString() };
  const dropped: string[] = [];
  for (const name of Object.keys(metrics).sort()) {
    const value = metrics[name]!;
    if (Object.hasOwn(timing, name)) {
      throw new DataError(
        `metric ${name}: the name is reserved for every row's own field; give the metric another name`,
      );
    }
    if (!Number.isFinite(value)) dropped.push(`${name} = ${value}`);
    else (isMeasured(name) ? timing : history)[name] = value;
  }
  if (dropped.length > 0) {
    onWarning(
      `metrics of ${key.split}, step ${key.step}: only finite numbers are stored, left out ${dropped.join(', ')}`,
    );
  }
  return { history, timing };
}

/**
 * Opens both files of a model's folder. A last line without its newline, which a killed process leaves behind, is cut off.
 * Throws DataError naming file and line for any other line that is not a row.
 */
export async function openMetricFiles(directory: string): Promise<MetricFiles> {
  const historyPath = join(directory, 'history.jsonl');
  const timingsPath = join(directory, 'timings.jsonl');
  const history = [...(await readRows(historyPath))];
  const historyLines = new Set(history.map((row) => JSON.stringify(row)));
  const timings = [...(await readRows(timingsPath))];
  const timingLines = new Set(timings.map((row) => JSON.stringify(row)));
  const enqueue = createSerialQueue();
  const addHistory = async (row: MetricRow): Promise<void> => {
    if (Object.keys(row).length <= headFields || !(await addLine(historyPath, historyLines, row))) return;
    history.push(row);
  };
  const addTiming = async (row: MetricRow): Promise<void> => {
    if (await addLine(timingsPath, timingLines, row)) timings.push(row);
  };
  return {
    history: () => history,
    timings: () => timings,
    append: (rows) =>
      enqueue(async () => {
        if (historyLines.has(JSON.stringify(rows.history))) return false;
        await addHistory(rows.history);
        await addTiming(rows.timing);
        return true;
      }),
    complete: (rows) =>
      enqueue(async () => {
        await addHistory(rows.history);
        await addTiming(rows.timing);
      }),
  };
}

/** Appends a row that is not there yet; tells whether it did. */
async function addLine(path: string, lines: Set<string>, row: MetricRow): Promise<boolean> {
  const line = JSON.stringify(row);
  if (lines.has(line)) return false;
  await appendFileAtomic(path, `${line}\n`);
  lines.add(line);
  return true;
}

async function readRows(path: string): Promise<MetricRow[]> {
  let bytes: Buffer;
  try {
    bytes = await readFile(path);
  } catch (error) {
    if (isMissing(error)) return [];
    throw error;
  }
  const wholeBytes = bytes.lastIndexOf(0x0a) + 1;
  if (wholeBytes < bytes.length) await truncate(path, wholeBytes);
  const text = bytes.subarray(0, wholeBytes).toString('utf8');
  return text
    .split('\n')
    .slice(0, -1)
    .map((line, index) => parseRow(line, `${path}:${index + 1}`));
}

function parseRow(line: string, where: string): MetricRow {
  try {
    const value: unknown = JSON.parse(line);
    if (typeof value === 'object' && value !== null && !Array.isArray(value)) return value as MetricRow;
  } catch {
    // Reported below, together with JSON that is no row.
  }
  throw new DataError(`${where}: must be a JSON object, got ${line.slice(0, 80)}; remove the line to go on`);
}
