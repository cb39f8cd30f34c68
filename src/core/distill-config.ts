/** Options of on-policy distillation, with their defaults. Layer 0. The wire schema in `wire/` refuses any other key. */
import type { AdamOptions } from './train-config.ts';

/** How one `distill` call moves the policy towards the teacher on what the policy sampled. */
export interface DistillConfig {
  /**
   * reverseKl: each sampled token has the advantage ln teacher − ln sampled, importance-sampled, an estimate of the gradient of
   * KL(policy ‖ teacher). The others compare distributions over the teacher's `topK` best tokens and the rest as one outcome:
   * forwardKlTopK is KL(teacher ‖ policy), reverseKlTopK is KL(policy ‖ teacher), without the noise of sampling.
   */
  readonly loss: 'reverseKl' | 'forwardKlTopK' | 'reverseKlTopK';
  /** Best tokens of the teacher that are compared, 1 to 20; `reverseKl` needs none. */
  readonly topK: number;
  /** Multiplies the loss. */
  readonly coefficient: number;
  readonly learningRate: number;
  /** Passes over the batch. */
  readonly epochs: number;
  /** Optimizer updates of one pass: the sequences are cut into this many parts; at most one a sequence. */
  readonly gradientSteps: number;
  /** 0 = no clipping. */
  readonly maxGradNorm: number;
  readonly adam: AdamOptions;
  /** Decides the order of sequences over the gradient steps. */
  readonly seed: number;
}

export const defaultDistillConfig: DistillConfig = {
  loss: 'reverseKl',
  topK: 8,
  coefficient: 1,
  learningRate: 1e-4,
  epochs: 1,
  gradientSteps: 1,
  maxGradNorm: 1,
  adam: { beta1: 0.9, beta2: 0.99, epsilon: 1e-8, weightDecay: 0 },
  seed: 0,
};
