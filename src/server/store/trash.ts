/**
 * `<root>/<project>/trash/<id>/`: what was deleted, until it is purged: `item.json` says what it was, `content` is it. Layer 5.
 * Moving is a rename within one folder tree, so nothing is copied and a crash loses nothing: an item is in its place or in the trash.
 */
import { randomBytes } from 'node:crypto';
import { mkdir, readdir, rename, rm } from 'node:fs/promises';
import { dirname, isAbsolute, join, relative, resolve, sep } from 'node:path';
import { z } from 'zod';
import { ConfigError, DataError } from '../../core/errors.ts';
import {
  formatJson,
  isMissing,
  isPresent,
  readJsonFile,
  toStorageError,
  writeFileAtomic,
} from '../../formats/atomic-files.ts';
import { type Who, whoSchema } from '../security/caller.ts';

const trashItem = z.strictObject({
  id: z.string(),
  project: z.string(),
  /** As in `checkpoint`, `model`. */
  kind: z.string(),
  /** What it was, as in `agent-001@12`. */
  name: z.string(),
  /** Where it lay, relative to the root, with `/`. */
  path: z.string(),
  deleted_at: z.string(),
  deleted_by: whoSchema,
});
export type TrashItem = z.infer<typeof trashItem>;

export interface Discarded {
  readonly root: string;
  readonly project: string;
  readonly kind: string;
  readonly name: string;
  /** File or folder inside `root`. */
  readonly path: string;
  readonly by: Who;
}

const itemName = 'item.json';
const contentName = 'content';
const idRule = /^\d{8}T\d{6}-[0-9a-f]{12}$/;

/** Moves a file or folder into its project's trash. Throws DataError if there is none. */
export async function moveToTrash(discarded: Discarded): Promise<TrashItem> {
  const { root, project, kind, name, path, by } = discarded;
  if (!(await isPresent(path)))
    throw new DataError(`${kind} ${name}: must exist to be deleted, got nothing at ${path}`);
  const at = new Date().toISOString();
  const id = `${at.slice(0, 19).replace(/[-:]/g, '')}-${randomBytes(6).toString('hex')}`;
  const inside = insideRoot(root, path);
  const item: TrashItem = { id, project, kind, name, path: inside, deleted_at: at, deleted_by: by };
  const folder = join(trashFolder(root, project), id);
  try {
    await mkdir(folder, { recursive: true });
    await writeFileAtomic(join(folder, itemName), [formatJson(item)]);
    await rename(path, join(folder, contentName));
  } catch (error) {
    if (!(await isPresent(join(folder, contentName)))) await rm(folder, { recursive: true, force: true });
    throw await toStorageError(path, error);
  }
  return item;
}

/** Everything in one project's trash, or in that of all projects, oldest first. */
export async function listTrash(root: string, project?: string): Promise<readonly TrashItem[]> {
  const projects = project === undefined ? await foldersOf(root) : [project];
  const items: TrashItem[] = [];
  for (const name of projects) {
    for (const id of await foldersOf(trashFolder(root, name))) {
      // Without content it is what a crash left of a move that did not happen, or of a purge that almost did.
      if (idRule.test(id) && (await isPresent(join(trashFolder(root, name), id, contentName)))) {
        items.push(await readItem(root, name, id));
      }
    }
  }
  return items.sort((a, b) => (a.id < b.id ? -1 : 1));
}

/** Moves an item back to where it was. Throws DataError if there is no such item, or something stands in its place. */
export async function restoreFromTrash(root: string, project: string, id: string): Promise<TrashItem> {
  const item = await findItem(root, project, id);
  const folder = join(trashFolder(root, project), id);
  const target = resolve(root, item.path);
  if (await isPresent(target)) {
    throw new DataError(`trash ${id}: ${item.kind} ${item.name} must have its place free, got something at ${target}`);
  }
  try {
    await mkdir(dirname(target), { recursive: true });
    await rename(join(folder, contentName), target);
    await rm(folder, { recursive: true, force: true });
  } catch (error) {
    throw await toStorageError(target, error);
  }
  return item;
}

/** What to purge: one item, or all that were deleted at least so long ago. */
export type PurgeChoice = { readonly id: string } | { readonly olderThanMs: number };

/** Deletes for good; returns what is gone. Throws DataError if there is no such item. */
export async function purge(
  root: string,
  project: string | undefined,
  choice: PurgeChoice,
): Promise<readonly TrashItem[]> {
  const items = await listTrash(root, project);
  const chosen = items.filter((item) =>
    'id' in choice ? item.id === choice.id : Date.now() - Date.parse(item.deleted_at) >= choice.olderThanMs,
  );
  if ('id' in choice && chosen.length === 0) throw noItem(choice.id, items);
  for (const { project: owner, id } of chosen) {
    await rm(join(trashFolder(root, owner), id), { recursive: true, force: true });
  }
  return chosen;
}

async function findItem(root: string, project: string, id: string): Promise<TrashItem> {
  const items = await listTrash(root, project);
  const item = items.find((candidate) => candidate.id === id);
  if (item === undefined) throw noItem(id, items);
  return item;
}

function noItem(id: string, items: readonly TrashItem[]): DataError {
  const ids = items.map((item) => item.id).join(', ') || 'nothing';
  return new DataError(`trash: must hold ${JSON.stringify(id.slice(0, 80))}, got ${ids}`, { details: { param: 'id' } });
}

async function readItem(root: string, project: string, id: string): Promise<TrashItem> {
  const path = join(trashFolder(root, project), id, itemName);
  const parsed = trashItem.safeParse(await readJsonFile(path));
  if (!parsed.success) throw new DataError(`${path}: ${z.prettifyError(parsed.error)}`);
  if (parsed.data.id !== id) throw new DataError(`${path}: id must be that of its folder, got ${parsed.data.id}`);
  insideRoot(root, resolve(root, parsed.data.path));
  return parsed.data;
}

/** The path relative to the root. Throws ConfigError for one that leaves it. */
function insideRoot(root: string, path: string): string {
  const inside = relative(resolve(root), resolve(path));
  if (inside === '' || inside === '..' || inside.startsWith(`..${sep}`) || isAbsolute(inside)) {
    throw new ConfigError(`trash: what is deleted must lie inside ${resolve(root)}, got ${path}`);
  }
  return inside.split(sep).join('/');
}

function trashFolder(root: string, project: string): string {
  return join(root, project, 'trash');
}

async function foldersOf(path: string): Promise<readonly string[]> {
  try {
    const entries = await readdir(path, { withFileTypes: true });
    return entries.filter((entry) => entry.isDirectory()).map((entry) => entry.name);
  } catch (error) {
    if (isMissing(error)) return [];
    throw error;
  }
}
