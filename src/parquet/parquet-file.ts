/** Parquet files of trajectories, which a reader sees whole or not at all. Source: apache.org's Parquet format, by hyparquet and its writer. */
import { readFile } from 'node:fs/promises';
import { parquetMetadata, parquetReadObjects } from 'hyparquet';
import { type KeyValue, parquetWriteBuffer } from 'hyparquet-writer';
import { DataError, messageOf } from '../core/errors.ts';
import { isMissing, writeFileAtomic } from '../formats/atomic-files.ts';
import { fromColumns, toColumns } from './parquet-columns.ts';
import type { Row } from './trajectory-row.ts';

/** Key of the file's own metadata, and the version of the columns. */
const versionKey = 'agent-reinforcement-trainer.trajectories';
const version = '1';

/** Writes rows as one Parquet file, replacing an older one. Throws DataError for a row that breaks its type, StorageError if it cannot be written. */
export async function writeTrajectories(path: string, rows: readonly Row[]): Promise<void> {
  const columnData = toColumns(rows);
  const buffer = parquetWriteBuffer({ columnData, kvMetadata: [{ key: versionKey, value: version }] });
  await writeFileAtomic(path, [new Uint8Array(buffer)]);
}

/** The rows that `writeTrajectories` wrote, in their order. Throws DataError if the file is missing or does not hold them. */
export async function readTrajectories(path: string): Promise<Row[]> {
  const bytes = await readFile(path).catch((cause: unknown) => {
    const rule = isMissing(cause) ? 'must exist' : 'must be readable';
    throw new DataError(`trajectories: ${path} ${rule}`, { cause });
  });
  const file = bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength) as ArrayBuffer;
  let objects: Record<string, unknown>[];
  try {
    const metadata = parquetMetadata(file);
    checkVersion(path, metadata.key_value_metadata);
    objects = await parquetReadObjects({ file, metadata });
  } catch (cause) {
    if (cause instanceof DataError) throw cause;
    throw new DataError(`trajectories: ${path} must be a Parquet file, got ${messageOf(cause)}`, { cause });
  }
  return objects.map((columns, index) => fromColumns(columns, index));
}

function checkVersion(path: string, pairs: readonly KeyValue[] = []): void {
  const found = pairs.find(({ key }) => key === versionKey)?.value;
  if (found === version) return;
  throw new DataError(
    `trajectories: ${path} must hold trajectories of version ${version}, as writeTrajectories writes them, got ${found ?? 'another table'}`,
  );
}
