/**
 * Puts a checkpoint that was fetched in its place: of a new run, or beside those of one that is open. Layer 5.
 * Under the project and name that it had, it is that run's checkpoint, keys and metrics included; under others it is a fork.
 */
import { rename, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { ConfigError } from '../../core/errors.ts';
import { refuse } from '../../wire/errors.ts';
import type { RegisterRequest } from '../../wire/training.ts';
import type { CheckpointManifest, ForkOrigin } from '../store/checkpoint-manifest.ts';
import { asFork, checkSameShape, createRun } from '../store/fork.ts';
import type { PulledCheckpoint } from '../store/remote-checkpoints.ts';
import { findRegistration, runDirectory } from '../store/run-folder.ts';
import { rowsOf, weightsSha256 } from '../store/step-result.ts';
import type { BaseModel } from './base-model.ts';
import type { ModelRegistry } from './model-registry.ts';

/** Returns false if it was in its place already. Throws ApiError 400 or 409 naming what does not fit. */
export async function placePulled(
  registry: ModelRegistry,
  request: RegisterRequest,
  base: BaseModel,
  pulled: PulledCheckpoint,
): Promise<boolean> {
  const { model, checkpoint } = pulled.manifest;
  checkSameShape(model, request, base.sha256);
  const directory = runDirectory(registry.root, request.project, request.name);
  const isSame = model.project === request.project && model.name === request.name;
  const from = { project: model.project, model: model.name, step: checkpoint.step };
  const origin: ForkOrigin = { ...from, adapter_sha256: weightsSha256(checkpoint) };
  const place = (name: string, target: string): Promise<void> => rename(join(pulled.directory, name), target);
  const existing = await findRegistration(directory);
  if (existing === null) {
    await createRun(directory, { request, base }, isSame ? checkpoint : asFork(checkpoint, origin), place);
  } else if (isSame || JSON.stringify(existing.forked_from) === JSON.stringify(origin)) {
    const isThere = await placeInRun(registry, request.name, isSame ? checkpoint : asFork(checkpoint, origin), place);
    await rm(pulled.directory, { recursive: true, force: true });
    return !isThere;
  } else {
    const message = `model ${request.name}: must be new to begin with a checkpoint of ${from.project}/${from.model}, got a model that is there; use another name`;
    throw refuse(409, 'model_exists', message, 'model.name');
  }
  await rm(pulled.directory, { recursive: true, force: true });
  return true;
}

/** Returns true if the checkpoint is there already. */
async function placeInRun(
  registry: ModelRegistry,
  name: string,
  checkpoint: CheckpointManifest,
  place: (name: string, target: string) => Promise<void>,
): Promise<boolean> {
  const run = registry.list().find(({ model }) => model.name === name);
  if (run === undefined) {
    throw new ConfigError(
      `model ${name}: is in the folder of runs, so it must be registered before a checkpoint is put beside its own`,
    );
  }
  return run.changeCheckpoints(async (checkpoints) => {
    const { step } = checkpoint;
    const there = checkpoints.list().find(({ manifest }) => manifest.step === step);
    if (there !== undefined) {
      if (weightsSha256(there.manifest) === weightsSha256(checkpoint)) return true;
      throw stepTaken(name, step, 'another checkpoint of that step');
    }
    const gone = checkpoints.removedManifest(step);
    if (gone !== undefined && weightsSha256(gone) !== weightsSha256(checkpoint)) {
      throw stepTaken(name, step, 'a step that was another policy here, and is deleted');
    }
    await checkpoints.add(checkpoint, place);
    const rows = rowsOf({ directory: run.directory, manifest: checkpoint });
    if (rows !== null) await run.metricFiles.complete(rows);
    registry.events.publish({ type: 'checkpoint.restored', data: { model: name, steps: [step] } });
    return false;
  });
}

function stepTaken(name: string, step: number, got: string): Error {
  return refuse(
    409,
    'step_exists',
    `model ${name}: step ${step} must be free or the same policy, got ${got}; use another name`,
    'step',
  );
}
