/** The jobs that earlier processes finished, as their checkpoints tell. Layer 5. */
import type { WireJob } from '../wire/jobs.ts';
import { isLastPart } from './checkpoint-manifest.ts';
import type { CheckpointStore } from './checkpoints.ts';
import { finishedJob } from './jobs.ts';
import { resultOf } from './step-result.ts';

export function storedJobs(model: string, checkpoints: Pick<CheckpointStore, 'list'>): WireJob[] {
  return checkpoints.list().flatMap((checkpoint) => {
    const { idempotencyKey, request } = checkpoint.manifest;
    if (idempotencyKey === null || !isLastPart(checkpoint.manifest)) return [];
    const identity = { kind: request?.kind ?? 'train', idempotencyKey } as const;
    return [finishedJob(model, identity, resultOf(checkpoint)).describe()];
  });
}
