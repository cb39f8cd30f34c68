/**
 * Opens a model's folder and brings its engine to the newest checkpoint. Layer 5.
 * A new model gets a checkpoint of step 0, so that opening is always: load the newest, publish it, prove it.
 */
import { CheckpointError } from '../core/errors.ts';
import type { EmbeddedEngineOptions } from '../engines/embedded/options.ts';
import type { Engine } from '../engines/engine.ts';
import type { RegisterRequest } from '../wire/training.ts';
import { type CheckpointStore, hashBaseModel, openCheckpoints, type StoredCheckpoint } from './checkpoints.ts';
import { openMetricFiles } from './metric-files.ts';
import { checkRegistration, lockRunFolder, readPackageVersion, runDirectory } from './run-folder.ts';
import type { CompletionStore, ServedModel } from './served-model.ts';
import { createProbeIds, proveServed } from './served-proof.ts';
import { rowsOf, TrainingRun, type TrainingRunOptions } from './training-run.ts';

/** Options of the embedded engine that are not part of what a model is. */
export type EngineTuning = Omit<EmbeddedEngineOptions, 'modelDirectory' | 'training' | 'seed'>;

/** The text side of a base model. */
export type ModelFiles = Pick<ServedModel, 'tokenizer' | 'template' | 'config'>;

export interface RunEnvironment
  extends Pick<TrainingRunOptions, 'probeTolerance' | 'maxWaitingTrainCalls' | 'onWarning'> {
  readonly root: string;
  readonly createEngine: (options: EmbeddedEngineOptions) => Promise<Engine>;
  readonly engineTuning: EngineTuning;
  readonly loadModelFiles: (directory: string) => Promise<ModelFiles>;
  readonly createCompletions: () => CompletionStore;
}

export interface OpenRun {
  readonly run: TrainingRun;
  /** Closes the run and its engine, then unlocks the folder. */
  readonly close: () => Promise<void>;
}

/**
 * Opens a model for training and serving. Throws ConfigError if another process has it or its registration differs,
 * CheckpointError if its newest checkpoint is damaged.
 */
export async function openTrainingRun(request: RegisterRequest, environment: RunEnvironment): Promise<OpenRun> {
  const baseModelSha256 = await hashBaseModel(request.base_model);
  const directory = runDirectory(environment.root, request.project, request.name);
  const unlock = await lockRunFolder(directory);
  try {
    await checkRegistration(directory, request, baseModelSha256);
    const run = await openLocked(request, environment, directory, baseModelSha256);
    const close = async (): Promise<void> => {
      try {
        await run.close();
      } finally {
        await unlock();
      }
    };
    return { run, close };
  } catch (error) {
    await unlock();
    throw error;
  }
}

async function openLocked(
  request: RegisterRequest,
  environment: RunEnvironment,
  directory: string,
  baseModelSha256: string,
): Promise<TrainingRun> {
  const checkpoints = await openCheckpoints(`${directory}/checkpoints`);
  checkBase(checkpoints, baseModelSha256);
  const metricFiles = await openMetricFiles(directory);
  for (const checkpoint of checkpoints.list()) {
    const rows = rowsOf(checkpoint);
    if (rows !== null) await metricFiles.complete(rows);
  }
  const packageVersion = await readPackageVersion();
  const files = await environment.loadModelFiles(request.base_model);
  const engine = await environment.createEngine(engineOptions(request, environment.engineTuning));
  try {
    const newest = await loadNewest(engine, checkpoints, { baseModelSha256, packageVersion });
    const { maxPositions } = await engine.doInfo();
    const probeIds = createProbeIds(files.tokenizer, maxPositions);
    const served = await proveServed(engine, probeIds, newest.manifest.step, environment.probeTolerance);
    const { name, project } = request;
    const model = { name, project, engine, ...files, completions: environment.createCompletions() };
    const { probeTolerance, maxWaitingTrainCalls, onWarning } = environment;
    const settings = { probeIds, maxPositions, probeTolerance, maxWaitingTrainCalls, onWarning };
    const identity = { directory, baseModel: request.base_model, baseModelSha256, packageVersion };
    return new TrainingRun({ model, checkpoints, metricFiles, ...identity, ...settings }, newest, served);
  } catch (error) {
    await engine.close();
    throw error;
  }
}

async function loadNewest(
  engine: Engine,
  checkpoints: CheckpointStore,
  origin: { readonly baseModelSha256: string; readonly packageVersion: string },
): Promise<StoredCheckpoint> {
  let newest = checkpoints.newest();
  if (newest === undefined) {
    const first = { step: 0, parentStep: null, idempotencyKey: null, config: null, history: [], timings: [] };
    newest = await checkpoints.commit({ ...first, ...origin }, (directory) => engine.doSave({ directory }));
  } else {
    await engine.doLoad({ directory: newest.directory });
  }
  await engine.doPublish({ step: newest.manifest.step });
  return newest;
}

function checkBase(checkpoints: CheckpointStore, baseModelSha256: string): void {
  const newest = checkpoints.newest();
  if (newest !== undefined && newest.manifest.baseModelSha256 !== baseModelSha256) {
    throw new CheckpointError(
      `${newest.directory}: must be of the base model with SHA-256 ${baseModelSha256}, got ${newest.manifest.baseModelSha256}`,
    );
  }
}

function engineOptions(request: RegisterRequest, tuning: EngineTuning): EmbeddedEngineOptions {
  const { rank, alpha, target_modules: targetModules } = request.lora;
  return {
    ...tuning,
    modelDirectory: request.base_model,
    training: { kind: 'lora', rank, alpha, ...(targetModules !== undefined && { targetModules }) },
    seed: request.seed,
  };
}
