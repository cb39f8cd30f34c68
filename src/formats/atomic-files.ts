/**
 * Files and folders that a reader sees whole or not at all. Layer 1.
 * Written under a temporary name beside the target, flushed to the disk, then renamed (atomic within one file system).
 */
import { randomUUID } from 'node:crypto';
import { mkdir, open, readFile, rename, rm, stat, statfs } from 'node:fs/promises';
import { basename, dirname, join, resolve } from 'node:path';
import { DataError, messageOf, StorageError } from '../core/errors.ts';

/** Writes the parts one after another as one file, replacing an older one. */
export async function writeFileAtomic(path: string, parts: readonly (Uint8Array | string)[]): Promise<void> {
  await replaceFileAtomic(path, async (temporary) => {
    const file = await open(temporary, 'wx');
    try {
      for (const part of parts) await file.writeFile(part);
      await file.sync();
    } finally {
      await file.close();
    }
  });
}

/** Calls `write` with a name that is free; it makes and flushes the file, which then becomes `path`, replacing an older one. */
export async function replaceFileAtomic(path: string, write: (temporary: string) => Promise<void>): Promise<void> {
  const temporary = temporaryBeside(path);
  try {
    await write(temporary);
    await rename(temporary, path);
  } catch (error) {
    await rm(temporary, { force: true });
    throw await toStorageError(path, error);
  }
  await syncFolder(dirname(path));
}

/** Calls `fill` with an empty temporary folder, which becomes `directory`. Throws DataError if `directory` exists. */
export async function writeFolderAtomic<T>(directory: string, fill: (temporary: string) => Promise<T>): Promise<T> {
  if (await isPresent(directory)) throw new DataError(`folder to write: must not exist yet, got ${directory}`);
  const target = resolve(directory);
  const temporary = temporaryBeside(target);
  try {
    await mkdir(temporary, { recursive: true });
    const result = await fill(temporary);
    await syncFolder(temporary);
    await rename(temporary, target);
    await syncFolder(dirname(target));
    return result;
  } catch (error) {
    await rm(temporary, { recursive: true, force: true });
    throw await toStorageError(target, error);
  }
}

/** Adds text to the end of a file and flushes it; a file that cannot take all of it is left as it was. Throws StorageError. */
export async function appendFileAtomic(path: string, text: string): Promise<void> {
  try {
    const file = await open(path, 'a');
    try {
      const { size } = await file.stat();
      try {
        await file.writeFile(text);
        await file.sync();
      } catch (error) {
        await file.truncate(size);
        throw error;
      }
    } finally {
      await file.close();
    }
  } catch (error) {
    throw await toStorageError(path, error);
  }
}

/** What the system says when there is no room: the disk, the user's share of it, or the largest file a process may write. */
const fullCodes = ['ENOSPC', 'EDQUOT', 'EFBIG'];
const forbiddenCodes = ['EACCES', 'EPERM', 'EROFS'];

/** A StorageError that names the path where the system refused a write; any other error as it is. */
export async function toStorageError(path: string, error: unknown): Promise<unknown> {
  const code = (error as { code?: unknown } | null)?.code;
  const isFull = fullCodes.some((full) => full === code);
  if (!isFull && !forbiddenCodes.some((forbidden) => forbidden === code)) return error;
  const freeBytes = await statfs(dirname(path)).then(
    ({ bavail, bsize }) => bavail * bsize,
    () => null,
  );
  const mend = isFull ? `; ${freeBytes ?? 'unknown'} bytes are free there, make room and try again` : '';
  return new StorageError(`${path}: must be writable, got ${messageOf(error)}${mend}`, {
    cause: error,
    details: { code: isFull ? 'disk_full' : 'not_writable', path, freeBytes },
  });
}

/** A JSON file's value. Throws DataError naming the file if it is missing or not JSON. */
export async function readJsonFile(path: string): Promise<unknown> {
  const text = await readTextFile(path);
  if (text === null) throw new DataError(`${path}: file is missing`);
  try {
    return JSON.parse(text) as unknown;
  } catch (cause) {
    throw new DataError(`${path}: must be JSON, got ${messageOf(cause)}`, { cause });
  }
}

/** The text of a UTF-8 file; null if there is no such file. */
export async function readTextFile(path: string): Promise<string | null> {
  try {
    return await readFile(path, 'utf8');
  } catch (error) {
    if (isMissing(error)) return null;
    throw error;
  }
}

/** Two-space JSON with a final newline, as Python's `save_pretrained` writes it. */
export function formatJson(value: unknown): string {
  return `${JSON.stringify(value, null, 2)}\n`;
}

/** Whether an error says that there is no such file or folder (ENOENT). */
export function isMissing(error: unknown): boolean {
  return error instanceof Error && 'code' in error && error.code === 'ENOENT';
}

/** Whether a file or folder stands at the path. Throws what `stat` throws when that cannot be told. */
export async function isPresent(path: string): Promise<boolean> {
  try {
    await stat(path);
    return true;
  } catch (error) {
    if (isMissing(error)) return false;
    throw error;
  }
}

function temporaryBeside(path: string): string {
  return join(dirname(path), `.${basename(path)}.${randomUUID()}.tmp`);
}

/** Makes a rename durable. Windows cannot open folders, and its renames need no such call. */
async function syncFolder(path: string): Promise<void> {
  if (process.platform === 'win32') return;
  const folder = await open(path, 'r');
  try {
    await folder.sync();
  } finally {
    await folder.close();
  }
}
