/** Rows of a text file with one value a line, from any place of it. Layer 5. In memory is one row at a time. */
import type { FileHandle } from 'node:fs/promises';
import { DataError } from '../core/errors.ts';

export interface SftFileRow {
  /** Without the line's end. */
  readonly bytes: Buffer;
  /** Where it begins, bytes. */
  readonly start: number;
  /** From 1. */
  readonly line: number;
}

/** A longer row is taken for a file that is no JSONL. */
const maxRowBytes = 64 * 2 ** 20;
const readBytes = 64 * 2 ** 10;
const newline = 0x0a;

/** Rows from byte `from` on, which begins line `linesBefore` + 1; blank lines are left out. Throws DataError for a row above 64 MiB. */
export async function* readRows(
  file: FileHandle,
  path: string,
  from = 0,
  linesBefore = 0,
): AsyncGenerator<SftFileRow, void> {
  let line = linesBefore;
  let start = from;
  let pending: Buffer[] = [];
  let pendingBytes = 0;
  const take = (rest: Buffer): SftFileRow | null => {
    const bytes = Buffer.concat([...pending, rest]);
    const row = { bytes, start, line: line + 1 };
    line += 1;
    start += bytes.length + 1;
    [pending, pendingBytes] = [[], 0];
    return isBlank(bytes) ? null : row;
  };
  for (let position = from; ; ) {
    // A buffer of its own each time: rows refer to it.
    const { bytesRead, buffer } = await file.read(Buffer.allocUnsafe(readBytes), 0, readBytes, position);
    if (bytesRead === 0) break;
    position += bytesRead;
    let chunk = buffer.subarray(0, bytesRead);
    for (let end = chunk.indexOf(newline); end >= 0; end = chunk.indexOf(newline)) {
      const row = take(chunk.subarray(0, end));
      chunk = chunk.subarray(end + 1);
      if (row !== null) yield row;
    }
    pending.push(chunk);
    pendingBytes += chunk.length;
    if (pendingBytes > maxRowBytes) {
      throw new DataError(`${path}:${line + 1}: a row must have at most ${maxRowBytes} bytes, got more`);
    }
  }
  const last = pendingBytes > 0 ? take(Buffer.alloc(0)) : null;
  if (last !== null) yield last;
}

function isBlank(bytes: Buffer): boolean {
  return bytes.every((byte) => byte === 0x20 || byte === 0x09 || byte === 0x0d);
}
