/**
 * Files of tensors whose places are known before their values: the header is written first, each tensor then at its offset, in any
 * order, so that one tensor is in memory at a time. Layer 1.
 */
import { type FileHandle, open } from 'node:fs/promises';
import { DataError } from '../core/errors.ts';

/** What `layOut…` of a format returns. Bytes between header and tensors are zero. */
export interface TensorLayout {
  readonly header: Uint8Array;
  /** By name; offsets count from the begin of the file, in bytes. */
  readonly spans: ReadonlyMap<string, { readonly offset: number; readonly bytes: number }>;
  readonly totalBytes: number;
}

export interface TensorFile {
  /** Throws DataError if the tensor has no place here, has one already, or has another size. */
  readonly write: (name: string, data: Uint8Array) => Promise<void>;
  /** Flushes and closes. Throws DataError if a tensor was not written. */
  readonly finish: () => Promise<void>;
  /** Closes; the file stays as it is. Idempotent, also after `finish`. */
  readonly close: () => Promise<void>;
}

/** Makes the file, which must not exist yet. */
export async function createTensorFile(path: string, layout: TensorLayout): Promise<TensorFile> {
  const file = await open(path, 'wx');
  const missing = new Set(layout.spans.keys());
  let isOpen = true;
  const close = async (): Promise<void> => {
    if (!isOpen) return;
    isOpen = false;
    await file.close();
  };
  try {
    await writeAll(file, layout.header, 0);
    await file.truncate(layout.totalBytes);
  } catch (error) {
    await close();
    throw error;
  }
  return {
    write: async (name, data) => {
      const span = layout.spans.get(name);
      if (span === undefined || !missing.delete(name)) {
        throw new DataError(`${path}: must hold each of its tensors once, got ${name} in excess`);
      }
      if (data.length !== span.bytes) {
        throw new DataError(`${path}: ${name} must have ${span.bytes} bytes, got ${data.length}`);
      }
      await writeAll(file, data, span.offset);
    },
    finish: async () => {
      const [first] = missing;
      if (first !== undefined) throw new DataError(`${path}: every tensor must be written, missing ${first}`);
      await file.sync();
      await close();
    },
    close,
  };
}

async function writeAll(file: FileHandle, data: Uint8Array, offset: number): Promise<void> {
  // One write of Node.js is limited to 2³¹ − 1 bytes.
  const piece = 2 ** 26;
  for (let done = 0; done < data.length; ) {
    const { bytesWritten } = await file.write(data, done, Math.min(piece, data.length - done), offset + done);
    done += bytesWritten;
  }
}
