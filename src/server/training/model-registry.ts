/** The models that one server serves and trains, by name. Layer 5. Registering twice is the same as once. */
import { setMaxListeners } from 'node:events';
import { type ApiError, ConfigError, messageOf } from '../../core/errors.ts';
import type { RestartLimits } from '../../engines/supervised-engine.ts';
import type { DownloadProgress, HubOptions } from '../../hub/options.ts';
import { createDownloadBar } from '../../hub/progress-bar.ts';
import { refuse } from '../../wire/errors.ts';
import type { RegisterRequest } from '../../wire/training.ts';
import type { ModelLookup } from '../inference/model-lookup.ts';
import { type CompletionStoreOptions, openCompletionStore } from '../rollouts/completion-store.ts';
import type { Who } from '../security/caller.ts';
import { createStoragePolicy, type StorageOptions } from '../security/storage-policy.ts';
import { applyRetention } from '../store/retention.ts';
import { compareRegistration } from '../store/run-folder.ts';
import type { S3Options } from '../store/s3-client.ts';
import { moveToTrash, type TrashItem } from '../store/trash.ts';
import { normalizeBaseModel } from './base-model.ts';
import { createEventHub, type EventHub } from './events.ts';
import { loadModelFiles } from './model-files.ts';
import {
  type EngineTuning,
  type ModelFiles,
  type OpenRun,
  openTrainingRun,
  type RunEnvironment,
} from './open-training-run.ts';
import { int8ProbeTolerance } from './served-proof.ts';
import type { TrainingRun } from './training-run.ts';
import { createTransferBook, type TransferBook } from './transfers.ts';

export interface ModelRegistryOptions extends StorageOptions {
  /** Folder that holds `<project>/models/<name>/`; usually `.art`. */
  readonly root: string;
  readonly createEngine: RunEnvironment['createEngine'];
  readonly engineTuning?: EngineTuning;
  /** How often an engine that dies is started again, and how long requests wait for it. */
  readonly engineRestart?: RestartLimits;
  /** Reads tokenizer, chat template and configuration of a base model; default: from its folder or file. */
  readonly loadModelFiles?: (path: string, chatTemplate?: string) => Promise<ModelFiles>;
  /** Where base models that are ids come from, and where they are kept; default: as the environment says. */
  readonly hub?: HubOptions;
  readonly completions?: CompletionStoreOptions;
  /** Nats by which sampler and trainer may differ on the probe text after a step; default 0: bit for bit, and 3 for int8 rollouts. */
  readonly probeTolerance?: number;
  /** `train` calls of one model that may wait behind the running one; default 8. */
  readonly maxWaitingTrainCalls?: number;
  /** Choices of one model that may be sampled at once; more are refused with 429. Default 8,192. */
  readonly maxInFlight?: number;
  /** Where checkpoints may be copied to and from. */
  readonly remotes?: RemoteOptions;
  /** Default: console.warn. */
  readonly onWarning?: (message: string) => void;
}

export interface RemoteOptions {
  /** Limits of requests to S3-compatible storage; default: endpoint and region of the environment. */
  readonly s3?: S3Options;
  /** Places and what lies below them, as in `s3://bucket/prefix` or `hf://org`; default: all that the credentials reach. */
  readonly allowed?: readonly string[];
}

/** Also what the inference routes look models up in. */
export interface ModelRegistry extends ModelLookup {
  /**
   * Opens a model, or returns it if it is open. Throws ConfigError naming the field if it was registered differently before,
   * or the process that has it open.
   */
  readonly register: (request: RegisterRequest) => Promise<TrainingRun>;
  /** How far the download is that a registration under way waits for; null while there is none. */
  readonly download: (name: string) => DownloadProgress | null;
  /** Throws ApiError 404 for a name that is not registered. */
  readonly get: (name: string) => TrainingRun;
  readonly list: () => readonly TrainingRun[];
  /** What happens in the models of this registry. */
  readonly events: EventHub;
  /** Folder of all runs. */
  readonly root: string;
  /** Where base models that are ids come from. */
  readonly hub: HubOptions;
  /** Copies of checkpoints to other places and back. */
  readonly transfers: TransferBook;
  readonly remotes: RemoteOptions;
  /** Closes a model and moves its run to the trash. Throws ApiError 404 for a name that is not registered. */
  readonly remove: (name: string, by: Who) => Promise<TrashItem>;
  /** Ends training between two engine calls, as retryable; sampling goes on. For a server that is about to close. */
  readonly stopTraining: () => void;
  /** Closes all models, whatever fails. Idempotent. */
  readonly close: () => Promise<void>;
}

interface Entry {
  readonly request: RegisterRequest;
  readonly opening: Promise<OpenRun>;
  open: OpenRun | null;
  download: DownloadProgress | null;
}

