/** `art history`: the rows of a run's history as a table. Layer 6. Reads the file; no server is needed. */
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { Command } from 'commander';
import { DataError } from '../core/errors.ts';

/** Shown first where present; other metrics on request. */
const defaultMetrics = ['reward', 'win', 'exception_rate'];

/** Prints to standard output. The action throws DataError if the file cannot be read. */
export function createHistoryCommand(): Command {
  return new Command('history')
    .description("Print a run's curve: one line a step and split.")
    .argument('<directory>', 'folder of the run, which holds history.jsonl')
    .option('--split <split>', 'only this split')
    .option('--metrics <names>', 'metrics to show, separated by commas; without their split', defaultMetrics.join(','))
    .action(async (directory: string, options: { readonly split?: string; readonly metrics: string }) => {
      const rows = parseHistory(await readHistory(directory));
      const shown = options.split === undefined ? rows : rows.filter((row) => row.split === options.split);
      console.log(formatHistory(shown, options.metrics.split(',')));
    });
}

type Row = Readonly<Record<string, unknown>>;

async function readHistory(directory: string): Promise<string> {
  const path = join(directory, 'history.jsonl');
  return readFile(path, 'utf8').catch((cause: unknown) => {
    throw new DataError(`history: ${path} must be readable`, { cause });
  });
}

/** A last line without its end is being written, or was cut: it is left out. */
export function parseHistory(text: string): Row[] {
  const lines = text.split('\n').slice(0, -1);
  return lines.map((line, index) => {
    try {
      return JSON.parse(line) as Row;
    } catch (cause) {
      throw new DataError(`history: line ${index + 1} must be JSON, got ${line.slice(0, 80)}`, { cause });
    }
  });
}

/** A table of `step`, `split` and the metrics, which rows name `<split>/<metric>` or `<metric>`; columns without a value are left out. */
export function formatHistory(rows: readonly Row[], metrics: readonly string[]): string {
  if (rows.length === 0) return '(no rows)';
  const metricOf = (row: Row, name: string): unknown => row[`${String(row.split)}/${name}`] ?? row[name];
  const columns = metrics.filter((name) => rows.some((row) => metricOf(row, name) !== undefined));
  const table = [
    ['step', 'split', ...columns],
    ...rows.map((row) => [row.step, row.split, ...columns.map((name) => metricOf(row, name))].map(formatCell)),
  ];
  const widths = table[0]?.map((_, column) => Math.max(...table.map((line) => line[column]?.length ?? 0))) ?? [];
  return table.map((line) => line.map((cell, column) => cell.padStart(widths[column] ?? 0)).join('  ')).join('\n');
}

function formatCell(value: unknown): string {
  if (typeof value !== 'number') return String(value ?? '');
  return Number.isInteger(value) ? String(value) : value.toPrecision(4);
}
