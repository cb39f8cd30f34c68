/**
 * The training API (`/api`) as zod schemas; the SDK and the server both import them. Layer 0. Snake case here, camel case in `core/`.
 * Every object is strict: an unknown key is refused by name.
 */
import { z } from 'zod';
import { decayNames } from '../core/schedule.ts';
import { rolloutGroup } from './rollouts.ts';

const scalar = z.union([z.string(), z.number(), z.boolean(), z.null()]);
const metrics = z.record(z.string(), z.union([z.number(), z.boolean()]));
const metadata = z.record(z.string(), scalar);

/** A model name: also a folder name, so it is checked before it reaches the file system. */
export const modelName = z
  .string()
  .regex(
    /^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$/,
    'must be 1–100 letters, digits, dots, dashes or underscores, starting with a letter or digit',
  )
  .refine(
    (name) => !/^(con|prn|aux|nul|com\d|lpt\d)(\.|$)/i.test(name) && !name.endsWith('.'),
    'must not be the name of a device of Windows or end with a dot',
  );

/** Beside the folders of projects lie files: keys.json, audit.jsonl and what belongs to them. */
export const projectName = modelName.refine(
  (name) => !/\.(jsonl?|lock|tmp)$/i.test(name),
  'must not end with .json, .jsonl, .lock or .tmp',
);

/** Text of one line, as paths and ids are. */
const line = z
  .string()
  .min(1)
  .max(4096)
  .refine((text) => [...text].every((character) => character >= ' '), 'must not hold control characters');

/** `POST /api/models`. Sent again for the same name, it must say the same. */
export const registerRequest = z.strictObject({
  name: modelName,
  project: projectName,
  /** Folder of a Hugging Face model or .gguf file on the server's machine, or an id of the hub: `org/name[@revision][:file.gguf]`. */
  base_model: line,
  lora: z.strictObject({
    rank: z.int().min(1).max(1024),
    alpha: z.number().positive().max(1_000_000),
    target_modules: z.array(z.string()).min(1).optional(),
  }),
  /** Seed of the adapter's initial weights. */
  seed: z.int().min(0),
  /** Jinja text that takes the place of the base model's own. */
  chat_template: z.string().min(1).max(262_144).optional(),
});
export type RegisterRequest = z.infer<typeof registerRequest>;

/** Answer 202 to a registration that takes long. It goes on; the same request sent again waits for it. */
export const registrationPending = z.object({
  status: z.literal('opening'),
  /** Of a download; 0 while there is none. */
  received_bytes: z.number(),
  total_bytes: z.number(),
});
export type RegistrationPending = z.infer<typeof registrationPending>;

/** Answer to a registration and to `GET /api/models/{name}`. */
export const modelInfo = z.object({
  name: z.string(),
  project: z.string(),
  base_model: z.string(),
  /** Newest policy step: the number of finished `train` calls. */
  step: z.int(),
  parameters: z.int(),
  trainable_parameters: z.int(),
  /** Folder with model.json, history.jsonl, timings.jsonl, checkpoints/, trajectories/. */
  directory: z.string(),
  engine: z.object({
    rss_bytes: z.number(),
    peak_rss_bytes: z.number(),
    sampled_tokens: z.number(),
    prefilled_tokens: z.number(),
    sampling_seconds: z.number(),
    trained_tokens: z.number(),
    training_seconds: z.number(),
  }),
});
export type ModelInfo = z.infer<typeof modelInfo>;

/** A turn that the policy sampled, by reference: the server that sampled it holds ids, logprobs and policy step. */
const choiceReference = z.strictObject({
  completion_id: z.string(),
  choice_index: z.int().min(0),
});

const trajectoryEntry = z.union([
  z.strictObject({ message: z.looseObject({ role: z.string() }) }),
  z.strictObject({ message: z.looseObject({ role: z.string() }), choice: choiceReference }),
]);

/** OpenAI's definitions of the tools that a history had. */
const toolDefinitions = z.array(z.looseObject({}));

/** A `Trajectory` of `core/`, whose sampled turns travel by reference. */
export const wireTrajectory = z.strictObject({
  /** In order; entries with `choice` are trained. */
  entries: z.array(trajectoryEntry),
  tools: toolDefinitions.nullable().optional(),
  /** Conversations of sub-agents and the like, under the same reward. */
  additional_histories: z
    .array(z.strictObject({ entries: z.array(trajectoryEntry), tools: toolDefinitions.nullable().optional() }))
    .optional(),
  reward: z.number(),
  /** Credit beside `reward`: one for each entry with `choice`, first of `entries`, then of the additional histories. */
  turn_rewards: z.array(z.number()).optional(),
  metrics,
  metadata,
  logs: z.array(z.string()),
});
export type WireTrajectory = z.infer<typeof wireTrajectory>;

/** A `TrajectoryGroup` of `core/`. */
export const wireGroup = z.strictObject({
  trajectories: z.array(wireTrajectory),
  exceptions: z.array(z.strictObject({ type: z.string(), message: z.string(), stack: z.string().optional() })),
  metrics,
  metadata,
  logs: z.array(z.string()),
});
export type WireGroup = z.infer<typeof wireGroup>;

