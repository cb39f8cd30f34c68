/** Parts of model files, read without the rest. Layer 1. */
import { type FileHandle, open } from 'node:fs/promises';
import { DataError, messageOf } from '../core/errors.ts';

/** What is read of a tensor at once: large enough for a fast disk, small beside a weight matrix. A multiple of every number's size. */
export const pieceBytes = 4 * 2 ** 20;

/** The caller closes it. Throws DataError if the file cannot be read. */
export async function openForReading(path: string): Promise<FileHandle> {
  try {
    return await open(path, 'r');
  } catch (cause) {
    throw new DataError(`${path}: must be a readable file, got ${messageOf(cause)}`, { cause });
  }
}

/** Throws DataError if the file ends before, as one does that shrinks while it is read. */
export async function readRange(file: FileHandle, start: number, length: number, path: string): Promise<Uint8Array> {
  const bytes = new Uint8Array(length);
  for (let done = 0; done < length; ) {
    const { bytesRead } = await file.read(bytes, done, length - done, start + done);
    if (bytesRead === 0) {
      throw new DataError(`${path}: must have at least ${start + length} bytes, got ${start + done}`);
    }
    done += bytesRead;
  }
  return bytes;
}
