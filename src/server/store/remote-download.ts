/** Downloads one file of a checkpoint: resumed where it stopped, checked against its SHA-256, then renamed into place. Layer 5. */
import { open, rename, rm } from 'node:fs/promises';
import { AbortedError, ArtError, DataError, isTransient } from '../../core/errors.ts';
import { pause } from '../../core/wait.ts';
import { toStorageError } from '../../formats/atomic-files.ts';
import { fileBytes, hashFile } from '../../formats/file-facts.ts';
import type { RemoteFile, RemoteStore, UploadOptions } from './remote-store.ts';
import { connectionFailed } from './s3-client.ts';

/** Whether a file is at the path, whole. */
export async function isWhole(path: string, { bytes, sha256 }: RemoteFile): Promise<boolean> {
  return (await fileBytes(path)) === bytes && (await hashFile(path)) === sha256;
}

/** Leaves the whole file at the path, or a part beside it to resume from. Throws DataError if the bytes are wrong, ApiError, AbortedError. */
export async function downloadFile(
  store: RemoteStore,
  file: RemoteFile,
  path: string,
  options: UploadOptions,
): Promise<void> {
  const part = `${path}.part`;
  for (let isSecond = false; ; isSecond = true) {
    await receiveAll(store, file, part, options);
    const got = await hashFile(part);
    if (got === file.sha256) break;
    await rm(part, { force: true });
    options.onBytes(-file.bytes);
    // A part of an earlier try may be damaged; what came in one go and is wrong will be wrong again.
    if (isSecond) {
      throw new DataError(
        `${store.place}/${file.name}: SHA-256 must be ${file.sha256}, got ${got}; what was received is deleted`,
        {
          details: { code: 'checksum_mismatch' },
        },
      );
    }
  }
  await rename(part, path);
}

async function receiveAll(store: RemoteStore, file: RemoteFile, part: string, options: UploadOptions): Promise<void> {
  const { limits } = store;
  const { signal, onBytes } = options;
  onBytes(Math.min(await fileBytes(part), file.bytes));
  for (let failures = 0; ; ) {
    const before = await fileBytes(part);
    if (before > file.bytes) await rm(part, { force: true });
    if (before === file.bytes) return;
    try {
      await receive(store, file, part, options);
      return;
    } catch (error) {
      const what = `${store.place}/${file.name}`;
      if (signal.aborted) throw new AbortedError(`${what}: download was given up`, { cause: error });
      if (!isTransient(error)) throw await toStorageError(part, error);
      failures = (await fileBytes(part)) > before ? 0 : failures + 1;
      if (failures > limits.maxRetries) throw error;
      await pause(limits.retryDelayMs * 2 ** failures, signal);
    }
  }
}

/** One request, from where the part ends. */
async function receive(store: RemoteStore, file: RemoteFile, part: string, options: UploadOptions): Promise<void> {
  const { onBytes, signal } = options;
  const what = `${store.place}/${file.name}`;
  const silence = new AbortController();
  const limitMs = store.limits.silenceTimeoutMs;
  const guard = async <T>(wait: () => Promise<T>): Promise<T> => {
    const timer = setTimeout(() => silence.abort(), limitMs);
    try {
      return await wait();
    } catch (error) {
      if (error instanceof ArtError) throw error;
      throw connectionFailed(what, silence.signal.aborted ? new Error(`nothing within ${limitMs} ms`) : error);
    } finally {
      clearTimeout(timer);
    }
  };
  const target = await open(part, 'a');
  try {
    const offset = (await target.stat()).size;
    const response = await store.open(file.name, offset, AbortSignal.any([signal, silence.signal]));
    const start = Number(/^bytes (\d+)-/.exec(response.headers.get('content-range') ?? '')?.[1] ?? Number.NaN);
    const isResumed = response.status === 206 && start === offset;
    if (!isResumed && offset > 0) {
      await target.truncate(0);
      onBytes(-offset);
    }
    let bytes = isResumed ? offset : 0;
    const reader = response.body?.getReader();
    for (;;) {
      const chunk = await guard(async () => reader?.read());
      if (chunk === undefined || chunk.done) break;
      bytes += chunk.value.byteLength;
      if (bytes > file.bytes) throw new DataError(`${what}: must have ${file.bytes} bytes, got more`);
      await target.writeFile(chunk.value);
      onBytes(chunk.value.byteLength);
    }
    if (bytes < file.bytes)
      throw connectionFailed(what, new Error(`the connection ended at byte ${bytes} of ${file.bytes}`));
    await target.sync();
  } finally {
    silence.abort(); // ends the connection, if it is open still
    await target.close();
  }
}
