/**
 * On-policy distillation on the wire: `POST /api/models/{name}/distill`. Layer 0. Trajectories as in a `train` call, whose rewards nobody
 * reads, and a teacher among the models of the same server. The answer is that of a `train` call.
 */
import * as z from 'zod';
import { type DistillConfig, defaultDistillConfig } from '../core/distill-config.ts';
import { adamOptions, trainRequest } from './training.ts';
import { camelCase, toAdamConfig } from './training-names.ts';

/** Who scores what the policy sampled; its vocabulary must be the policy's. */
export const distillTeacher = z.strictObject({
  /** Name of a registered model: another, or the one that learns. */
  model: z.string().min(1),
  /** One of its served steps; default: the newest when the job begins. */
  step: z.int().min(0).nullable().optional(),
  /** System message that the teacher reads before each conversation, and the policy does not. */
  system_prompt: z.string().min(1).nullable().optional(),
});

/** `DistillConfig` of `core/`, which has the meaning and the default of each. Names of losses have snake case too. */
export const distillOptions = z.strictObject({
  loss: z.enum(['reverse_kl', 'forward_kl_top_k', 'reverse_kl_top_k']).optional(),
  top_k: z.int().min(1).max(20).optional(),
  coefficient: z.number().positive().optional(),
  learning_rate: z.number().positive().optional(),
  epochs: z.int().min(1).max(100).optional(),
  gradient_steps: z.int().min(1).max(10_000).optional(),
  max_grad_norm: z.number().min(0).optional(),
  adam: adamOptions.optional(),
  seed: z.int().min(0).optional(),
});

export const distillRequest = z.strictObject({
  /** Sent twice, it trains once: the second answer is the first one's result. */
  idempotency_key: z.string().min(1).max(200),
  teacher: distillTeacher,
  groups: trainRequest.shape.groups,
  options: distillOptions.default({}),
});
export type DistillRequest = z.infer<typeof distillRequest>;

export function toDistillConfig(options: DistillRequest['options']): DistillConfig {
  const base = defaultDistillConfig;
  return {
    loss: options.loss === undefined ? base.loss : (camelCase(options.loss) as DistillConfig['loss']),
    topK: options.top_k ?? base.topK,
    coefficient: options.coefficient ?? base.coefficient,
    learningRate: options.learning_rate ?? base.learningRate,
    epochs: options.epochs ?? base.epochs,
    gradientSteps: options.gradient_steps ?? base.gradientSteps,
    maxGradNorm: options.max_grad_norm ?? base.maxGradNorm,
    adam: toAdamConfig(options.adam, base.adam),
    seed: options.seed ?? base.seed,
  };
}
