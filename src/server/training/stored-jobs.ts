/** What checkpoints tell of jobs: those that earlier processes finished, and the steps that are announced. Layer 5. */
import type { NewEvent } from '../../wire/events.ts';
import type { WireJob } from '../../wire/jobs.ts';
import { isLastPart } from '../store/checkpoint-manifest.ts';
import type { CheckpointStore, StoredCheckpoint } from '../store/checkpoints.ts';
import { metricsOf, resultOf } from '../store/step-result.ts';
import { finishedJob, type JobBook, type JobIdentity, reusedKeyError, type TrainJob } from './jobs.ts';

export function storedJobs(model: string, checkpoints: Pick<CheckpointStore, 'list'>): WireJob[] {
  return checkpoints.list().flatMap((checkpoint) => {
    const { idempotencyKey, request } = checkpoint.manifest;
    if (idempotencyKey === null || !isLastPart(checkpoint.manifest)) return [];
    const identity = { kind: request?.kind ?? 'train', idempotencyKey } as const;
    return [finishedJob(model, identity, resultOf(checkpoint)).describe()];
  });
}

/** The job that has the key of a request already, stored or active. Throws ApiError 409 if that is the job of another request. */
export function findKnownJob(
  model: string,
  { kind, idempotencyKey, requestSha256 }: JobIdentity,
  checkpoints: CheckpointStore,
  jobs: JobBook,
): TrainJob | undefined {
  const newest = checkpoints.partsByKey(idempotencyKey).at(-1);
  const active = jobs.findActive(idempotencyKey);
  const known = newest?.manifest.request?.sha256 ?? active?.requestSha256 ?? requestSha256;
  if (known !== requestSha256) throw reusedKeyError(idempotencyKey);
  const stored = checkpoints.findByKey(idempotencyKey);
  if (stored !== undefined) return finishedJob(model, { kind, idempotencyKey }, resultOf(stored));
  return active;
}

/** What followers are told of a committed step. */
export function stepEvents(model: string, { manifest }: StoredCheckpoint): readonly NewEvent[] {
  const { step, history, files } = manifest;
  const split = manifest.request?.kind ?? 'train';
  const metrics = metricsOf({ history, timings: [] });
  const parentStep = manifest.parentStep ?? step;
  const bytes = Object.values(files).reduce((sum, file) => sum + file.bytes, 0);
  return [
    { type: 'step.trained', data: { model, step, parent_step: parentStep, split, metrics } },
    { type: 'checkpoint.committed', data: { model, step, bytes } },
  ];
}
