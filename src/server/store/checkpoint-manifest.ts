/** `checkpoint.json`: what a checkpoint is, what made it, and what its files must be. Layer 5. */
import { z } from 'zod';
import { jobKinds } from '../../wire/jobs.ts';
import { whoSchema } from '../security/caller.ts';

/** Where a run's first checkpoint was copied from: another model's. */
export const forkOrigin = z.strictObject({
  project: z.string(),
  model: z.string(),
  step: z.int().min(0),
  adapter_sha256: z.string(),
});
export type ForkOrigin = z.infer<typeof forkOrigin>;

const row = z.record(z.string(), z.union([z.number(), z.string()]));

export const checkpointManifest = z.strictObject({
  formatVersion: z.literal(1),
  step: z.int().min(0),
  /** Null for the first of a run. */
  parentStep: z.int().min(0).nullable(),
  /** Of the first checkpoint of a fork. */
  forkedFrom: forkOrigin.optional(),
  /** As registered; absent in older checkpoints. */
  baseModel: z.string().optional(),
  baseModelSha256: z.string(),
  packageVersion: z.string(),
  /** Of the `train` call that made it; null for step 0. */
  idempotencyKey: z.string().nullable(),
  /** The call that made it, which may make several; older checkpoints are the only one of a `train` call. */
  request: z
    .strictObject({ kind: z.enum(jobKinds), sha256: z.string(), part: z.int().min(0), parts: z.int().min(1) })
    .optional(),
  /** Collected rollouts that were trained, so that none is trained twice. */
  rollouts: z.array(z.string()).optional(),
  config: z.record(z.string(), z.unknown()).nullable(),
  /** SHA-256 of `trajectories/<kind>/<step>.jsonl`, as stored; null where there is no such file. Absent in older checkpoints. */
  dataSha256: z.string().nullable().optional(),
  /** Who asked for the step; absent in older checkpoints and step 0. */
  trainedBy: whoSchema.optional(),
  /** Rows of this step in history.jsonl and timings.jsonl; none for step 0. */
  history: z.array(row),
  timings: z.array(row),
  files: z.record(z.string(), z.strictObject({ bytes: z.int(), sha256: z.string() })),
});
export type CheckpointManifest = z.infer<typeof checkpointManifest>;

/** Whether the call that made it is done with it. */
export function isLastPart({ request }: CheckpointManifest): boolean {
  return request === undefined || request.part === request.parts - 1;
}
