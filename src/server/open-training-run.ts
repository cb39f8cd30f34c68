/**
 * Opens a model's folder and brings its engine to the newest checkpoint. Layer 5.
 * A new model gets a checkpoint of step 0, so that opening is always: load the newest, publish it, prove it.
 */
import { rm, rmdir } from 'node:fs/promises';
import { CheckpointError } from '../core/errors.ts';
import type { EmbeddedEngineOptions } from '../engines/embedded/options.ts';
import type { Engine } from '../engines/engine.ts';
import { isPresent } from '../formats/atomic-files.ts';
import type { HubOptions } from '../hub/options.ts';
import type { RegisterRequest } from '../wire/training.ts';
import { type BaseModel, findBaseModel } from './base-model.ts';
import { type CheckpointStore, openCheckpoints, type StoredCheckpoint } from './checkpoints.ts';
import { openMetricFiles } from './metric-files.ts';
import {
  checkRegistration,
  findRegistration,
  lockRunFolder,
  readPackageVersion,
  runDirectory,
  writeRegistration,
} from './run-folder.ts';
import type { CompletionStore, ServedModel } from './served-model.ts';
import { createProbeIds, proveServed } from './served-proof.ts';
import { rowsOf } from './step-result.ts';
import { TrainingRun, type TrainingRunOptions } from './training-run.ts';

/** Options of the embedded engine that are not part of what a model is. */
export type EngineTuning = Omit<EmbeddedEngineOptions, 'modelDirectory' | 'training' | 'seed'>;

/** The text side of a base model. */
export type ModelFiles = Pick<ServedModel, 'tokenizer' | 'template' | 'config'>;

export interface RunEnvironment
  extends Pick<TrainingRunOptions, 'probeTolerance' | 'maxWaitingTrainCalls' | 'onWarning' | 'onEvent'> {
  readonly root: string;
  readonly createEngine: (options: EmbeddedEngineOptions) => Promise<Engine>;
  readonly engineTuning: EngineTuning;
  readonly loadModelFiles: (path: string, chatTemplate?: string) => Promise<ModelFiles>;
  readonly hub: HubOptions;
  readonly createCompletions: () => CompletionStore;
}

export interface OpenRun {
  readonly run: TrainingRun;
  /** Closes the run and its engine, then unlocks the folder. */
  readonly close: () => Promise<void>;
}

/**
 * Opens a model for training and serving. A run that cannot begin leaves nothing behind. Throws ConfigError if another process has it,
 * its registration differs or there is no such base model, CheckpointError if its newest checkpoint is damaged.
 */
export async function openTrainingRun(request: RegisterRequest, environment: RunEnvironment): Promise<OpenRun> {
  const directory = runDirectory(environment.root, request.project, request.name);
  const known = await findRegistration(directory);
  const commit = known?.base_model === request.base_model ? (known.base_model_commit ?? null) : null;
  const base = await findBaseModel(request.base_model, commit, environment.hub);
  const unlock = await lockRunFolder(directory);
  try {
    const stored = await findRegistration(directory);
    if (stored !== null) checkRegistration(stored, request, base.sha256);
    const run = await openOrUndo(request, environment, { directory, base, isNew: stored === null });
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
    await rmdir(directory).catch(() => {}); // Stays if anything is in it.
    throw error;
  }
}

interface RunPlace {
  readonly directory: string;
  readonly base: BaseModel;
  /** There is no model.json yet. */
  readonly isNew: boolean;
}

async function openOrUndo(
  request: RegisterRequest,
  environment: RunEnvironment,
  place: RunPlace,
): Promise<TrainingRun> {
  const { directory, base, isNew } = place;
  const hadCheckpoints = await isPresent(`${directory}/checkpoints`);
  let run: TrainingRun | null = null;
  try {
    run = await openLocked(request, environment, place);
    if (isNew) await writeRegistration(directory, request, base);
    return run;
  } catch (error) {
    await run?.close();
    if (isNew && !hadCheckpoints) await rm(`${directory}/checkpoints`, { recursive: true, force: true });
    throw error;
  }
}

async function openLocked(
  request: RegisterRequest,
  environment: RunEnvironment,
  { directory, base }: RunPlace,
): Promise<TrainingRun> {
  const { sha256: baseModelSha256 } = base;
  const checkpoints = await openCheckpoints(`${directory}/checkpoints`);
  checkBase(checkpoints, baseModelSha256);
  const metricFiles = await openMetricFiles(directory);
  for (const checkpoint of checkpoints.list()) {
    const rows = rowsOf(checkpoint);
    if (rows !== null) await metricFiles.complete(rows);
  }
  const packageVersion = await readPackageVersion();
  const files = await environment.loadModelFiles(base.path, request.chat_template);
  const engine = await environment.createEngine(engineOptions(request, base.path, environment.engineTuning));
  try {
    const newest = await loadNewest(engine, checkpoints, { baseModelSha256, packageVersion });
    const { maxPositions } = await engine.doInfo();
    const probeIds = createProbeIds(files.tokenizer, maxPositions);
    const served = await proveServed(engine, probeIds, newest.manifest.step, environment.probeTolerance);
    const { name, project } = request;
    const model = { name, project, engine, ...files, completions: environment.createCompletions() };
    const { probeTolerance, maxWaitingTrainCalls, onWarning, onEvent } = environment;
    const settings = {
      probeIds,
      maxPositions,
      probeTolerance,
      maxWaitingTrainCalls,
      onWarning,
      ...(onEvent && { onEvent }),
    };
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

function engineOptions(request: RegisterRequest, modelPath: string, tuning: EngineTuning): EmbeddedEngineOptions {
  const { rank, alpha, target_modules: targetModules } = request.lora;
  return {
    ...tuning,
    modelDirectory: modelPath,
    training: { kind: 'lora', rank, alpha, ...(targetModules !== undefined && { targetModules }) },
    seed: request.seed,
  };
}
