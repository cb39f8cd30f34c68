/** Where an export goes: free, or given free by `force`; with room for it; whole or not at all. Layer 5. */
import { randomUUID } from 'node:crypto';
import { mkdir, readdir, realpath, rename, rm, stat, statfs } from 'node:fs/promises';
import { basename, dirname, join, resolve, sep } from 'node:path';
import { ConfigError, messageOf, StorageError } from '../core/errors.ts';
import { isMissing, isPresent, replaceFileAtomic, toStorageError, writeFolderAtomic } from '../formats/atomic-files.ts';
import type { Policy } from './find-policy.ts';

export interface Output {
  /** Absolute. */
  readonly path: string;
  readonly kind: 'file' | 'folder';
  /** Replaces what an earlier export left there. */
  readonly isForced: boolean;
}

/** Files by which a folder is known as a model's or an adapter's: nothing else is ever replaced. */
const folderMarks = ['config.json', 'adapter_config.json'];

/** Throws ConfigError if something stands there that may not be replaced. */
export async function checkOutput({ path, kind, isForced }: Output): Promise<void> {
  const there = await stat(path).catch((error: unknown) => {
    if (isMissing(error)) return null;
    throw new ConfigError(`export: out must be a path that can be made, got ${path} (${messageOf(error)})`, {
      cause: error,
    });
  });
  if (there === null) return;
  if (!isForced)
    throw new ConfigError(`export: out must not exist yet, got ${path}; --force replaces it`, { details: { path } });
  if (kind === 'file') {
    if (!there.isFile())
      throw new ConfigError(`export: out must be a file, got the folder ${path}`, { details: { path } });
    return;
  }
  const entries = there.isDirectory() ? await readdir(path, { withFileTypes: true }) : [];
  const isModel = entries.some(({ name }) => folderMarks.includes(name)) && entries.every((entry) => entry.isFile());
  if (!isModel) {
    throw new ConfigError(`export: --force replaces only a folder of a model or an adapter, got ${path}`, {
      details: { path },
    });
  }
}

/** Throws ConfigError if the output would stand in place of, in or around what the export reads, `--force` or not. */
export async function checkApart(
  output: Output,
  { base, runDirectory }: Pick<Policy, 'base' | 'runDirectory'>,
): Promise<void> {
  const path = await realPathOf(output.path);
  for (const [what, source] of [
    ['the base model', base.path],
    ["the run's folder", runDirectory],
  ] as const) {
    const read = await realPathOf(resolve(source));
    if (path !== read && !path.startsWith(read + sep) && !read.startsWith(path + sep)) continue;
    throw new ConfigError(`export: out must stand apart from ${what} ${source}, got ${output.path}`, {
      details: { path: output.path },
    });
  }
}

/** With the links of its folders followed; what does not exist yet keeps its name. */
async function realPathOf(path: string): Promise<string> {
  if (await isPresent(path)) return realpath(path);
  const folder = dirname(path);
  return folder === path ? path : join(await realPathOf(folder), basename(path));
}

/** Throws StorageError, before anything is written, if the disk has less room than `bytes`. */
export async function checkRoom({ path }: Output, bytes: number): Promise<void> {
  let folder = dirname(path);
  while (!(await isPresent(folder))) folder = dirname(folder);
  const { bavail, bsize } = await statfs(folder);
  const free = bavail * bsize;
  if (free >= bytes) return;
  throw new StorageError(
    `export: ${path} needs ${bytes} bytes of free disk space, got ${free}; make room or choose another --out`,
    {
      details: { code: 'disk_full', path, neededBytes: bytes, freeBytes: free },
    },
  );
}

/** Calls `fill` with a temporary path beside the output, which then takes its place. Throws StorageError if the system refuses; nothing is left then. */
export async function writeOutput(output: Output, fill: (temporary: string) => Promise<void>): Promise<void> {
  const { path, kind } = output;
  await mkdir(dirname(path), { recursive: true }).catch(async (error: unknown) => {
    throw await toStorageError(path, error);
  });
  if (kind === 'file') await replaceFileAtomic(path, fill);
  else if (await isPresent(path)) await replaceFolder(path, fill);
  else await writeFolderAtomic(path, fill);
}

/** A folder cannot be renamed over another: for a moment the old one has another name, and is put back if the new one cannot come. */
async function replaceFolder(path: string, fill: (temporary: string) => Promise<void>): Promise<void> {
  const fresh = resolve(dirname(path), `.export-${randomUUID()}`);
  const old = resolve(dirname(path), `.replaced-${randomUUID()}`);
  await writeFolderAtomic(fresh, fill);
  await rename(path, old);
  try {
    await rename(fresh, path);
  } catch (error) {
    await rename(old, path);
    await rm(fresh, { recursive: true, force: true });
    throw error;
  }
  await rm(old, { recursive: true, force: true });
}