/** Opens nothing until a model is registered. Throws ConfigError on an option out of range. */
export function createModelRegistry(options: ModelRegistryOptions): ModelRegistry {
  const events = createEventHub();
  const { maxInFlight } = options;
  if (maxInFlight !== undefined && !(Number.isSafeInteger(maxInFlight) && maxInFlight > 0)) {
    throw new ConfigError(`maxInFlight: must be an integer > 0, got ${maxInFlight}`);
  }
  const environment = { ...environmentOf(options), onEvent: events.publish };
  events.subscribe({ model: null }, (event) => {
    if (event.type !== 'checkpoint.committed') return;
    const run = entries.get(event.data.model)?.open?.run;
    if (run !== undefined) void keepRetention(run, events, environment.onWarning);
  });
  const entries = new Map<string, Entry>();
  const transfers = createTransferBook((job) => events.publish({ type: 'job', data: job }));
  const closing = new AbortController();
  setMaxListeners(0, closing.signal); // one a model
  const openNew = (request: RegisterRequest): Entry => {
    let entry: Entry | undefined;
    const onProgress = (progress: DownloadProgress): void => {
      if (entry !== undefined) entry.download = progress;
      environment.hub.onProgress?.(progress);
    };
    const hub = { ...environment.hub, onProgress, signal: closing.signal };
    const opening = openTrainingRun(request, { ...environment, hub, signal: closing.signal });
    const added: Entry = { request, opening, open: null, download: null };
    entry = added;
    entries.set(request.name, added);
    opening.then(
      (open) => {
        added.open = open;
        const { name, project, step } = open.run.model;
        events.publish({ type: 'model.registered', data: { model: name, project, step: step() } });
      },
      () => entries.delete(request.name),
    );
    return added;
  };
  const list = (): TrainingRun[] =>
    [...entries.values()].flatMap((entry) => (entry.open === null ? [] : [entry.open.run]));
  const stopTraining = (): void => {
    for (const run of list()) run.stopTraining();
  };
  return {
    ...(maxInFlight !== undefined && { maxInFlight }),
    register: async (wireRequest) => {
      const request = { ...wireRequest, base_model: await normalizeBaseModel(wireRequest.base_model) };
      if (closing.signal.aborted) {
        throw new ConfigError('register: the server must be running, got one that is shutting down');
      }
      const entry = entries.get(request.name);
      if (entry !== undefined) compareRegistration(entry.request, request);
      return (await (entry ?? openNew(request)).opening).run;
    },
    get: (name) => {
      const run = entries.get(name)?.open?.run;
      if (run !== undefined) return run;
      throw notRegistered(name, list());
    },
    download: (name) => entries.get(name)?.download ?? null,
    list,
    events,
    root: options.root,
    hub: environment.hub,
    transfers,
    remotes: options.remotes ?? {},
    remove: async (name, by) => {
      const entry = entries.get(name);
      const open = entry?.open;
      if (entry === undefined || open == null) throw notRegistered(name, list());
      entries.delete(name);
      await open.close();
      const { directory: path, model } = open.run;
      const item = await moveToTrash({ root: options.root, project: model.project, kind: 'model', name, path, by });
      events.publish({ type: 'model.deleted', data: { model: name, trash_id: item.id } });
      return item;
    },
    models: () => list().map((run) => run.model),
    findModel: (name) => entries.get(name)?.open?.run.model,
    stopTraining,
    close: async () => {
      closing.abort();
      stopTraining(); // at once: while copies of checkpoints end, a step would go on
      await transfers.close();
      const all = [...entries.values()];
      entries.clear();
      const results = await Promise.allSettled(
        all.map(({ opening }) =>
          opening.then(
            (open) => open.close(),
            // Who registered it was told.
            () => undefined,
          ),
        ),
      );
      const failed = results.find((result) => result.status === 'rejected');
      if (failed !== undefined) throw failed.reason;
    },
  };
}

function environmentOf(options: ModelRegistryOptions): Omit<RunEnvironment, 'signal'> {
  const isInt8 = options.engineTuning?.rolloutPrecision === 'int8';
  const probeTolerance = options.probeTolerance ?? (isInt8 ? int8ProbeTolerance : 0);
  if (!(probeTolerance >= 0)) throw new ConfigError(`probeTolerance: must be ≥ 0 nats, got ${probeTolerance}`);
  const maxWaitingTrainCalls = options.maxWaitingTrainCalls ?? 8;
  if (!Number.isSafeInteger(maxWaitingTrainCalls) || maxWaitingTrainCalls < 0) {
    throw new ConfigError(`maxWaitingTrainCalls: must be an integer ≥ 0, got ${maxWaitingTrainCalls}`);
  }
  const onWarning = options.onWarning ?? ((message: string): void => console.warn(message));
  const storage = createStoragePolicy(options);
  return {
    root: options.root,
    createEngine: options.createEngine,
    engineTuning: options.engineTuning ?? {},
    restartLimits: options.engineRestart ?? {},
    loadModelFiles: options.loadModelFiles ?? loadModelFiles,
    hub: hubOptionsOf(options),
    openCompletions: (directory) =>
      openCompletionStore(directory, { storagePolicy: storage, ...options.completions }, onWarning),
    probeTolerance,
    maxWaitingTrainCalls,
    storage,
    onWarning,
  };
}

async function keepRetention(run: TrainingRun, events: EventHub, onWarning: (message: string) => void): Promise<void> {
  const { name: model } = run.model;
  try {
    const steps = await applyRetention(run);
    if (steps.length > 0) {
      events.publish({ type: 'checkpoint.deleted', data: { model, steps: [...steps], reason: 'retention' } });
    }
  } catch (error) {
    onWarning(`model ${model}: checkpoints are kept although the rule does not: ${messageOf(error)}`);
  }
}

function notRegistered(name: string, registered: readonly TrainingRun[]): ApiError {
  const names = registered.map(({ model }) => model.name).join(', ');
  const message = `model ${name}: must be registered first, registered are [${names}]`;
  return refuse(404, 'model_not_found', message, 'model');
}

/** Downloads are seen on the terminal of the server, and its warnings go where others go. */
function hubOptionsOf({ hub, onWarning }: ModelRegistryOptions): HubOptions {
  return {
    onProgress: createDownloadBar(),
    onWarning: onWarning ?? ((message) => console.warn(message)),
    ...hub,
  };
}
