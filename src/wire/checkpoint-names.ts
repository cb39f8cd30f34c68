/** Checkpoints, the trash and jobs between the names of the training API (snake case) and those of the SDK (camel case). Layer 0. */
import type * as z from 'zod';
import type {
  CheckpointInfo,
  ForkRequest,
  ForkResult,
  RemovedCheckpoints,
  Retention,
  trashItem,
} from './checkpoints.ts';
import type { WireJob } from './jobs.ts';
import { fromTrainResult, type RegisteredModel, toRegisterRequest } from './training-names.ts';
import {
  type TransferProgress,
  type TransferResult,
  transferKinds,
  type WireAnyJob,
  type WireTransferJob,
} from './transfers.ts';

/** Whose checkpoint a fork began with. */
export interface ForkOrigin {
  readonly project: string;
  readonly model: string;
  readonly step: number;
  readonly adapterSha256: string;
}

/** What a new model begins with: a checkpoint of another model. */
export interface ForkSource {
  readonly fromModel: string;
  /** Default: the new model's project. */
  readonly fromProject?: string | undefined;
  /** Default: the newest, or the newest that is not after `notAfterStep`. */
  readonly step?: number | undefined;
  readonly notAfterStep?: number | undefined;
}

export interface Fork {
  /** The new model's first step: that of the checkpoint it was copied from. */
  readonly step: number;
  readonly from: ForkOrigin;
  /** False: the same fork was made before, and the model may have gone on since. */
  readonly isNew: boolean;
}

/** A checkpoint of a model as its server holds it. */
export interface Checkpoint {
  readonly step: number;
  /** Null for the first one of a model. */
  readonly parentStep: number | null;
  /** What made it; null for the first one. */
  readonly kind: string | null;
  /** Whether this is what the model's name serves. */
  readonly isNewest: boolean;
  /** ISO 8601. */
  readonly createdAt: string;
  readonly bytes: number;
  readonly adapterSha256: string;
  /** Adapter and optimizer state; each can be downloaded from the server. */
  readonly files: readonly { readonly name: string; readonly bytes: number; readonly sha256: string }[];
  /** Of its step, timings included. */
  readonly metrics: Readonly<Record<string, number>>;
  readonly provenance: {
    readonly packageVersion: string;
    readonly baseModel: string;
    readonly baseModelSha256: string;
    readonly requestSha256: string | null;
    readonly dataSha256: string | null;
    readonly trainedBy: Readonly<Record<string, unknown>> | null;
    readonly config: Readonly<Record<string, unknown>> | null;
    /** Of the first checkpoint of a fork. */
    readonly forkedFrom: ForkOrigin | null;
  };
}

/** Which checkpoints are kept; the newest always is, and null in both keeps all. */
export interface RetentionRule {
  /** So many of the newest. */
  readonly keepLast: number | null;
  /** So many of those with the best value of a metric of the history. */
  readonly keepBest: {
    readonly metric: string;
    readonly split: string;
    readonly count: number;
    readonly mode: 'max' | 'min';
  } | null;
}

/** Checkpoints that went to the trash, and the ids under which they can be restored. */
export interface Removed {
  /** The step that is served. */
  readonly step: number;
  readonly removed: readonly { readonly step: number; readonly trashId: string }[];
}

export interface TrashItem {
  readonly id: string;
  readonly project: string;
  /** `checkpoint` or `model`. */
  readonly kind: string;
  /** As in `agent-001@12`. */
  readonly name: string;
  readonly deletedAt: string;
  readonly deletedBy: Readonly<Record<string, unknown>>;
}

interface JobBase<Kind, Progress, Result> {
  readonly id: string;
  readonly kind: Kind;
  readonly model: string;
  readonly state: WireJob['state'];
  /** Null before the first report, and of a job that an earlier process ran. */
  readonly progress: Progress | null;
  /** Set when the state is `done`. */
  readonly result: Result | null;
  /** Set when the state is `failed` or `cancelled`. */
  readonly error: { readonly message: string; readonly code: string | null } | null;
  /** Null where an earlier process ran the job. */
  readonly createdAt: string | null;
  readonly startedAt: string | null;
  readonly finishedAt: string | null;
}

/** How far a copy of a checkpoint is. */
export interface CopyProgress {
  /** `check`: hashes of what is there; `finish`: it is put in its place. */
  readonly stage: TransferProgress['stage'];
  readonly doneBytes: number;
  readonly totalBytes: number;
}

