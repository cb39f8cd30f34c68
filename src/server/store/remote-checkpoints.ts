/**
 * Copies a checkpoint to a place elsewhere, and back. Layer 5.
 * Every file is checked on both sides; what is there already with the same bytes is not sent again, so a copy that was cut off goes on
 * where it stopped. The manifest comes last: without it there is no copy.
 */
import { createHash } from 'node:crypto';
import { mkdir } from 'node:fs/promises';
import { join } from 'node:path';
import { z } from 'zod';
import { CheckpointError, ConfigError, DataError } from '../../core/errors.ts';
import { checkFreeSpace } from '../../hub/download.ts';
import { refuse } from '../../wire/errors.ts';
import type { TransferProgress, TransferResult } from '../../wire/transfers.ts';
import type { CheckpointManifest } from './checkpoint-manifest.ts';
import { type StoredCheckpoint, verifyCheckpoint } from './checkpoints.ts';
import { downloadFile, isWhole } from './remote-download.ts';
import { type RemoteFile, type RemoteManifest, type RemoteStore, remoteManifest } from './remote-store.ts';
import type { ModelFile } from './run-folder.ts';
import { weightsSha256 } from './step-result.ts';

export interface TransferContext {
  readonly onProgress: (progress: TransferProgress) => void;
  readonly signal: AbortSignal;
}

export interface PulledCheckpoint {
  readonly manifest: RemoteManifest;
  /** Where its files are. */
  readonly directory: string;
  readonly result: TransferResult;
}

/** Copies a checkpoint there. Throws CheckpointError if it is damaged here, ApiError 409 if another one of its step is there. */
export async function pushCheckpoint(
  store: RemoteStore,
  { directory, manifest }: StoredCheckpoint,
  model: ModelFile,
  { onProgress, signal }: TransferContext,
): Promise<TransferResult> {
  const files = filesOf(manifest);
  const totalBytes = sumBytes(files);
  onProgress({ stage: 'check', done_bytes: 0, total_bytes: totalBytes });
  await verifyCheckpoint({ directory, manifest });
  const there = store.isVersioned ? null : await store.readManifest(signal);
  if (there !== null) refuseOther(store.place, parseManifest(store.place, there), manifest);
  const missing: RemoteFile[] = [];
  for (const file of files) if (!(await store.has(file, signal))) missing.push(file);
  let doneBytes = totalBytes - sumBytes(missing);
  const onBytes = (bytes: number): void => {
    doneBytes += bytes;
    onProgress({ stage: 'copy', done_bytes: doneBytes, total_bytes: totalBytes });
  };
  onBytes(0);
  const withPaths = missing.map((file) => ({ ...file, path: join(directory, file.name) }));
  const whole: RemoteManifest = { format_version: 1, model, checkpoint: manifest };
  const place = await store.upload(withPaths, whole, { onBytes, signal });
  onProgress({ stage: 'finish', done_bytes: totalBytes, total_bytes: totalBytes });
  for (const file of missing) {
    if (await store.has(file, signal)) continue;
    throw new DataError(
      `${store.place}/${file.name}: must be there with ${file.bytes} bytes after it was sent, got another`,
    );
  }
  return describe(place, manifest, missing, true);
}

/** Fetches a checkpoint into a folder below `staging`, which a later try goes on with. Throws ConfigError if there is no such copy. */
export async function pullCheckpoint(
  store: RemoteStore,
  staging: string,
  { onProgress, signal }: TransferContext,
): Promise<PulledCheckpoint> {
  const json = await store.readManifest(signal);
  if (json === null) throw noCopy(store.place);
  const manifest = parseManifest(store.place, json);
  const files = filesOf(manifest.checkpoint);
  // Of the content, so that what was fetched of something else is never taken for it.
  const id = createHash('sha256').update(JSON.stringify(manifest)).digest('hex').slice(0, 32);
  const directory = join(staging, id);
  await mkdir(directory, { recursive: true });
  const totalBytes = sumBytes(files);
  onProgress({ stage: 'check', done_bytes: 0, total_bytes: totalBytes });
  const missing: RemoteFile[] = [];
  for (const file of files) if (!(await isWhole(join(directory, file.name), file))) missing.push(file);
  await checkFreeSpace(directory, sumBytes(missing), store.place);
  let doneBytes = totalBytes - sumBytes(missing);
  const onBytes = (bytes: number): void => {
    doneBytes += bytes;
    onProgress({ stage: 'copy', done_bytes: doneBytes, total_bytes: totalBytes });
  };
  for (const file of missing) await downloadFile(store, file, join(directory, file.name), { onBytes, signal });
  onProgress({ stage: 'finish', done_bytes: totalBytes, total_bytes: totalBytes });
  return { manifest, directory, result: describe(store.place, manifest.checkpoint, missing, true) };
}

export function noCopy(place: string): ConfigError {
  return new ConfigError(`${place}: must hold a checkpoint that was pushed there (manifest.json), got none`, {
    details: { code: 'remote_not_found', param: 'from' },
  });
}

function describe(
  place: string,
  manifest: CheckpointManifest,
  copied: readonly RemoteFile[],
  isNew: boolean,
): TransferResult {
  const files = filesOf(manifest);
  return {
    place,
    step: manifest.step,
    adapter_sha256: weightsSha256(manifest),
    files: files.length,
    bytes: sumBytes(files),
    skipped_files: files.length - copied.length,
    copied_bytes: sumBytes(copied),
    is_new: isNew,
  };
}

/** Another checkpoint under the same name would be destroyed. */
function refuseOther(place: string, there: RemoteManifest, manifest: CheckpointManifest): void {
  if (JSON.stringify(filesOf(there.checkpoint)) === JSON.stringify(filesOf(manifest))) return;
  const got = `one with adapter SHA-256 ${weightsSha256(there.checkpoint)}`;
  throw refuse(
    409,
    'remote_exists',
    `${place}: must be free or hold the same checkpoint, got ${got}; push under another prefix`,
    'to',
  );
}

/** Names become paths here, so they are checked. */
function parseManifest(place: string, json: unknown): RemoteManifest {
  const parsed = remoteManifest.safeParse(json);
  if (!parsed.success) throw new CheckpointError(`${place}/manifest.json: ${z.prettifyError(parsed.error)}`);
  for (const [name, { bytes, sha256 }] of Object.entries(parsed.data.checkpoint.files)) {
    const isName = /^[A-Za-z0-9_][\w.-]{0,199}$/.test(name) && !/^(manifest|checkpoint)\.json$|\.part$/.test(name);
    if (isName && bytes >= 0 && /^[0-9a-f]{64}$/.test(sha256)) continue;
    throw new CheckpointError(
      `${place}/manifest.json: files must have plain names, sizes and SHA-256, got ${JSON.stringify(name.slice(0, 80))}`,
    );
  }
  return parsed.data;
}

function filesOf({ files }: CheckpointManifest): RemoteFile[] {
  return Object.entries(files)
    .map(([name, { bytes, sha256 }]) => ({ name, bytes, sha256 }))
    .sort((a, b) => (a.name < b.name ? -1 : 1));
}

function sumBytes(files: readonly RemoteFile[]): number {
  return files.reduce((sum, { bytes }) => sum + bytes, 0);
}
