/** Copies of checkpoints to and from places elsewhere, as the training API tells them. Layer 0. */
import * as z from 'zod';
import { errorBody } from './errors.ts';
import { job, jobStates } from './jobs.ts';
import { modelName, projectName, registerRequest } from './training.ts';

/** `s3://bucket[/prefix]`, or `hf://org/name[@revision]`. */
const remotePlace = z
  .string()
  .max(500)
  .regex(/^(s3|hf):\/\/[\w.@/-]+$/, 'must be s3://bucket[/prefix] or hf://org/name[@revision]');

/** `POST /api/models/{name}/push`. */
export const pushRequest = z.strictObject({
  to: remotePlace,
  /** Default: the newest. */
  step: z.int().min(0).optional(),
});
export type PushRequest = z.infer<typeof pushRequest>;

/** `POST /api/models/{name}/pull`. */
export const pullRequest = z.strictObject({
  /** What the model is, or becomes, here; its name is the one in the path. */
  model: registerRequest,
  from: remotePlace,
  /** Whose copy in S3; default: of the model's own project and name. */
  from_project: projectName.optional(),
  from_model: modelName.optional(),
  /** Default: the newest there. */
  step: z.int().min(0).optional(),
});
export type PullRequest = z.infer<typeof pullRequest>;

export const transferProgress = z.object({
  /** `check`: hashes of what is there; `finish`: it is put in its place. */
  stage: z.enum(['check', 'copy', 'finish']),
  done_bytes: z.int(),
  total_bytes: z.int(),
});
export type TransferProgress = z.infer<typeof transferProgress>;

export const transferResult = z.object({
  /** Where exactly the copy is; of the hub with its commit. */
  place: z.string(),
  step: z.int(),
  adapter_sha256: z.string(),
  files: z.int(),
  bytes: z.int(),
  /** Files that were there already with the same bytes. */
  skipped_files: z.int(),
  copied_bytes: z.int(),
  /** False: a pull found the checkpoint in its place. */
  is_new: z.boolean(),
});
export type TransferResult = z.infer<typeof transferResult>;

const time = z.iso.datetime();

export const transferKinds = ['push', 'pull'] as const;

/** A copy as a job; it is remembered until the server ends. */
export const transferJob = z.object({
  id: z.string(),
  kind: z.enum(transferKinds),
  model: z.string(),
  state: z.enum(jobStates),
  progress: transferProgress.nullable(),
  result: transferResult.nullable(),
  error: errorBody.shape.error.nullable(),
  created_at: time,
  started_at: time.nullable(),
  finished_at: time.nullable(),
});
export type WireTransferJob = z.infer<typeof transferJob>;

/** What `/api/jobs` lists. */
export const anyJob = z.union([job, transferJob]);
export type WireAnyJob = z.infer<typeof anyJob>;

export const jobList = z.object({ jobs: z.array(anyJob) });
