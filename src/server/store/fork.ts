/**
 * Forks: a new run whose first checkpoint is a copy of another's, under the same step number. Layer 5.
 * The run's folder is made beside its place and renamed, so it is there whole or not at all. History and trajectories stay with the
 * other run; so does the key of the call that made the checkpoint, which the new run may train under again.
 */
import { constants } from 'node:fs';
import { copyFile } from 'node:fs/promises';
import { join } from 'node:path';
import { CheckpointError, messageOf } from '../../core/errors.ts';
import { isMissing, writeFolderAtomic } from '../../formats/atomic-files.ts';
import { refuse } from '../../wire/errors.ts';
import type { RegisterRequest } from '../../wire/training.ts';
import type { BaseModel } from '../training/base-model.ts';
import type { CheckpointManifest, ForkOrigin } from './checkpoint-manifest.ts';
import { folderName, listSteps, placeCheckpoint, readManifest, type StoredCheckpoint } from './checkpoints.ts';
import { findRegistration, type ModelFile, runDirectory, writeRegistration } from './run-folder.ts';
import { weightsSha256 } from './step-result.ts';

export interface ForkChoice {
  readonly project: string;
  readonly name: string;
  /** Null: the newest. */
  readonly step: number | null;
  readonly notAfterStep: number | null;
}

export interface ForkTarget {
  readonly root: string;
  /** With its base model normalized, as registrations store it. */
  readonly request: RegisterRequest;
  readonly base: Pick<BaseModel, 'commit' | 'sha256'>;
}

export interface MadeFork {
  readonly origin: ForkOrigin;
  readonly isNew: boolean;
}

/**
 * Makes the run, or finds that it was made by the same fork before. Throws ApiError 404 if there is no such model or step, 409 if
 * another model has the name, 400 if base model or adapter differ; CheckpointError if the checkpoint is damaged.
 */
export async function forkRun(target: ForkTarget, choice: ForkChoice): Promise<MadeFork> {
  const { root, request, base } = target;
  const directory = runDirectory(root, request.project, request.name);
  const source = runDirectory(root, choice.project, choice.name);
  checkSameShape(await readSource(root, choice), request, base.sha256);
  const existing = await findRegistration(directory);
  if (existing !== null) return { origin: sameFork(existing, choice), isNew: false };
  const checkpoint = await chooseCheckpoint(source, choice);
  const origin = {
    project: choice.project,
    model: choice.name,
    step: checkpoint.manifest.step,
    adapter_sha256: weightsSha256(checkpoint.manifest),
  };
  await createRun(directory, target, asFork(checkpoint.manifest, origin), (name, path) =>
    copyFile(join(checkpoint.directory, name), path, constants.COPYFILE_FICLONE),
  );
  return { origin, isNew: true };
}

/** What the other model was registered as. Throws ApiError 404 if there is none of that name in the folder of runs. */
export async function readSource(
  root: string,
  { project, name }: Pick<ForkChoice, 'project' | 'name'>,
): Promise<ModelFile> {
  const registration = await findRegistration(runDirectory(root, project, name));
  if (registration !== null) return registration;
  const got = JSON.stringify(`${project}/${name}`);
  throw refuse(404, 'model_not_found', `fork: must be of a model in the folder of runs, got ${got}`, 'from_project');
}

/** The first checkpoint of a fork: the files are the other's, what it was made by is not told again. */
export function asFork(manifest: CheckpointManifest, origin: ForkOrigin): CheckpointManifest {
  const { formatVersion, step, baseModel, baseModelSha256, packageVersion, files } = manifest;
  return {
    ...{ formatVersion, step, parentStep: null, forkedFrom: origin },
    ...(baseModel !== undefined && { baseModel }),
    ...{ baseModelSha256, packageVersion, idempotencyKey: null, config: null, history: [], timings: [], files },
  };
}

