/**
 * The folder of one model, `<root>/<project>/models/<name>/`: what it was registered as (model.json) and who has it open (lock). Layer 5.
 * One process at a time. The lock file holds a process id; a lock whose process is gone is taken over.
 */
import { randomUUID } from 'node:crypto';
import { link, mkdir, readFile, rename, rm, writeFile } from 'node:fs/promises';
import { dirname, join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { z } from 'zod';
import { ConfigError, messageOf } from '../../core/errors.ts';
import {
  formatJson,
  isMissing,
  isPresent,
  readJsonFile,
  readTextFile,
  toStorageError,
  writeFileAtomic,
} from '../../formats/atomic-files.ts';
import { isProcessRunning } from '../../formats/lock-holder.ts';
import { type RegisterRequest, registerRequest } from '../../wire/training.ts';
import type { BaseModel } from '../training/base-model.ts';
import { type ForkOrigin, forkOrigin } from './checkpoint-manifest.ts';

export const modelFile = registerRequest.extend({
  format_version: z.literal(1),
  base_model_sha256: z.string(),
  /** Of the hub, where the base model is from there: what a branch stood for when the run began. */
  base_model_commit: z.string().optional(),
  /** Of a fork. */
  forked_from: forkOrigin.optional(),
});
export type ModelFile = z.infer<typeof modelFile>;

/** Folders that this process has open: its own id in a lock file may also be that of a dead process before it. */
const openHere = new Set<string>();

/** Absolute; project and name must be checked before, since they become folder names. */
export function runDirectory(root: string, project: string, name: string): string {
  return resolve(root, project, 'models', name);
}

/** Creates the folder if need be and locks it; call the result to unlock. Throws ConfigError naming the process that has it open. */
export async function lockRunFolder(directory: string): Promise<() => Promise<void>> {
  const path = join(directory, 'lock');
  if (openHere.has(directory)) throw lockedBy(process.pid, path);
  openHere.add(directory);
  try {
    await mkdir(directory, { recursive: true }).catch((cause: unknown) => {
      throw new ConfigError(`run folder: must be a folder that can be made, got ${directory} (${messageOf(cause)})`, {
        cause,
      });
    });
    while (!(await createLock(path))) await removeStaleLock(path);
  } catch (error) {
    openHere.delete(directory);
    throw await toStorageError(path, error);
  }
  return async () => {
    if (!openHere.delete(directory)) return;
    await rm(path, { force: true });
  };
}

/** Writes model.json, once everything that a new run begins with is there. */
export async function writeRegistration(
  directory: string,
  request: RegisterRequest,
  base: Pick<BaseModel, 'commit' | 'sha256'>,
  forkedFrom: ForkOrigin | null = null,
): Promise<void> {
  const origin = { base_model_sha256: base.sha256, ...(base.commit !== null && { base_model_commit: base.commit }) };
  const fork = forkedFrom === null ? {} : { forked_from: forkedFrom };
  const file: ModelFile = { format_version: 1, ...request, ...origin, ...fork };
  await writeFileAtomic(join(directory, 'model.json'), [formatJson(file)]);
}

/** Null for a folder without model.json: the run is new. Throws ConfigError if it is damaged. */
export async function findRegistration(directory: string): Promise<ModelFile | null> {
  return (await isPresent(join(directory, 'model.json'))) ? await readRegistration(directory) : null;
}

/**
 * Checks that a registration is the stored one. The base model may have moved: its SHA-256 counts, not its path.
 * Throws ConfigError naming the field.
 */
export function checkRegistration(stored: ModelFile, request: RegisterRequest, baseModelSha256: string): void {
  if (stored.base_model_sha256 !== baseModelSha256) {
    throw differs(
      request.name,
      'base_model',
      `${stored.base_model} (SHA-256 ${stored.base_model_sha256})`,
      `${request.base_model} (SHA-256 ${baseModelSha256})`,
    );
  }
  compareRegistration(stored, { ...request, base_model: stored.base_model });
}

/** What a run folder was registered as. Throws ConfigError if it is no run folder. */
export async function readRegistration(directory: string): Promise<ModelFile> {
  const path = join(directory, 'model.json');
  if ((await readTextFile(path)) === null) {
    throw new ConfigError(`run folder: must hold model.json, got none in ${directory}`, { details: { directory } });
  }
  const parsed = modelFile.safeParse(await readJsonFile(path));
  if (!parsed.success) throw new ConfigError(`${path}: ${z.prettifyError(parsed.error)}`);
  return parsed.data;
}

/** Throws ConfigError naming the first field in which two registrations of one model differ. */
export function compareRegistration(stored: RegisterRequest, request: RegisterRequest): void {
  const fields = (value: RegisterRequest): Record<string, unknown> => ({
    project: value.project,
    base_model: value.base_model,
    'lora.rank': value.lora.rank,
    'lora.alpha': value.lora.alpha,
    'lora.target_modules': value.lora.target_modules ?? null,
    seed: value.seed,
    chat_template: value.chat_template ?? null,
  });
  const got = fields(request);
  for (const [field, value] of Object.entries(fields(stored))) {
    if (JSON.stringify(value) !== JSON.stringify(got[field])) throw differs(request.name, field, value, got[field]);
  }
}

/** Version of this package: of the nearest package.json above this file. */
export async function readPackageVersion(): Promise<string> {
  for (let folder = dirname(fileURLToPath(import.meta.url)); ; folder = dirname(folder)) {
    const text = await readTextFile(join(folder, 'package.json'));
    if (text !== null) return z.object({ version: z.string() }).parse(JSON.parse(text)).version;
    if (folder === dirname(folder)) throw new ConfigError('package.json: must lie above the server code, found none');
  }
}

async function createLock(path: string): Promise<boolean> {
  // Written aside and linked: a lock is never seen empty.
  const whole = `${path}.${randomUUID()}`;
  await writeFile(whole, `${process.pid}\n`);
  try {
    await link(whole, path);
    return true;
  } catch (error) {
    if (error instanceof Error && 'code' in error && error.code === 'EEXIST') return false;
    throw error;
  } finally {
    await rm(whole, { force: true });
  }
}

/** Removes the lock of a dead process; of two that try, one may move the other's fresh lock, and puts it back. */
async function removeStaleLock(path: string): Promise<void> {
  const holder = await readPid(path);
  if (holder === null) return;
  if (isRunning(holder)) throw lockedBy(holder, path);
  const aside = `${path}.${randomUUID()}`;
  try {
    await rename(path, aside);
  } catch (error) {
    if (isMissing(error)) return;
    throw error;
  }
  const moved = await readPid(aside);
  if (moved !== holder) await link(aside, path);
  await rm(aside, { force: true });
}

/** Null if there is no lock; 0, which no process has, if it is not a number. */
async function readPid(path: string): Promise<number | null> {
  try {
    const pid = Number((await readFile(path, 'utf8')).trim());
    return Number.isSafeInteger(pid) && pid > 0 ? pid : 0;
  } catch (error) {
    if (isMissing(error)) return null;
    throw error;
  }
}

function isRunning(pid: number): boolean {
  return pid !== 0 && pid !== process.pid && isProcessRunning(pid);
}

function lockedBy(pid: number, path: string): ConfigError {
  return new ConfigError(
    `${dirname(path)}: one process at a time may have a model open, process ${pid} has it; end that server, ` +
      `or delete ${path} if that process is something else`,
    { details: { pid, path } },
  );
}

function differs(name: string, field: string, stored: unknown, got: unknown): ConfigError {
  return new ConfigError(
    `model ${name}: ${field} must stay what it was registered with, ${JSON.stringify(stored)}, got ` +
      `${JSON.stringify(got)}; use another name for another model`,
    { details: { param: field } },
  );
}