/** A checkpoint that was copied to or from a place elsewhere; every file was checked by its SHA-256. */
export interface CopyResult {
  /** Where exactly the copy is; of the hub with its commit. */
  readonly place: string;
  readonly step: number;
  readonly adapterSha256: string;
  readonly files: number;
  readonly bytes: number;
  /** Files that were there already with the same bytes. */
  readonly skippedFiles: number;
  readonly copiedBytes: number;
  /** False: a pull found the checkpoint in its place. */
  readonly isNew: boolean;
}

/** A call that takes long, as its server holds it: one that trains, or one that copies a checkpoint. */
export type Job =
  | (JobBase<WireJob['kind'], NonNullable<WireJob['progress']>, ReturnType<typeof fromTrainResult>> & {
      readonly idempotencyKey: string;
    })
  | JobBase<WireTransferJob['kind'], CopyProgress, CopyResult>;

export function fromCheckpointInfo(info: CheckpointInfo): Checkpoint {
  const { provenance } = info;
  return {
    step: info.step,
    parentStep: info.parent_step,
    kind: info.kind,
    isNewest: info.is_newest,
    createdAt: info.created_at,
    bytes: info.bytes,
    adapterSha256: info.adapter_sha256,
    files: info.files,
    metrics: info.metrics,
    provenance: {
      packageVersion: provenance.package_version,
      baseModel: provenance.base_model,
      baseModelSha256: provenance.base_model_sha256,
      requestSha256: provenance.request_sha256,
      dataSha256: provenance.data_sha256,
      trainedBy: provenance.trained_by,
      config: provenance.config,
      forkedFrom: provenance.forked_from === null ? null : fromForkOrigin(provenance.forked_from),
    },
  };
}

function fromForkOrigin({ project, model, step, adapter_sha256 }: ForkResult['from']): ForkOrigin {
  return { project, model, step, adapterSha256: adapter_sha256 };
}

export function fromForkResult({ step, from, is_new }: ForkResult): Fork {
  return { step, from: fromForkOrigin(from), isNew: is_new };
}

/** The body of a fork; not checked. */
export function toForkRequest(model: RegisteredModel, { fromProject, step, notAfterStep }: ForkSource): ForkRequest {
  return {
    model: toRegisterRequest(model),
    ...(fromProject !== undefined && { from_project: fromProject }),
    ...(step !== undefined && { step }),
    ...(notAfterStep !== undefined && { not_after_step: notAfterStep }),
  };
}

export function fromRemoved({ step, removed }: RemovedCheckpoints): Removed {
  return { step, removed: removed.map((item) => ({ step: item.step, trashId: item.trash_id })) };
}

export function fromRetention({ keep_last: keepLast, keep_best: keepBest }: Retention): RetentionRule {
  return { keepLast, keepBest };
}

export function toRetention({ keepLast, keepBest }: RetentionRule): Retention {
  return { keep_last: keepLast, keep_best: keepBest };
}

export function fromTrashItem({
  id,
  project,
  kind,
  name,
  deleted_at,
  deleted_by,
}: z.infer<typeof trashItem>): TrashItem {
  return { id, project, kind, name, deletedAt: deleted_at, deletedBy: deleted_by };
}

export function fromTransferProgress({ stage, done_bytes, total_bytes }: TransferProgress): CopyProgress {
  return { stage, doneBytes: done_bytes, totalBytes: total_bytes };
}

export function fromTransferResult(result: TransferResult): CopyResult {
  return {
    place: result.place,
    step: result.step,
    adapterSha256: result.adapter_sha256,
    files: result.files,
    bytes: result.bytes,
    skippedFiles: result.skipped_files,
    copiedBytes: result.copied_bytes,
    isNew: result.is_new,
  };
}

export function fromJob(job: WireAnyJob): Job {
  const { id, model, state, error } = job;
  const common = {
    ...{ id, model, state, error: error === null ? null : { message: error.message, code: error.code } },
    ...{ createdAt: job.created_at, startedAt: job.started_at, finishedAt: job.finished_at },
  };
  if (isTransfer(job)) {
    const progress = job.progress === null ? null : fromTransferProgress(job.progress);
    return { ...common, kind: job.kind, progress, result: job.result === null ? null : fromTransferResult(job.result) };
  }
  const result = job.result === null ? null : fromTrainResult(job.result);
  return { ...common, kind: job.kind, idempotencyKey: job.idempotency_key, progress: job.progress, result };
}

function isTransfer(job: WireAnyJob): job is WireTransferJob {
  return transferKinds.some((kind) => kind === job.kind);
}
