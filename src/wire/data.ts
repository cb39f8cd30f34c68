/** Reading a run's data and the server's state through the training API: metrics, trajectories, jobs, health. Layer 0. */
import * as z from 'zod';
import { engineStates } from './events.ts';
import { jobStates } from './jobs.ts';
import { queryBoolean, queryInteger } from './route.ts';

const step = queryInteger(0, Number.MAX_SAFE_INTEGER);
const maxRows = 10_000;

export const splitName = z.string().regex(/^[a-z][a-z0-9_]{0,31}$/, 'must be a lower-case word such as val');

/** Which rows of the history: of a split, of steps `from` to `to`, both included; `offset` rows are skipped, then at most `limit` told. */
export const historyQuery = z.strictObject({
  split: splitName.optional(),
  from: step.optional(),
  to: step.optional(),
  offset: queryInteger(0, Number.MAX_SAFE_INTEGER).optional(),
  limit: queryInteger(1, maxRows).optional(),
});
export type HistoryQuery = z.infer<typeof historyQuery>;

/** One metric over the steps. */
export const metricsQuery = historyQuery.extend({
  /** As in the history or the timings, e.g. `loss/train`, `time/step_trainer_s`. */
  name: z.string().min(1).max(200),
});

export const metricSeries = z.object({
  name: z.string(),
  points: z.array(z.object({ step: z.int(), split: z.string(), value: z.number() })),
  /** `offset` of the next page; null at the end. */
  next_offset: z.int().nullable(),
});
export type MetricSeries = z.infer<typeof metricSeries>;

/** Names of all metrics that were ever logged. */
export const metricNames = z.object({ names: z.array(z.string()) });

export const trajectoriesQuery = z.strictObject({
  split: splitName.optional(),
  from: step.optional(),
  to: step.optional(),
});

/** Files of trajectories: each has its own route, as JSON lines. */
export const trajectoryFiles = z.object({
  files: z.array(z.object({ split: z.string(), step: z.int(), bytes: z.int() })),
});

/** A line of `GET /api/models/{name}/trajectories/{split}/{step}`: a trajectory of a group, or what belongs to the whole group. */
export const trajectoryLine = z.looseObject({ group: z.int() });

export const jobsQuery = z.strictObject({ model: z.string().optional(), state: z.enum(jobStates).optional() });

/** `wait=false`: answer with the job at once; it is followed at `/api/jobs/{id}`. */
export const startQuery = z.strictObject({ wait: queryBoolean.optional() });

export const checkpointsQuery = z.strictObject({
  from: step.optional(),
  to: step.optional(),
  limit: queryInteger(1, 1_000).optional(),
});

export const eventsQuery = z.strictObject({
  model: z.string().optional(),
  /** As the header `Last-Event-ID`, for clients that cannot set it. */
  last_event_id: queryInteger(0, Number.MAX_SAFE_INTEGER).optional(),
});

export const confirmationQuery = z.strictObject({
  /** As the header `x-art-confirmation`. */
  confirmation_token: z.string().optional(),
});

const memory = z.object({ rss_bytes: z.number(), heap_used_bytes: z.number() });

/** `GET /api/health`. */
export const health = z.object({
  /** `unavailable`: an engine does not answer; the status is 503 then. */
  status: z.enum(['ok', 'unavailable']),
  version: z.string(),
  node_version: z.string(),
  uptime_seconds: z.number(),
  memory,
  models: z.array(
    z.object({
      name: z.string(),
      project: z.string(),
      step: z.int(),
      status: z.enum(['ok', 'unavailable']),
      engine_state: z.enum(engineStates),
      /** Jobs that wait or run. */
      training_jobs: z.int(),
      /** Null while the engine does not answer. */
      engine: z
        .object({
          policy_steps: z.array(z.int()),
          running_sequences: z.int(),
          waiting_sequences: z.int(),
          rss_bytes: z.number(),
          sampled_tokens: z.number(),
        })
        .nullable(),
      error: z.string().nullable(),
    }),
  ),
});
export type Health = z.infer<typeof health>;
