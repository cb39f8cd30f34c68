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

/** A call that takes long, as its server holds it. */
export interface Job {
  readonly id: string;
  readonly kind: WireJob['kind'];
  readonly model: string;
  readonly idempotencyKey: string;
  readonly state: WireJob['state'];
  /** Null before the first report, and of a job that an earlier process ran. */
  readonly progress: WireJob['progress'];
  /** Set when the state is `done`. */
  readonly result: ReturnType<typeof fromTrainResult> | null;
  /** Set when the state is `failed` or `cancelled`. */
  readonly error: { readonly message: string; readonly code: string | null } | null;
  /** Null where an earlier process ran the job. */
  readonly createdAt: string | null;
  readonly startedAt: string | null;
  readonly finishedAt: string | null;
}

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

export function fromJob(job: WireJob): Job {
  return {
    id: job.id,
    kind: job.kind,
    model: job.model,
    idempotencyKey: job.idempotency_key,
    state: job.state,
    progress: job.progress,
    result: job.result === null ? null : fromTrainResult(job.result),
    error: job.error === null ? null : { message: job.error.message, code: job.error.code },
    createdAt: job.created_at,
    startedAt: job.started_at,
    finishedAt: job.finished_at,
  };
}
