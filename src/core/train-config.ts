/**
 * Options of one training step, with their defaults. Layer 0. The wire schema in `wire/` refuses any other key.
 */

/** AdamW's settings; `weightDecay` is decoupled from the gradient. */
export interface AdamOptions {
  readonly beta1: number;
  readonly beta2: number;
  readonly epsilon: number;
  readonly weightDecay: number;
}

/** How one `train` call turns trajectory groups into optimizer updates. */
export interface TrainConfig {
  /** Of every update of the call; a schedule is the caller's. */
  readonly learningRate: number;
  /** `cispo` (arXiv 2506.13585) or `ppo` (clipped surrogate, arXiv 1707.06347). */
  readonly loss: 'cispo' | 'ppo';
  /** cispo: ratio weights are held to [clipLow, clipHigh]; ppo: ratio to [1 − clipLow, 1 + clipHigh]. Null: the loss's default. */
  readonly clipLow: number | null;
  readonly clipHigh: number | null;
  /**
   * Most that a token's loss may weigh because sampler and trainer differ (truncated importance sampling). Null: 2 where they may differ
   * at the same weights, as with int8 rollouts; no such weight where they are exact.
   */
  readonly importanceCap: number | null;
  /** true: advantage = (r − mean) / (std + 1e-4) inside the group; false: centre only. */
  readonly normalizeAdvantages: boolean;
  /**
   * Credit by distance to the end: turn k of n gets its trajectory's advantage times turnDiscount^(n − 1 − k). 1 = every turn alike,
   * as in plain GRPO; below 1 suits tasks in which the last turns decide.
   */
  readonly turnDiscount: number;
  /** Weight of the policy's mean entropy over action tokens, which is added to the objective; keeps it from settling too early. 0 = none. */
  readonly entropyBonus: number;
  /** Optimizer updates of one pass over the batch: it is cut into this many parts, whole trajectories each; at most one a trajectory. */
  readonly gradientSteps: number;
  /** Passes over the batch. */
  readonly epochs: number;
  /** Global gradient norm is clipped to this; 0 = no clipping. */
  readonly maxGradNorm: number;
  readonly adam: AdamOptions;
  /** Decides the order of trajectories over the gradient steps. */
  readonly seed: number;
}

/** What a `train` call uses for every option that it leaves out. */
export const defaultTrainConfig: TrainConfig = {
  learningRate: 1e-4,
  loss: 'cispo',
  clipLow: null,
  clipHigh: null,
  importanceCap: null,
  normalizeAdvantages: true,
  turnDiscount: 1,
  entropyBonus: 0,
  gradientSteps: 1,
  epochs: 1,
  maxGradNorm: 1,
  adam: { beta1: 0.9, beta2: 0.99, epsilon: 1e-8, weightDecay: 0 },
  seed: 0,
};

/** Clip range of each loss where the user gave none: CISPO weights in [0, 5]; PPO's ε = 0.2 on both sides. */
export const defaultClip: {
  readonly [K in TrainConfig['loss']]: { readonly clipLow: number; readonly clipHigh: number };
} = {
  cispo: { clipLow: 0, clipHigh: 5 },
  ppo: { clipLow: 0.2, clipHigh: 0.2 },
};

/** `importanceCap` of samplers that are not exact, where the user gave none. */
export const inexactImportanceCap = 2;
