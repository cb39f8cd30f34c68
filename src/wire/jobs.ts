/** Jobs of the training API: a `train`, `sft` or `distill` call as an object that can be looked at, followed and cancelled. Layer 0. */
import * as z from 'zod';
import { errorBody } from './errors.ts';
import { trainProgress, trainResult } from './training.ts';

export const jobKinds = ['train', 'sft', 'distill'] as const;
export type JobKind = (typeof jobKinds)[number];

export const jobStates = ['queued', 'running', 'done', 'failed', 'cancelled'] as const;
export type JobState = (typeof jobStates)[number];

const time = z.iso.datetime();

/** `GET /api/jobs/{id}`. */
export const job = z.object({
  /** Made of model, kind and idempotency key, so it is the same however often the call is sent. */
  id: z.string(),
  kind: z.enum(jobKinds),
  model: z.string(),
  idempotency_key: z.string(),
  state: z.enum(jobStates),
  /** Null before the first report, and of a job that an earlier process ran. */
  progress: trainProgress.nullable(),
  /** Set when the state is `done`. */
  result: trainResult.nullable(),
  /** Set when the state is `failed` or `cancelled`. */
  error: errorBody.shape.error.nullable(),
  /** Null where an earlier process ran the job. */
  created_at: time.nullable(),
  started_at: time.nullable(),
  finished_at: time.nullable(),
});
export type WireJob = z.infer<typeof job>;
