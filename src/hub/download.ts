/**
 * Downloads one file into the cache: resumed where it stopped, checked against its checksum, then renamed into place. Layer 2.
 * The part lies beside the blob as `<checksum>.art.incomplete`; a name of our own, since Python appends to parts of its own names.
 */
import { createHash } from 'node:crypto';
import { type FileHandle, mkdir, open, rename, rm, statfs } from 'node:fs/promises';
import { dirname } from 'node:path';
import { AbortedError, ArtError, DataError, isTransient, StorageError } from '../core/errors.ts';
import { fileBytes, hashFile } from '../formats/file-facts.ts';
import type { HubSettings } from './options.ts';
import { openRemoteFile, pause, type RemoteFile, unreachable } from './requests.ts';

export interface Download {
  readonly repo: string;
  readonly commit: string;
  readonly file: RemoteFile;
  /** Path of the finished blob. */
  readonly blob: string;
  readonly settings: HubSettings;
  /** Called with what the file has so far, which may shrink when it must be fetched anew. */
  readonly onBytes: (bytes: number) => void;
}

/** Leaves the whole blob at its path, or a part to resume from. Throws DataError, ApiError, ConfigError, AbortedError. */
export async function downloadBlob(download: Download): Promise<void> {
  const { file, blob, repo } = download;
  const part = `${blob}.art.incomplete`;
  await mkdir(dirname(blob), { recursive: true });
  for (let isSecond = false; ; isSecond = true) {
    await receiveAll(download, part);
    const got = await hashBlob(part, file);
    if (got === (file.sha256 ?? file.blobId)) break;
    await rm(part, { force: true });
    // A part of an earlier run may have been damaged since; what was fetched in one go and is wrong will be wrong again.
    if (isSecond) {
      throw new DataError(
        `base model ${repo}: ${file.path} must have checksum ${file.sha256 ?? file.blobId}, got ${got}; what was received is deleted`,
        { details: { code: 'checksum_mismatch', param: 'base_model' } },
      );
    }
  }
  await rename(part, blob);
}

/** Bytes that are already here of a file whose blob is missing. */
export async function partBytes(blob: string): Promise<number> {
  return await fileBytes(`${blob}.art.incomplete`);
}

/** Throws StorageError with both numbers if the folder's disk has less room than that. */
export async function checkFreeSpace(folder: string, neededBytes: number, what: string): Promise<void> {
  const free = await freeBytes(folder);
  if (free < neededBytes) throw diskFull(what, folder, neededBytes, free);
}

async function receiveAll(download: Download, part: string): Promise<void> {
  const { file, settings } = download;
  const what = `base model ${download.repo}: ${file.path}`;
  for (let failures = 0; ; ) {
    const before = await fileBytes(part);
    if (before > file.size) await rm(part, { force: true });
    else if (before === file.size && before > 0) return;
    try {
      await receive(download, part);
      return;
    } catch (error) {
      if (isDiskFull(error)) {
        await rm(part, { force: true });
        throw diskFull(what, dirname(part), file.size, await freeBytes(dirname(part)));
      }
      if (settings.signal.aborted) throw new AbortedError(`${what}: download was given up`, { cause: error });
      if (!isTransient(error)) throw error;
      failures = (await fileBytes(part)) > before ? 0 : failures + 1;
      if (failures > settings.maxRetries) throw error;
      await pause(failures, settings);
    }
  }
}

/** One request, from where the part ends. */
async function receive(download: Download, part: string): Promise<void> {
  const { repo, commit, file, settings, onBytes } = download;
  const what = `base model ${repo}: ${file.path}`;
  const silence = createSilenceTimer(settings);
  const target = await open(part, 'a');
  try {
    const offset = (await target.stat()).size;
    const response = await silence.guard(what, () =>
      openRemoteFile(repo, commit, file.path, offset, settings, silence.signal),
    );
    const isResumed = response.status === 206 && startOfRange(response) === offset;
    if (!isResumed && offset > 0) await target.truncate(0);
    if (response.status === 416) throw unreachable(what, settings, new Error('the part was no prefix of the file'));
    let bytes = isResumed ? offset : 0;
    onBytes(bytes);
    const reader = response.body?.getReader();
    for (;;) {
      const chunk = await silence.guard(what, async () => reader?.read());
      if (chunk === undefined || chunk.done) break;
      bytes += chunk.value.byteLength;
      if (bytes > file.size) throw new DataError(`${what}: must have ${file.size} bytes, got more`);
      await writeAll(target, chunk.value);
      onBytes(bytes);
    }
    if (bytes < file.size)
      throw unreachable(what, settings, new Error(`the connection ended at byte ${bytes} of ${file.size}`));
    await target.sync();
  } finally {
    silence.stop();
    await target.close();
  }
}

interface SilenceTimer {
  readonly signal: AbortSignal;
  /** Runs one wait with the clock set to zero; failures of the connection become errors that may be tried again. */
  readonly guard: <T>(what: string, wait: () => Promise<T>) => Promise<T>;
  /** Ends the connection. */
  readonly stop: () => void;
}

function createSilenceTimer(settings: HubSettings): SilenceTimer {
  const controller = new AbortController();
  const onAbort = (): void => controller.abort(settings.signal.reason);
  if (settings.signal.aborted) onAbort();
  settings.signal.addEventListener('abort', onAbort, { once: true });
  return {
    signal: controller.signal,
    guard: async (what, wait) => {
      const { silenceTimeoutMs } = settings;
      const timer = setTimeout(
        () => controller.abort(new Error(`nothing within ${silenceTimeoutMs} ms`)),
        silenceTimeoutMs,
      );
      try {
        return await wait();
      } catch (error) {
        if (error instanceof ArtError) throw error;
        throw unreachable(what, settings, controller.signal.aborted ? controller.signal.reason : error);
      } finally {
        clearTimeout(timer);
      }
    },
    stop: () => {
      settings.signal.removeEventListener('abort', onAbort);
      controller.abort();
    },
  };
}

async function writeAll(target: FileHandle, bytes: Uint8Array): Promise<void> {
  for (let written = 0; written < bytes.byteLength; ) {
    written += (await target.write(bytes, written)).bytesWritten;
  }
}

/** SHA-256 of a large file, git's SHA-1 of a small one: whatever the hub names the file by. */
async function hashBlob(path: string, file: RemoteFile): Promise<string> {
  return file.sha256 === null ? hashFile(path, createHash('sha1').update(`blob ${file.size}\0`)) : hashFile(path);
}

function startOfRange(response: Response): number {
  return Number(/^bytes (\d+)-/.exec(response.headers.get('content-range') ?? '')?.[1] ?? Number.NaN);
}

async function freeBytes(folder: string): Promise<number> {
  const { bavail, bsize } = await statfs(folder);
  return bavail * bsize;
}

function isDiskFull(error: unknown): boolean {
  const { code } = error as NodeJS.ErrnoException;
  return code === 'ENOSPC' || code === 'EDQUOT';
}

function diskFull(what: string, folder: string, neededBytes: number, free: number): StorageError {
  return new StorageError(
    `${what}: ${neededBytes} bytes must fit on the disk of ${folder}, got ${free} free; make room, or set HF_HUB_CACHE to another disk`,
    { details: { code: 'disk_full', param: 'base_model', neededBytes, freeBytes: free, path: folder } },
  );
}
