/**
 * A trained policy in its run folder: the verified checkpoint of a step, and the base model that it was trained on. Layer 5.
 * Nothing is locked or changed: committed checkpoints stay as they are while a server goes on writing new ones.
 */
import { join } from 'node:path';
import { ConfigError } from '../core/errors.ts';
import { isPresent } from '../formats/atomic-files.ts';
import { type ModelFiles, openModel } from '../formats/model-source.ts';
import { type AdapterFiles, readAdapterFiles } from '../formats/peft.ts';
import { type LoraSpec, loraShapes, loraSpec } from '../nn/lora.ts';
import { checkParameters } from '../nn/parameters.ts';
import { fetchBaseModel, hashBaseModel } from '../server/base-model.ts';
import { readCheckpoint } from '../server/checkpoints.ts';
import { readRegistration, runDirectory } from '../server/run-folder.ts';
import { modelName } from '../wire/training.ts';

export interface PolicySource {
  /** Folder of all runs; default `.art`. */
  readonly path?: string;
  readonly project?: string;
  readonly name: string;
  /** Default: the newest checkpoint. */
  readonly step?: number | 'newest';
  /** Base model; default: where it lay when the model was registered. */
  readonly base?: string;
}

export interface Policy {
  readonly name: string;
  readonly step: number;
  /** Folder of the checkpoint, whose files are verified. */
  readonly directory: string;
  readonly adapter: AdapterFiles;
  readonly spec: LoraSpec;
  readonly base: ModelFiles;
}

/** Throws ConfigError on a wrong name or base model, CheckpointError on a missing or damaged checkpoint, DataError on damaged files. */
export async function findPolicy(source: PolicySource): Promise<Policy> {
  const { path = '.art', project = 'default', name, step = 'newest' } = source;
  for (const [what, value] of Object.entries({ project, model: name })) {
    const parsed = modelName.safeParse(value);
    if (!parsed.success) throw new ConfigError(`export: ${what} ${parsed.error.issues[0]?.message}, got '${value}'`);
  }
  const run = runDirectory(path, project, name);
  const registration = await readRegistration(run);
  const { directory, manifest } = await readCheckpoint(join(run, 'checkpoints'), step);
  const adapter = await readAdapterFiles(directory);
  const commit = source.base === undefined ? (registration.base_model_commit ?? null) : null;
  const { path: basePath } = await fetchBaseModel(source.base ?? registration.base_model, commit);
  await checkBase(basePath, manifest.baseModelSha256);
  const base = await openModel(basePath);
  const spec = loraSpec(adapter.config, base.config);
  checkParameters(adapter.tensors, loraShapes(base.config, spec), directory);
  return { name, step: manifest.step, directory, adapter, spec, base };
}

async function checkBase(path: string, expected: string): Promise<void> {
  if (!(await isPresent(path))) {
    throw new ConfigError(
      `export: the base model must lie where it was trained, got nothing at ${path}; name it with --base`,
      {
        details: { path },
      },
    );
  }
  const got = await hashBaseModel(path);
  if (got !== expected) {
    throw new ConfigError(
      `export: the base model must be the one that was trained, with SHA-256 ${expected}, got ${got} in ${path}; name the right one with --base`,
      { details: { path, expected, got } },
    );
  }
}
