/** The jobs that earlier processes finished, as their checkpoints tell. Layer 5. */
import type { WireJob } from '../../wire/jobs.ts';
import { isLastPart } from '../store/checkpoint-manifest.ts';
import type { CheckpointStore } from '../store/checkpoints.ts';
import { resultOf } from '../store/step-result.ts';
import { finishedJob } from './jobs.ts';

export function storedJobs(model: string, checkpoints: Pick<CheckpointStore, 'list'>): WireJob[] {
  return checkpoints.list().flatMap((checkpoint) => {
    const { idempotencyKey, request } = checkpoint.manifest;
    if (idempotencyKey === null || !isLastPart(checkpoint.manifest)) return [];
    const identity = { kind: request?.kind ?? 'train', idempotencyKey } as const;
    return [finishedJob(model, identity, resultOf(checkpoint)).describe()];
  });
}
