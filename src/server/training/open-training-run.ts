/**
 * Opens a model's folder and brings its engine to the newest checkpoint. Layer 5.
 * A new model gets a checkpoint of step 0, so that opening is always: load the newest, publish it, prove it. The same happens each time
 * that its engine is started again.
 */
import { rm, rmdir } from 'node:fs/promises';
import { join } from 'node:path';
import { CheckpointError } from '../../core/errors.ts';
import type { EmbeddedEngineOptions } from '../../engines/embedded/options.ts';
import type { Engine } from '../../engines/engine.ts';
import { type RestartLimits, type SupervisedEngine, superviseEngine } from '../../engines/supervised-engine.ts';
import { isPresent } from '../../formats/atomic-files.ts';
import type { HubOptions } from '../../hub/options.ts';
import type { RegisterRequest } from '../../wire/training.ts';
import type { CompletionStore, ServedModel } from '../inference/served-model.ts';
import { type CheckpointStore, openCheckpoints } from '../store/checkpoints.ts';
import { openMetricFiles } from '../store/metric-files.ts';
import {
  checkRegistration,
  findRegistration,
  lockRunFolder,
  readPackageVersion,
  runDirectory,
  writeRegistration,
} from '../store/run-folder.ts';
import { rowsOf } from '../store/step-result.ts';
import { type BaseModel, findBaseModel } from './base-model.ts';
import { type LoadedPolicy, PolicyLoader } from './policy-loader.ts';
import { TrainingRun, type TrainingRunOptions } from './training-run.ts';

/** Options of the embedded engine that are not part of what a model is. */
export type EngineTuning = Omit<EmbeddedEngineOptions, 'modelDirectory' | 'training' | 'seed'>;

/** The text side of a base model. */
export type ModelFiles = Pick<ServedModel, 'tokenizer' | 'template' | 'config'>;

export interface RunEnvironment
  extends Pick<TrainingRunOptions, 'probeTolerance' | 'maxWaitingTrainCalls' | 'storage' | 'onWarning' | 'onEvent'> {
  readonly root: string;
  /** The signal fires when the engine is not wanted any more before it is there. */
  readonly createEngine: (options: EmbeddedEngineOptions, signal?: AbortSignal) => Promise<Engine>;
  readonly engineTuning: EngineTuning;
  readonly restartLimits: RestartLimits;
  readonly loadModelFiles: (path: string, chatTemplate?: string) => Promise<ModelFiles>;
  readonly hub: HubOptions;
  readonly openCompletions: (directory: string) => Promise<CompletionStore>;
  /** Fires when nobody waits for the run any more. */
  readonly signal: AbortSignal;
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
    if (isNew && !hadCheckpoints) {
      for (const made of ['checkpoints', 'completions'])
        await rm(join(directory, made), { recursive: true, force: true });
    }
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
  const { name, project } = request;
  const { probeTolerance, maxWaitingTrainCalls, storage, onWarning, onEvent } = environment;
  const origin = { baseModel: request.base_model, baseModelSha256, packageVersion };
  const policies = new PolicyLoader({ checkpoints, tokenizer: files.tokenizer, probeTolerance, origin, onWarning });
  const completions = await environment.openCompletions(join(directory, 'completions'));
  for (const { manifest } of checkpoints.list())
    completions.rollouts.markTrained(manifest.rollouts ?? [], manifest.step);
  let loaded: LoadedPolicy | undefined;
  let engine: SupervisedEngine | undefined;
  try {
    engine = await superviseEngine({
      ...environment.restartLimits,
      name,
      start: (signal) => environment.createEngine(engineOptions(request, base.path, environment.engineTuning), signal),
      recover: async (fresh) => {
        loaded = await policies.recover(fresh);
      },
      onWarning,
      onState: (state, reason) => environment.onEvent?.({ type: 'engine.state', data: { model: name, state, reason } }),
      signal: environment.signal,
    });
    const model = { name, project, engine, ...files, completions };
    const { newest, servedLogprobs, ...probe } = loaded!;
    const settings = {
      ...probe,
      probeTolerance,
      maxWaitingTrainCalls,
      storage,
      onWarning,
      ...(onEvent && { onEvent }),
    };
    const identity = { directory, ...origin };
    const parts = { model, engine, policies, checkpoints, metricFiles };
    return new TrainingRun({ ...parts, ...identity, ...settings }, { newest, servedLogprobs });
  } catch (error) {
    await engine?.close();
    await completions.close();
    throw error;
  }
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
