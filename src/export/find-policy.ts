/**
 * A trained policy in its run folder: the verified checkpoint of a step, and the base model that it was trained on. Layer 5.
 * Nothing is locked or changed: committed checkpoints stay as they are while a server goes on writing new ones.
 */
import { join } from 'node:path';
import { ConfigError } from '../core/errors.ts';
import { type ModelSource, openModel } from '../formats/model-source.ts';
import { type AdapterFiles, readAdapterFiles } from '../formats/peft.ts';
import { type LoraSpec, loraShapes, loraSpec } from '../nn/lora.ts';
import { checkParameters } from '../nn/parameters.ts';
import { readCheckpoint } from '../server/store/checkpoints.ts';
import { type ModelFile, readRegistration, runDirectory } from '../server/store/run-folder.ts';
import { findBaseModel } from '../server/training/base-model.ts';
import { modelName } from '../wire/training.ts';

export interface PolicySource {
  /** Folder of all runs; default `.art`. */
  readonly path?: string;
  readonly project?: string;
  readonly name: string;
  /** Default: the newest checkpoint. */
  readonly step?: number | 'newest';
  /** Base model: a folder, a .gguf file or an id of the hub. Default: what the model was registered with. */
  readonly base?: string;
}

export interface Policy {
  readonly name: string;
  readonly step: number;
  /** The run's folder. */
  readonly runDirectory: string;
  /** Folder of the checkpoint, whose files are verified. */
  readonly directory: string;
  readonly adapter: AdapterFiles;
  readonly spec: LoraSpec;
  /** Its chat template is the one that the model was registered with, if any. */
  readonly base: ModelSource;
  /** That template; null if it is the base model's own. */
  readonly chatTemplate: string | null;
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
  const base = await openModel(await findBase(source.base, registration, manifest.baseModelSha256));
  const spec = loraSpec(adapter.config, base.config);
  checkParameters(adapter.tensors, loraShapes(base.config, spec), directory);
  const chatTemplate = registration.chat_template ?? null;
  const tokenizerConfig = { ...base.tokenizerConfig, ...(chatTemplate !== null && { chat_template: chatTemplate }) };
  return {
    name,
    step: manifest.step,
    runDirectory: run,
    directory,
    adapter,
    spec,
    base: { ...base, tokenizerConfig },
    chatTemplate,
  };
}

/** Path of the base model, which must have the weights that were trained on. One of the hub is fetched if its cache has been emptied. */
async function findBase(given: string | undefined, registration: ModelFile, expected: string): Promise<string> {
  const where = given ?? registration.base_model;
  const commit = given === undefined ? (registration.base_model_commit ?? null) : null;
  const mend = given === undefined ? '; name where it is with --base' : '';
  const { path, sha256 } = await findBaseModel(where, commit, {}).catch((error: unknown) => {
    if (!(error instanceof ConfigError)) throw error;
    throw new ConfigError(`${error.message}${mend}`, { cause: error, details: error.details });
  });
  if (sha256 === expected) return path;
  throw new ConfigError(
    `export: the base model must have the weights that were trained on, SHA-256 ${expected}, got ${sha256} in ${path}${mend}`,
    { details: { path, expected, got: sha256 } },
  );
}
