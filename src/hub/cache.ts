/**
 * The cache folder of one repository, in the layout of Python's huggingface_hub. Layer 2. No network.
 *   models--org--name/blobs/<checksum>            contents, named by SHA-256 (large files) or git's SHA-1
 *   models--org--name/refs/<branch or tag>        the commit it stood for when it was last asked
 *   models--org--name/snapshots/<commit>/<path>   links to blobs
 *   models--org--name/trees/<commit>.json         all files of the commit
 * Source: huggingface_hub file_download.py and _tree_cache.py. What Python fetched is found here, and the other way round.
 */
import { randomUUID } from 'node:crypto';
import { copyFile, mkdir, rename, rm, stat, symlink, writeFile } from 'node:fs/promises';
import { dirname, join, relative } from 'node:path';
import { getRepoFolderName } from '@huggingface/hub';
import { z } from 'zod';
import { isPresent, readTextFile } from '../formats/atomic-files.ts';
import { checkRelativePath, isCommit } from './model-id.ts';
import type { RemoteFile } from './requests.ts';

export interface RepoCache {
  readonly folder: string;
  /** Folder of a commit's files. */
  readonly snapshot: (commit: string) => string;
  readonly blob: (file: RemoteFile) => string;
  /** Where the locks of downloads lie. */
  readonly lock: string;
}

const treeFile = z.object({
  format_version: z.literal(1),
  files: z.record(
    z.string(),
    z.object({
      size: z.number(),
      blob_id: z.string(),
      lfs_sha256: z.string().optional(),
      lfs_size: z.number().optional(),
      xet_hash: z.string().optional(),
    }),
  ),
});

export function openRepoCache(cacheDirectory: string, repo: string): RepoCache {
  const name = getRepoFolderName({ name: repo, type: 'model' });
  const folder = join(cacheDirectory, name);
  return {
    folder,
    snapshot: (commit) => join(folder, 'snapshots', commit),
    blob: ({ sha256, blobId }) => join(folder, 'blobs', sha256 ?? blobId),
    lock: join(cacheDirectory, '.locks', name, 'snapshot.art.lock'),
  };
}

/** The commit that a branch or tag stood for when it was last asked; null if it never was. */
export async function readRef(cache: RepoCache, revision: string): Promise<string | null> {
  if (isCommit(revision)) return revision;
  const text = (await readTextFile(join(cache.folder, 'refs', revision)))?.trim() ?? '';
  return isCommit(text) ? text : null;
}

export async function writeRef(cache: RepoCache, revision: string, commit: string): Promise<void> {
  if (isCommit(revision) || (await readRef(cache, revision)) === commit) return;
  await replaceFile(join(cache.folder, 'refs', revision), commit);
}

/** Null if the listing of that commit is not there or of another format. */
export async function readTree(cache: RepoCache, commit: string): Promise<RemoteFile[] | null> {
  const text = await readTextFile(treePath(cache, commit));
  const tree = text === null ? null : treeFile.safeParse(parseJson(text));
  if (!tree?.success) return null;
  return Object.entries(tree.data.files).map(([path, entry]) => ({
    path,
    size: entry.lfs_size ?? entry.size,
    blobId: entry.blob_id,
    sha256: entry.lfs_sha256 ?? null,
    xetHash: entry.xet_hash ?? null,
  }));
}

export async function writeTree(cache: RepoCache, commit: string, files: readonly RemoteFile[]): Promise<void> {
  const sorted = [...files].sort((a, b) => (a.path < b.path ? -1 : 1));
  const entries = sorted.map(({ path, size, blobId, sha256, xetHash }) => [
    path,
    {
      size,
      blob_id: blobId,
      ...(sha256 !== null && { lfs_sha256: sha256, lfs_size: size }),
      ...(xetHash !== null && { xet_hash: xetHash }),
    },
  ]);
  await replaceFile(
    treePath(cache, commit),
    JSON.stringify({ format_version: 1, files: Object.fromEntries(entries) }, null, 1),
  );
}

/** Whether a commit's file is there with the size it must have. A link whose blob was deleted counts as missing. */
export async function hasFile(cache: RepoCache, commit: string, file: RemoteFile): Promise<boolean> {
  return hasSize(join(cache.snapshot(commit), file.path), file.size);
}

/** Whether the content is there, though perhaps not as a file of this commit. */
export async function hasBlob(cache: RepoCache, file: RemoteFile): Promise<boolean> {
  return hasSize(cache.blob(file), file.size);
}

async function hasSize(path: string, size: number): Promise<boolean> {
  return (await isPresent(path)) && (await stat(path)).size === size;
}

/** Makes a blob appear as a file of the commit: a relative link, or a copy where the system has no links. */
export async function linkBlob(cache: RepoCache, commit: string, file: RemoteFile): Promise<void> {
  checkRelativePath(file.path, `${cache.folder}: file of the repository`);
  const pointer = join(cache.snapshot(commit), file.path);
  const blob = cache.blob(file);
  await mkdir(dirname(pointer), { recursive: true });
  await rm(pointer, { force: true });
  await symlink(relative(dirname(pointer), blob), pointer).catch((error: NodeJS.ErrnoException) =>
    error.code === 'EPERM' ? copyFile(blob, pointer) : Promise.reject(error),
  );
}

function treePath(cache: RepoCache, commit: string): string {
  return join(cache.folder, 'trees', `${commit}.json`);
}

/** The files of the hub's cache are small here and can be fetched again: renamed into place, not flushed. */
async function replaceFile(path: string, text: string): Promise<void> {
  await mkdir(dirname(path), { recursive: true });
  const temporary = `${path}.${randomUUID()}.tmp`;
  await writeFile(temporary, text);
  await rename(temporary, path);
}

function parseJson(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}