/** Makes a run's folder with one checkpoint, whose files `place` puts where it is told. Throws ApiError 409 if the name is taken meanwhile. */
export async function createRun(
  directory: string,
  { request, base }: Omit<ForkTarget, 'root'>,
  manifest: CheckpointManifest,
  place: (name: string, target: string) => Promise<void>,
): Promise<void> {
  try {
    await writeFolderAtomic(directory, async (temporary) => {
      await placeCheckpoint(join(temporary, 'checkpoints', folderName(manifest.step)), manifest, place);
      await writeRegistration(temporary, request, base, manifest.forkedFrom ?? null);
    });
  } catch (error) {
    const code = (error as { code?: unknown } | null)?.code;
    const isTaken = code === 'ENOTEMPTY' || code === 'EEXIST' || (await findRegistration(directory)) !== null;
    if (isTaken) throw nameTaken(request.name, 'one that was made meanwhile');
    throw error;
  }
}

/** Throws ApiError 400 naming the field: weights of another model or of another shape could not be loaded. */
export function checkSameShape(source: ModelFile, request: RegisterRequest, baseModelSha256: string): void {
  const fields = ({ lora }: RegisterRequest, sha256: string): Record<string, unknown> => ({
    base_model: sha256,
    'lora.rank': lora.rank,
    'lora.alpha': lora.alpha,
    'lora.target_modules': lora.target_modules ?? null,
  });
  const got = fields(request, baseModelSha256);
  for (const [field, value] of Object.entries(fields(source, source.base_model_sha256))) {
    if (JSON.stringify(value) === JSON.stringify(got[field])) continue;
    const what = field === 'base_model' ? `${field} (SHA-256)` : field;
    const message = `${what}: must be that of ${source.project}/${source.name}, ${JSON.stringify(value)}, got ${JSON.stringify(got[field])}`;
    throw refuse(400, 'fork_differs', message, `model.${field}`);
  }
}

/** Throws ApiError 409 unless the model that has the name is a fork of the same model, and of a step that is wanted. */
function sameFork(existing: ModelFile, { project, name, step, notAfterStep }: ForkChoice): ForkOrigin {
  const origin = existing.forked_from;
  if (origin === undefined) throw nameTaken(existing.name, 'a model that is no fork');
  const got = `a fork of ${origin.project}/${origin.model}@${origin.step}`;
  if (origin.project !== project || origin.model !== name) throw nameTaken(existing.name, got);
  if (step !== null && origin.step !== step) throw nameTaken(existing.name, got);
  if (notAfterStep !== null && origin.step > notAfterStep) throw nameTaken(existing.name, got);
  return origin;
}

function nameTaken(name: string, got: string): Error {
  const message = `model ${name}: must be new to begin with another's checkpoint, got ${got}; use another name`;
  return refuse(409, 'model_exists', message, 'model.name');
}

async function chooseCheckpoint(source: string, choice: ForkChoice): Promise<StoredCheckpoint> {
  const { step: exact, notAfterStep } = choice;
  const folder = join(source, 'checkpoints');
  const steps = await listSteps(folder);
  const step = steps.findLast((candidate) =>
    exact === null ? candidate <= (notAfterStep ?? candidate) : candidate === exact,
  );
  if (step === undefined) {
    const wanted = exact === null ? `a step not after ${notAfterStep}` : `step ${exact}`;
    const there = steps.join(', ') || 'none';
    const param = exact === null ? 'not_after_step' : 'step';
    const message = `fork: ${choice.project}/${choice.name} must have a checkpoint of ${wanted}, got ${there}`;
    throw refuse(404, 'checkpoint_not_found', message, param);
  }
  const directory = join(folder, folderName(step));
  try {
    return { directory, manifest: await readManifest(directory, step) };
  } catch (cause) {
    if (!isMissing(cause)) throw cause;
    throw new CheckpointError(`${directory}: was removed while it was read: ${messageOf(cause)}`, { cause });
  }
}
