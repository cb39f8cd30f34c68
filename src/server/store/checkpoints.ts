/**
 * Checkpoints of one model: `checkpoints/<step>/` with the engine's files and `checkpoint.json`. Layer 5.
 * Written under a temporary name, flushed, then renamed: the rename is the commit point of a training step. Before the engine reads a
 * checkpoint, size and SHA-256 of every file are checked. Metric rows travel along, so that history can be completed after a crash.
 */
import { randomUUID } from 'node:crypto';
import { mkdir, open, readdir, rename, rm, stat, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { z } from 'zod';
import { CheckpointError, messageOf, StorageError } from '../../core/errors.ts';
import { formatJson, isMissing, readJsonFile, toStorageError } from '../../formats/atomic-files.ts';
import { hashFile } from '../../formats/file-facts.ts';
import { type CheckpointManifest, checkpointManifest, isLastPart } from './checkpoint-manifest.ts';
import { openRemovedCheckpoints, type RemovalReason } from './removed-checkpoints.ts';

const manifestName = 'checkpoint.json';
const temporaryPrefix = '.tmp-';
export interface StoredCheckpoint {
  readonly directory: string;
  readonly manifest: CheckpointManifest;
}

export interface CheckpointStore {
  /** All checkpoints, by ascending step. */
  readonly list: () => readonly StoredCheckpoint[];
  readonly newest: () => StoredCheckpoint | undefined;
  /** The last checkpoint of a call that is done; its folder may be gone. */
  readonly findByKey: (idempotencyKey: string) => StoredCheckpoint | undefined;
  /** What a call has made so far, done or not, in order. */
  readonly partsByKey: (idempotencyKey: string) => readonly StoredCheckpoint[];
  /** The number of the step to come: no step that ever was has it. */
  readonly nextStep: () => number;
  /** Commits a checkpoint whose engine files `fill` writes into the folder it is given. */
  readonly commit: (
    manifest: Omit<CheckpointManifest, 'formatVersion' | 'files'>,
    fill: (directory: string) => Promise<void>,
  ) => Promise<StoredCheckpoint>;
  /** Gives up checkpoints, newest first, so that being cut off leaves a run at a step between; `discard` moves or deletes a folder. */
  readonly remove: (
    steps: readonly number[],
    reason: RemovalReason,
    discard: (checkpoint: StoredCheckpoint) => Promise<void>,
  ) => Promise<void>;
  /** Puts a whole checkpoint from elsewhere beside the others; `place` puts its files where it is told. */
  readonly add: (manifest: CheckpointManifest, place: (name: string, target: string) => Promise<void>) => Promise<void>;
  /** What a step was whose checkpoint was given up. */
  readonly removedManifest: (step: number) => CheckpointManifest | undefined;
  /** Reads the folder again, e.g. after a checkpoint was put back. Throws CheckpointError as opening does. */
  readonly refresh: () => Promise<void>;
}

/**
 * Opens a `checkpoints` folder: removes what unfinished saves left, reads every checkpoint.json, and checks the files of the newest one.
 * Throws CheckpointError naming the damaged file, and the newest intact step to go back to.
 */
export async function openCheckpoints(directory: string): Promise<CheckpointStore> {
  await mkdir(directory, { recursive: true });
  for (const name of await readdir(directory)) {
    if (name.startsWith(temporaryPrefix)) await rm(join(directory, name), { recursive: true, force: true });
  }
  const removed = await openRemovedCheckpoints(directory);
  let stored = await readStored(directory);
  /** With those whose training lives on in later steps. */
  const byKey = (key: string): StoredCheckpoint[] => {
    const present = stored.filter(({ manifest }) => manifest.idempotencyKey === key);
    const isPresent = (step: number): boolean => present.some(({ manifest }) => manifest.step === step);
    const gone = removed.list().flatMap(({ manifest, reason }) => {
      if (manifest.idempotencyKey !== key || reason === 'rolledBack' || isPresent(manifest.step)) return [];
      return [{ directory: join(directory, folderName(manifest.step)), manifest }];
    });
    return [...gone, ...present].sort((a, b) => a.manifest.step - b.manifest.step);
  };
  return {
    list: () => stored,
    newest: () => stored.at(-1),
    findByKey: (key) => byKey(key).find(({ manifest }) => isLastPart(manifest)),
    partsByKey: byKey,
    nextStep: () => {
      const gone = removed.list().map(({ manifest }) => manifest.step);
      return gone.reduce((highest, step) => Math.max(highest, step), stored.at(-1)?.manifest.step ?? -1) + 1;
    },
    commit: async (manifest, fill) => {
      const checkpoint = await writeCheckpoint(directory, manifest, fill);
      stored.push(checkpoint);
      return checkpoint;
    },
    remove: async (steps, reason, discard) => {
      const chosen = stored.filter(({ manifest }) => steps.includes(manifest.step)).reverse();
      for (const checkpoint of chosen) {
        await removed.add(checkpoint.manifest, reason);
        await discard(checkpoint);
        stored = stored.filter((other) => other !== checkpoint);
      }
    },
    add: async (manifest, place) => {
      const temporary = join(directory, `${temporaryPrefix}${manifest.step}-${randomUUID()}`);
      try {
        await placeCheckpoint(temporary, manifest, place);
        await rename(temporary, join(directory, folderName(manifest.step)));
      } catch (error) {
        await rm(temporary, { recursive: true, force: true });
        throw await toStorageError(directory, error);
      }
      await flush(directory);
      stored = await readStored(directory);
    },
    removedManifest: (step) => removed.list().findLast(({ manifest }) => manifest.step === step)?.manifest,
    refresh: async () => {
      stored = await readStored(directory);
    },
  };
}

/** Every checkpoint of a folder by ascending step, the newest verified. */
async function readStored(directory: string): Promise<StoredCheckpoint[]> {
  const stored: StoredCheckpoint[] = [];
  const steps = await listSteps(directory);
  for (const step of steps) {
    const path = join(directory, folderName(step));
    try {
      const checkpoint = { directory: path, manifest: await readManifest(path, step) };
      if (step === steps.at(-1)) await verifyCheckpoint(checkpoint);
      stored.push(checkpoint);
    } catch (error) {
      throw await withNewestIntact(error, directory, path, steps);
    }
  }
  return stored;
}

/**
 * One verified checkpoint of a `checkpoints` folder, which is left as it is: a server may be writing it. Throws CheckpointError if
 * there is none of this step or a file of it differs.
 */
export async function readCheckpoint(directory: string, step: number | 'newest'): Promise<StoredCheckpoint> {
  const steps = await listSteps(directory);
  const wanted = step === 'newest' ? (steps.at(-1) ?? -1) : step;
  if (!steps.includes(wanted)) {
    const there = steps.length === 0 ? 'none' : `steps ${steps.join(', ')}`;
    throw new CheckpointError(`${directory}: must hold a checkpoint of step ${step}, got ${there}`);
  }
  const path = join(directory, folderName(wanted));
  const checkpoint = { directory: path, manifest: await readManifest(path, wanted) };
  await verifyCheckpoint(checkpoint);
  return checkpoint;
}

/** Steps of a `checkpoints` folder, ascending; none if there is no such folder. */
export async function listSteps(directory: string): Promise<number[]> {
  const names = await readdir(directory).catch((error: unknown) => {
    if (isMissing(error)) return [];
    throw error;
  });
  return names
    .filter((name) => /^\d{4,}$/.test(name))
    .map(Number)
    .sort((a, b) => a - b);
}

/** Fills a checkpoint's folder, whose files `place` puts where it is told, and checks them. Not atomic. */
export async function placeCheckpoint(
  folder: string,
  manifest: CheckpointManifest,
  place: (name: string, target: string) => Promise<void>,
): Promise<void> {
  await mkdir(folder, { recursive: true });
  for (const name of Object.keys(manifest.files)) {
    await place(name, join(folder, name));
    await flush(join(folder, name));
  }
  await verifyCheckpoint({ directory: folder, manifest });
  await writeFile(join(folder, manifestName), formatJson(manifest), { flush: true });
  await flush(folder);
}

/** Compares size and SHA-256 of every file with the manifest. Throws CheckpointError naming the first that differs. */
export async function verifyCheckpoint({ directory, manifest }: StoredCheckpoint): Promise<void> {
  for (const [name, expected] of Object.entries(manifest.files)) {
    const path = join(directory, name);
    const got = await describeFile(path).catch((error: unknown) => {
      if (isMissing(error)) throw new CheckpointError(`${path}: file of the checkpoint is missing`, { cause: error });
      throw error;
    });
    if (got.bytes !== expected.bytes) {
      throw new CheckpointError(`${path}: must have ${expected.bytes} bytes, got ${got.bytes}`);
    }
    if (got.sha256 !== expected.sha256) {
      throw new CheckpointError(`${path}: SHA-256 must be ${expected.sha256}, got ${got.sha256}`);
    }
  }
}

async function writeCheckpoint(
  parent: string,
  manifest: Omit<CheckpointManifest, 'formatVersion' | 'files'>,
  fill: (directory: string) => Promise<void>,
): Promise<StoredCheckpoint> {
  const target = join(parent, folderName(manifest.step));
  const temporary = join(parent, `${temporaryPrefix}${manifest.step}-${randomUUID()}`);
  try {
    await mkdir(temporary);
    await fill(temporary);
    const files: CheckpointManifest['files'] = {};
    for (const name of (await readdir(temporary)).sort()) {
      const path = join(temporary, name);
      await flush(path);
      files[name] = await describeFile(path);
    }
    const whole: CheckpointManifest = { formatVersion: 1, ...manifest, files };
    await writeFile(join(temporary, manifestName), formatJson(whole), { flush: true });
    await flush(temporary);
    await rename(temporary, target);
    await flush(parent);
    return { directory: target, manifest: whole };
  } catch (error) {
    await rm(temporary, { recursive: true, force: true });
    const cause = await toStorageError(target, error);
    const details = cause instanceof StorageError ? cause.details : {};
    throw new CheckpointError(`checkpoint ${target}: could not be written: ${messageOf(cause)}`, { cause, details });
  }
}

/** `checkpoint.json` of a checkpoint's folder. Throws CheckpointError if it is damaged or of another step. */
export async function readManifest(directory: string, step: number): Promise<CheckpointManifest> {
  const path = join(directory, manifestName);
  let json: unknown;
  try {
    json = await readJsonFile(path);
  } catch (cause) {
    throw new CheckpointError(messageOf(cause), { cause });
  }
  const parsed = checkpointManifest.safeParse(json);
  if (!parsed.success) throw new CheckpointError(`${path}: ${z.prettifyError(parsed.error)}`);
  if (parsed.data.step !== step) {
    throw new CheckpointError(`${path}: step must be that of the folder, ${step}, got ${parsed.data.step}`);
  }
  return parsed.data;
}

async function withNewestIntact(
  error: unknown,
  directory: string,
  damaged: string,
  steps: readonly number[],
): Promise<unknown> {
  if (!(error instanceof CheckpointError)) return error;
  let intact: number | null = null;
  for (const step of [...steps].reverse()) {
    const path = join(directory, folderName(step));
    try {
      await verifyCheckpoint({ directory: path, manifest: await readManifest(path, step) });
      intact = step;
      break;
    } catch {
      // Also damaged: look further back.
    }
  }
  const mend =
    intact === null
      ? 'no checkpoint is intact'
      : `newest intact step: ${intact}; move ${damaged} away to go on without it`;
  return new CheckpointError(`${error.message} (${mend})`, {
    cause: error,
    details: { damaged, newestIntactStep: intact },
  });
}

async function describeFile(path: string): Promise<{ bytes: number; sha256: string }> {
  const sha256 = await hashFile(path);
  return { bytes: (await stat(path)).size, sha256 };
}

/** Makes a file, or the names in a folder, durable. Windows cannot open folders, and its renames need no such call. */
async function flush(path: string): Promise<void> {
  if (process.platform === 'win32' && (await stat(path)).isDirectory()) return;
  const file = await open(path, 'r');
  try {
    // Windows flushes only files opened for writing; the engine's files there are flushed by the system in time.
    if (process.platform !== 'win32') await file.sync();
  } finally {
    await file.close();
  }
}

/** Name of a checkpoint's folder. */
export function folderName(step: number): string {
  return String(step).padStart(4, '0');
}
