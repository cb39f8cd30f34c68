/** Checkpoints, what is in the trash, and how many are kept: as the training API tells them. Layer 0. */
import * as z from 'zod';
import { jobKinds } from './jobs.ts';
import { projectName, registerRequest } from './training.ts';

const time = z.iso.datetime();

const forkOrigin = z.object({ project: z.string(), model: z.string(), step: z.int(), adapter_sha256: z.string() });

/** `GET /api/models/{name}/checkpoints/{step}`. */
export const checkpointInfo = z.object({
  model: z.string(),
  step: z.int(),
  /** Null for the first of a run. */
  parent_step: z.int().nullable(),
  /** What made it; null for the first of a run. */
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
    /** Of the first checkpoint of a fork: whose checkpoint it is a copy of. */
    forked_from: forkOrigin.nullable(),
  }),
});
export type CheckpointInfo = z.infer<typeof checkpointInfo>;

export const checkpointList = z.object({ checkpoints: z.array(checkpointInfo), next_from: z.int().nullable() });

/** `POST /api/models/{name}/fork`: a new model begins with a copy of a checkpoint of the model in the path. */
export const forkRequest = z
  .strictObject({
    /** The new model. Base model and adapter must be those of the model in the path. */
    model: registerRequest,
    /** Project of the model in the path; default that of the new one. */
    from_project: projectName.optional(),
    /** Default: the newest, or the newest that is not after `not_after_step`. */
    step: z.int().min(0).optional(),
    not_after_step: z.int().min(0).optional(),
  })
  .refine(
    ({ step, not_after_step: limit }) => step === undefined || limit === undefined,
    'step and not_after_step: only one of them may be given',
  );
export type ForkRequest = z.infer<typeof forkRequest>;

/** Its answer. */
export const forkResult = z.object({
  model: z.string(),
  project: z.string(),
  /** Its first step: that of the checkpoint it was copied from. */
  step: z.int(),
  from: forkOrigin,
  /** False: the same fork was made before, and the model may have gone on since. */
  is_new: z.boolean(),
});
export type ForkResult = z.infer<typeof forkResult>;

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
