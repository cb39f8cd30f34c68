/**
 * A model of the hub as a folder of this machine. Layer 2.
 * The commit is asked for, or known; what the cache lacks of it is fetched; the rest is used as it is. A commit that is whole in the
 * cache needs no network, whoever fetched it.
 */
import { join } from 'node:path';
import { ArtError, ConfigError, isTransient, messageOf } from '../core/errors.ts';
import { isPresent } from '../formats/atomic-files.ts';
import {
  hasBlob,
  hasFile,
  linkBlob,
  openRepoCache,
  type RepoCache,
  readRef,
  readTree,
  writeRef,
  writeTree,
} from './cache.ts';
import { withCacheLock } from './cache-lock.ts';
import { checkFreeSpace, downloadBlob, partBytes } from './download.ts';
import { checkRelativePath, formatModelId, type HubModelId, isCommit } from './model-id.ts';
import { chooseFirstFiles, chooseWeightFiles, listMissing } from './needed-files.ts';
import { type HubOptions, type HubSettings, readHubSettings } from './options.ts';
import { listRemoteFiles, type RemoteFile, resolveRevision } from './requests.ts';

export interface Snapshot {
  /** Folder of the model, or its .gguf file. */
  readonly path: string;
  /** What the revision stood for; `path` never changes its content. */
  readonly commit: string;
}

interface Fetch {
  readonly id: HubModelId;
  readonly cache: RepoCache;
  readonly settings: HubSettings;
}

/**
 * The model's files, fetched if need be. Throws ConfigError if there is no such model, it is gated, or it is not in the cache while
 * offline; ApiError if the hub fails, StorageError if the disk is full; DataError if what was received is not what the hub announced.
 */
export async function fetchSnapshot(id: HubModelId, options: HubOptions = {}): Promise<Snapshot> {
  const settings = await readHubSettings(options);
  try {
    return await findOrFetch(id, settings);
  } catch (error) {
    if (error instanceof ArtError || !(error instanceof Error && 'syscall' in error)) throw error;
    throw new ConfigError(
      `${settings.cacheDirectory}: must be a folder that can be read and written, got ${error.message}`,
      {
        cause: error,
        details: { param: 'base_model' },
      },
    );
  }
}

async function findOrFetch(id: HubModelId, settings: HubSettings): Promise<Snapshot> {
  const fetch: Fetch = { id, settings, cache: openRepoCache(settings.cacheDirectory, id.repo) };
  const cached = await readRef(fetch.cache, id.revision);
  if (cached !== null && (settings.isOffline || isCommit(id.revision))) {
    if ((await missingOf(fetch, cached)).length === 0) return snapshotOf(fetch, cached);
  }
  if (settings.isOffline) throw await notCached(fetch, cached);
  const [commit, files] = await lookUp(fetch).catch(async (error: unknown) => {
    if (cached === null || !isTransient(error) || (await missingOf(fetch, cached)).length > 0) throw error;
    settings.onWarning(`${messageOf(error)}; commit ${cached} of the cache is used`);
    return [cached, null] as const;
  });
  if (files !== null) await complete(fetch, commit, files);
  return snapshotOf(fetch, commit);
}

/** Commit and listing, the latter from the cache if it was ever asked for: it cannot change. */
async function lookUp({ id, cache, settings }: Fetch): Promise<readonly [string, readonly RemoteFile[]]> {
  const commit = isCommit(id.revision) ? id.revision : await resolveRevision(id.repo, id.revision, settings);
  const known = await readTree(cache, commit);
  if (known !== null) return [commit, known];
  const files = await listRemoteFiles(id.repo, commit, settings);
  chooseFirstFiles(
    id,
    files.map(({ path }) => path),
  );
  await writeTree(cache, commit, files);
  return [commit, files];
}

/** Required files that the cache lacks: by the commit's listing where there is one, else by what the files themselves name. */
async function missingOf({ id, cache }: Fetch, commit: string): Promise<string[]> {
  const snapshot = cache.snapshot(commit);
  if (!(await isPresent(snapshot))) return [snapshot];
  const tree = await readTree(cache, commit);
  if (tree === null) return listMissing(id, snapshot);
  const paths = tree.map(({ path }) => path);
  const first = await missingFiles(cache, commit, pick(tree, chooseFirstFiles(id, paths)));
  if (first.length > 0) return first.map(({ path }) => path);
  const weights = await missingFiles(cache, commit, pick(tree, await chooseWeightFiles(id, snapshot, paths)));
  return weights.map(({ path }) => path);
}

async function complete(fetch: Fetch, commit: string, files: readonly RemoteFile[]): Promise<void> {
  const { id, cache, settings } = fetch;
  if ((await missingOf(fetch, commit)).length > 0) {
    const onWait = (holder: string): void =>
      settings.onWarning(`base model ${formatModelId(id)}: waits for ${holder}, which downloads it`);
    await withCacheLock(cache.lock, settings.signal, onWait, async () => {
      const paths = files.map(({ path }) => path);
      await download(fetch, commit, pick(files, chooseFirstFiles(id, paths)));
      await download(fetch, commit, pick(files, await chooseWeightFiles(id, cache.snapshot(commit), paths)));
    });
  }
  await writeRef(cache, id.revision, commit);
}

/** Fetches what is missing of these files, one after another. */
async function download(fetch: Fetch, commit: string, files: readonly RemoteFile[]): Promise<void> {
  const { id, cache, settings } = fetch;
  const unlinked = await missingFiles(cache, commit, files);
  const wanted: RemoteFile[] = [];
  for (const file of unlinked) if (!(await hasBlob(cache, file))) wanted.push(file);
  const totalBytes = wanted.reduce((sum, { size }) => sum + size, 0);
  let neededBytes = totalBytes;
  for (const file of wanted) neededBytes -= await partBytes(cache.blob(file));
  if (wanted.length > 0) await checkFreeSpace(cache.folder, neededBytes, `base model ${formatModelId(id)}`);
  let finished = 0;
  for (const file of unlinked) {
    checkRelativePath(file.path, `base model ${id.repo}: file`);
    if (wanted.includes(file)) {
      const onBytes = (bytes: number): void =>
        settings.onProgress({ repo: id.repo, file: file.path, receivedBytes: finished + bytes, totalBytes });
      await downloadBlob({ repo: id.repo, commit, file, blob: cache.blob(file), settings, onBytes });
      finished += file.size;
    }
    await linkBlob(cache, commit, file);
  }
}

async function missingFiles(cache: RepoCache, commit: string, files: readonly RemoteFile[]): Promise<RemoteFile[]> {
  const missing: RemoteFile[] = [];
  for (const file of files) if (!(await hasFile(cache, commit, file))) missing.push(file);
  return missing;
}

function pick(files: readonly RemoteFile[], paths: readonly string[]): RemoteFile[] {
  return paths.flatMap((path) => files.filter((file) => file.path === path));
}

function snapshotOf({ id, cache }: Fetch, commit: string): Snapshot {
  const folder = cache.snapshot(commit);
  return { path: id.file === null ? folder : join(folder, id.file), commit };
}

async function notCached(fetch: Fetch, commit: string | null): Promise<ConfigError> {
  const { id, cache } = fetch;
  const missing = commit === null ? `no commit of ${id.revision}` : `no ${(await missingOf(fetch, commit)).join(', ')}`;
  return new ConfigError(
    `base model ${formatModelId(id)}: must be in the cache while HF_HUB_OFFLINE is set, got ${missing} in ${cache.folder}`,
    { details: { code: 'hub_offline', param: 'base_model' } },
  );
}
