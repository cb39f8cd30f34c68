/**
 * Rows of trajectories as Parquet columns. Nested data is JSON text, which DuckDB and Polars read as strings; what queries need most
 * often also has a column of its own: messages, `metric_<name>` and `metadata_<name>`. Only the others are read back.
 */
import type { ColumnSource } from 'hyparquet-writer';
import * as z from 'zod';
import { DataError } from '../core/errors.ts';
import { completionTokens, messagesOf, type Row, type RowEntry, type TrajectoryRow } from './trajectory-row.ts';

type Scalar = string | number | boolean | null;

const metrics = z.record(z.string(), z.union([z.number(), z.boolean()]));
const metadata = z.record(z.string(), z.union([z.string(), z.number(), z.boolean(), z.null()]));
const entry = z.custom<RowEntry>(
  (value) =>
    z.union([z.looseObject({ message: z.object() }), z.looseObject({ choice: z.object() })]).safeParse(value).success,
);
const tools = z.array(z.custom<object>((value) => typeof value === 'object' && value !== null)).nullable();
const place = { model: z.string(), split: z.string(), step: z.int().min(0), group: z.int().min(0) };
const shared = { metrics, metadata, logs: z.array(z.string()) };

const trajectoryRow = z.object({
  kind: z.literal('trajectory'),
  ...place,
  trajectory: z.int().min(0),
  reward: z.number(),
  turnRewards: z.array(z.number()),
  entries: z.array(entry),
  tools,
  additionalHistories: z.array(z.object({ entries: z.array(entry), tools })),
  ...shared,
});
const groupRow = z.object({
  kind: z.literal('group'),
  ...place,
  exceptions: z.array(z.looseObject({ type: z.string(), message: z.string() })),
  ...shared,
});
const row = z.discriminatedUnion('kind', [trajectoryRow, groupRow]);

/** Columns that hold JSON text, and the fields of a row that they hold. */
const jsonColumns = {
  entries: 'entries',
  tools: 'tools',
  additional_histories: 'additionalHistories',
  turn_rewards: 'turnRewards',
  exceptions: 'exceptions',
  metrics: 'metrics',
  metadata: 'metadata',
  logs: 'logs',
} as const;

/** Columns with a type of their own. `group` is a word of SQL. */
const plainColumns = {
  kind: ['kind', 'STRING'],
  model: ['model', 'STRING'],
  split: ['split', 'STRING'],
  step: ['step', 'INT32'],
  group_number: ['group', 'INT32'],
  trajectory_number: ['trajectory', 'INT32'],
  reward: ['reward', 'DOUBLE'],
} as const;

/** Throws DataError for a row that breaks its type, such as a reward or a metric that is not finite. */
export function toColumns(rows: readonly Row[]): ColumnSource[] {
  for (const [index, item] of rows.entries()) checkRow(item, `trajectories: row ${index}`);
  const valuesOf = (field: string): unknown[] =>
    rows.map((item) => (item as unknown as Record<string, unknown>)[field] ?? null);
  const trajectories = rows.map((item): TrajectoryRow | null => (item.kind === 'trajectory' ? item : null));
  const ofTrajectories = <T>(read: (item: TrajectoryRow) => T): (T | null)[] =>
    trajectories.map((item) => (item === null ? null : read(item)));
  return [
    ...Object.entries(plainColumns).map(
      ([name, [field, type]]): ColumnSource => ({ name, type, data: valuesOf(field) }),
    ),
    { name: 'completion_tokens', type: 'INT32', data: ofTrajectories(completionTokens) },
    { name: 'messages', type: 'STRING', data: ofTrajectories((item) => JSON.stringify(messagesOf(item))) },
    ...keyedColumns(
      'metric',
      trajectories.map((item) => item?.metrics ?? {}),
    ),
    ...keyedColumns(
      'metadata',
      trajectories.map((item) => item?.metadata ?? {}),
    ),
    ...Object.entries(jsonColumns).map(
      ([name, field]): ColumnSource => ({
        name,
        type: 'STRING',
        data: rows.map((item) =>
          field in item ? JSON.stringify((item as unknown as Record<string, unknown>)[field]) : null,
        ),
      }),
    ),
  ];
}

/** A row from the columns that `toColumns` made of it; other columns are not looked at. Throws DataError that names row and field. */
export function fromColumns(columns: Readonly<Record<string, unknown>>, index: number): Row {
  const where = `trajectories: row ${index}`;
  const fields: Record<string, unknown> = {};
  for (const [name, [field]] of Object.entries(plainColumns)) {
    const value = columns[name];
    if (value != null) fields[field] = typeof value === 'bigint' ? Number(value) : value;
  }
  for (const [name, field] of Object.entries(jsonColumns)) {
    const text = columns[name];
    if (text == null) continue;
    try {
      fields[field] = typeof text === 'string' ? JSON.parse(text) : text;
    } catch (cause) {
      throw new DataError(`${where}: column ${name} must hold JSON, got ${String(text).slice(0, 80)}`, { cause });
    }
  }
  return checkRow(fields, where);
}

/** Also of what a run's files hold. Throws DataError that begins with `where`. */
export function checkRow(value: unknown, where: string): Row {
  const parsed = row.safeParse(value);
  if (parsed.success) return parsed.data as Row;
  const issue = parsed.error.issues[0];
  throw new DataError(`${where}: ${issue?.path.join('.') ?? ''}: ${issue?.message ?? 'is not a row'}`);
}

/** One column for each name: numbers or booleans where all values are, text otherwise. */
function keyedColumns(prefix: string, records: readonly Readonly<Record<string, Scalar>>[]): ColumnSource[] {
  const names = [...new Set(records.flatMap((record) => Object.keys(record)))].sort();
  return names.map((key) => {
    const values = records.map((record) => record[key] ?? null);
    const kinds = new Set(values.filter((value) => value !== null).map((value) => typeof value));
    const kind = kinds.size === 1 ? [...kinds][0] : 'string';
    const name = `${prefix}_${key}`;
    if (kind === 'number') return { name, type: 'DOUBLE', data: values };
    if (kind === 'boolean') return { name, type: 'BOOLEAN', data: values };
    return { name, type: 'STRING', data: values.map((value) => (value === null ? null : String(value))) };
  });
}
