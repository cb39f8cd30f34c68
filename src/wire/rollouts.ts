/** Rollouts that the server collects (`/api/rollouts`), as zod schemas. Layer 0. */
import { z } from 'zod';
import { formatValue, refuse } from './errors.ts';

/** The client's own name for a rollout, or for a group of them. */
export const rolloutId = z
  .string()
  .regex(
    /^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$/,
    'must be 1–128 letters, digits, dots, colons, dashes or underscores, starting with a letter or digit',
  );

/** Throws ApiError 400 that names the field. */
export function parseRolloutId(value: string, field: string): string {
  const { data, error } = rolloutId.safeParse(value);
  if (data !== undefined) return data;
  throw refuse(400, 'invalid_value', `${field}: ${error?.issues[0]?.message}, got ${formatValue(value)}`, field);
}

export const rolloutStates = ['open', 'finished', 'trained', 'expired', 'captured'] as const;
/**
 * `expired`: no call for too long, or what it needs is not kept any more; `captured`: a client has taken its turns, and scores and trains
 * them itself.
 */
export type RolloutState = (typeof rolloutStates)[number];

/** `POST /api/rollouts/{id}/reward`: ends the rollout. */
export const rewardRequest = z.strictObject({
  reward: z.number(),
  metrics: z.record(z.string(), z.union([z.number(), z.boolean()])).optional(),
  metadata: z.record(z.string(), z.union([z.string(), z.number(), z.boolean(), z.null()])).optional(),
  /** Rollouts of one scenario say the same: their rewards are compared. */
  group: rolloutId.optional(),
  /** Takes the place of an outcome posted before, unless it is trained already. */
  replace: z.boolean().optional(),
});
export type RewardRequest = z.infer<typeof rewardRequest>;

/** A rollout without its turns. */
export const rolloutSummary = z.object({
  id: z.string(),
  model: z.string(),
  state: z.enum(rolloutStates),
  calls: z.int(),
  /** Seconds since 1970. */
  started_at: z.number(),
  last_call_at: z.number(),
  finished_at: z.number().nullable(),
  reward: z.number().nullable(),
  metrics: z.record(z.string(), z.union([z.number(), z.boolean()])),
  metadata: z.record(z.string(), z.union([z.string(), z.number(), z.boolean(), z.null()])),
  group: z.string().nullable(),
  /** The step that trained it. */
  trained_step: z.int().nullable(),
});
export type RolloutSummary = z.infer<typeof rolloutSummary>;

/** `GET /api/rollouts`: newest first. */
export const rolloutQuery = z.strictObject({
  state: z.enum(rolloutStates).optional(),
  group: rolloutId.optional(),
  model: z.string().optional(),
  limit: z.coerce.number().int().min(1).max(1000).optional(),
});

export const rolloutList = z.object({ rollouts: z.array(rolloutSummary) });
export type RolloutList = z.infer<typeof rolloutList>;

const message = z.looseObject({ role: z.string() });

/** What was sent, or with `choice` and the fields below it what was sampled. */
const rolloutEntry = z.object({
  message,
  choice: z.object({ completion_id: z.string(), choice_index: z.int() }).optional(),
  policy_step: z.int().optional(),
  finish_reason: z.enum(['stop', 'length', 'tool_calls']).optional(),
  prompt_tokens: z.int().optional(),
  completion_tokens: z.int().optional(),
  /** Seconds since 1970. */
  sampled_at: z.number().optional(),
});

/** Turns that extend one another; sub-agents and rewritten prompts have histories of their own. */
export const rolloutHistory = z.object({
  entries: z.array(rolloutEntry),
  /** OpenAI's definitions of the tools that its calls had; null: none. */
  tools: z.array(z.looseObject({})).nullable(),
});
export type RolloutHistory = z.infer<typeof rolloutHistory>;

/** `GET /api/rollouts/{id}`: also each history, in the order of their first calls. */
export const rolloutDetail = rolloutSummary.extend({ histories: z.array(rolloutHistory) });
export type RolloutDetail = z.infer<typeof rolloutDetail>;

/** `POST /api/rollouts/{id}/capture`: what each model sampled in it. */
export const capturedRollout = z.object({
  id: z.string(),
  models: z.array(z.object({ model: z.string(), histories: z.array(rolloutHistory) })),
});
export type CapturedRollout = z.infer<typeof capturedRollout>;

/** In a `train` request: a group of collected rollouts, by their ids or by the `group` that their rewards named. */
export const rolloutGroup = z.union([
  z.strictObject({ rollouts: z.array(rolloutId).min(1) }),
  z.strictObject({ group: rolloutId }),
]);
export type RolloutGroup = z.infer<typeof rolloutGroup>;
