/** Checkpoints, what is in the trash, and how many are kept: as the training API tells them. Layer 0. */
import * as z from 'zod';
import { jobKinds } from './jobs.ts';

const time = z.iso.datetime();

/** `GET /api/models/{name}/checkpoints/{step}`. */
export const checkpointInfo = z.object({
  model: z.string(),
  step: z.int(),
  /** Null for step 0. */
  parent_step: z.int().nullable(),
  /** What made it; null for step 0. */
  kind: z.enum(jobKinds).nullable(),
  /** Whether this is what `name` serves. */
  is_newest: z.boolean(),
  created_at: time,
  bytes: z.int(),
  adapter_sha256: z.string(),
  /** Names of files that can be downloaded. */
  files: z.array(z.object({ name: z.string(), bytes: z.int(), sha256: z.string() })),
  /** Of its step, timings included. */
  metrics: z.record(z.string(), z.number()),
  provenance: z.object({
    package_version: z.string(),
    base_model: z.string(),
    base_model_sha256: z.string(),
    /** Of the request that it was trained on; null for step 0 and for checkpoints of older versions. */
    request_sha256: z.string().nullable(),
    /** Of the trajectories as stored; null where there are none. */
    data_sha256: z.string().nullable(),
    /** Who asked for the step: the local user or a key; null for step 0 and for checkpoints of older versions. */
    trained_by: z.looseObject({ kind: z.string() }).nullable(),
    /** Training options with their defaults filled in; null for step 0. */
    config: z.record(z.string(), z.unknown()).nullable(),
  }),
});
export type CheckpointInfo = z.infer<typeof checkpointInfo>;

export const checkpointList = z.object({ checkpoints: z.array(checkpointInfo), next_from: z.int().nullable() });

export const rollbackRequest = z.strictObject({
  /** A step whose checkpoint is there, before the one that is served. */
  step: z.int().min(0),
});

/** Which steps went to the trash, and under which ids they can be restored. */
export const removedCheckpoints = z.object({
  /** The step that is served. */
  step: z.int(),
  removed: z.array(z.object({ step: z.int(), trash_id: z.string() })),
});
export type RemovedCheckpoints = z.infer<typeof removedCheckpoints>;

/** Which checkpoints are kept; the newest always is, and null in both keeps all. */
export const retention = z.strictObject({
  /** So many of the newest. */
  keep_last: z.int().min(1).max(100_000).nullable(),
  /** So many of those with the best value of a metric of the history. */
  keep_best: z
    .strictObject({
      metric: z.string().min(1).max(200),
      split: z.string().min(1).max(32),
      count: z.int().min(1).max(100_000),
      mode: z.enum(['max', 'min']),
    })
    .nullable(),
});
export type Retention = z.infer<typeof retention>;

export const trashItem = z.object({
  id: z.string(),
  project: z.string(),
  kind: z.string(),
  name: z.string(),
  path: z.string(),
  deleted_at: z.string(),
  deleted_by: z.looseObject({ kind: z.string() }),
});

export const trashList = z.object({ items: z.array(trashItem) });

export const deletedModel = z.object({ name: z.string(), trash_id: z.string() });

/** The first answer to a call that needs confirmation. */
export const confirmationNeeded = z.object({
  error: z.object({ message: z.string(), type: z.string(), param: z.string().nullable(), code: z.string().nullable() }),
  confirmation_token: z.string(),
  /** Seconds. */
  expires_in: z.number(),
  /** What will happen. */
  what: z.string(),
});