/** The optimizer's part of the options of `train` and `sft`. */
export const adamOptions = z.strictObject({
  beta1: z.number().min(0).lt(1).optional(),
  beta2: z.number().min(0).lt(1).optional(),
  epsilon: z.number().positive().optional(),
  weight_decay: z.number().min(0).optional(),
});

const ratioRange = z.tuple([z.number().min(0), z.number().positive()]);

/** The policy that a KL penalty holds on to. */
const klReference = z.union([
  z.literal('base'),
  z.strictObject({ step: z.int().min(0) }),
  z.strictObject({ steps_back: z.int().min(1) }),
]);

/** `TrainConfig` of `core/`, which has the meaning and the default of each; `docs/training.md` explains them. Names of losses have snake case too. */
export const trainOptions = z.strictObject({
  learning_rate: z.number().positive().optional(),
  learning_rate_schedule: z
    .strictObject({
      decay: z.enum(decayNames),
      warmup_steps: z.int().min(0).optional(),
      total_steps: z.int().min(1).nullable().optional(),
    })
    .nullable()
    .optional(),
  loss: z.enum(['cispo', 'ppo', 'grpo', 'dapo', 'dr_grpo', 'bnpo', 'gspo', 'importance_sampling']).optional(),
  clip_low: z.number().min(0).nullable().optional(),
  clip_high: z.number().min(0).nullable().optional(),
  importance_cap: z.number().min(1).nullable().optional(),
  importance_mask: ratioRange.nullable().optional(),
  sequence_mask: ratioRange.nullable().optional(),
  advantage: z.enum(['group_std', 'group_center', 'batch_std', 'leave_one_out']).nullable().optional(),
  max_advantage: z.number().positive().nullable().optional(),
  length_normalization: z.enum(['token', 'part', 'trajectory', 'constant']).nullable().optional(),
  max_completion_tokens: z.int().min(1).nullable().optional(),
  overlong: z
    .strictObject({ mask: z.boolean().optional(), buffer_tokens: z.int().min(0).optional() })
    .nullable()
    .optional(),
  kl_penalty: z
    .strictObject({
      weight: z.number().positive(),
      reference: klReference.optional(),
      form: z.enum(['loss', 'advantage']).optional(),
    })
    .nullable()
    .optional(),
  entropy_bonus: z.number().min(0).optional(),
  turn_discount: z.number().positive().max(1).optional(),
  gradient_steps: z.int().min(1).max(1024).optional(),
  epochs: z.int().min(1).max(100).optional(),
  max_grad_norm: z.number().min(0).optional(),
  adam: adamOptions.optional(),
  seed: z.int().min(0).optional(),
});
export type WireTrainOptions = z.infer<typeof trainOptions>;

/** `POST /api/models/{name}/train`. */
export const trainRequest = z.strictObject({
  /** Sent twice, it trains once: the second answer is the first one's result. */
  idempotency_key: z.string().min(1).max(200),
  /** Trajectories of the sender, or rollouts that the server collected. */
  groups: z.array(z.union([wireGroup, rolloutGroup])),
  /** What to do with rollouts that an earlier step trained; default `refuse`. */
  trained_rollouts: z.enum(['refuse', 'skip']).optional(),
  options: trainOptions,
});
export type TrainRequest = z.infer<typeof trainRequest>;

/** Server-sent events of `POST /api/models/{name}/train`: any number of `progress`, then one `result` or one `error`. */
export const trainProgress = z.object({
  stage: z.enum(['batch', 'score', 'train', 'publish', 'verify', 'checkpoint']),
  done: z.int(),
  total: z.int(),
});
export type TrainProgress = z.infer<typeof trainProgress>;

/** The event `result`. */
export const trainResult = z.object({
  /** The policy step that is served from here on. */
  step: z.int(),
  /** The row that `history.jsonl` got, plus `time/…` and `throughput/…` of `timings.jsonl`. */
  metrics: z.record(z.string(), z.number()),
  checkpoint_path: z.string(),
  adapter_sha256: z.string(),
});
export type TrainResult = z.infer<typeof trainResult>;

/** `POST /api/models/{name}/log`. */
export const logRequest = z.strictObject({
  split: z.string().regex(/^[a-z][a-z0-9_]{0,31}$/, 'must be a lower-case word such as val'),
  /** Null: the newest step. */
  step: z.int().min(0).nullable(),
  groups: z.array(wireGroup),
  metrics: z.record(z.string(), z.number()),
});
export type LogRequest = z.infer<typeof logRequest>;

/** Its answer. */
export const logResponse = z.object({ step: z.int() });

/** `GET /api/models`. */
export const modelList = z.object({ models: z.array(modelInfo) });

/** `GET /api/models/{name}/history`: rows as in history.jsonl, oldest first. */
export const historyResponse = z.object({
  rows: z.array(z.record(z.string(), z.union([z.number(), z.string()]))),
  /** `offset` of the next page; null at the end. */
  next_offset: z.int().nullable(),
});
export type HistoryResponse = z.infer<typeof historyResponse>;
