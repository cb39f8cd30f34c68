/**
 * Options of one training step, their defaults, and what each named loss stands for. Layer 0. The wire schema in `wire/` refuses any
 * other key; train-config-rules.ts refuses what does not go together. docs/training.md explains every option.
 */
import type { AdvantageKind } from './advantage.ts';
import type { DecayName } from './schedule.ts';

/** AdamW's settings; `weightDecay` is decoupled from the gradient. */
export interface AdamOptions {
  readonly beta1: number;
  readonly beta2: number;
  readonly epsilon: number;
  readonly weightDecay: number;
}

/** Losses by the names of their papers; each is a row of `lossDefaults`. */
export type PolicyLossName = 'cispo' | 'ppo' | 'grpo' | 'dapo' | 'drGrpo' | 'bnpo' | 'gspo' | 'importanceSampling';

/** What a token's loss is divided by, before it is summed over an update; see `LengthNormalization` in docs/training.md. */
export type LengthNormalization = 'token' | 'part' | 'trajectory' | 'constant';

/** A learning rate that changes from step to step; `decayingSchedule` of schedule.ts over the policy steps of the run. */
export interface LearningRateSchedule {
  readonly decay: DecayName;
  readonly warmupSteps: number;
  /** Policy steps of the whole run; null only with `constant`. */
  readonly totalSteps: number | null;
}

/** The policy that a KL penalty holds on to: the model before training, a step, or the step so many before the one in training. */
export type KlReference = 'base' | { readonly step: number } | { readonly stepsBack: number };

export interface KlPenalty {
  readonly weight: number;
  readonly reference: KlReference;
  /** `loss`: adds weight · k3 to the loss; `advantage`: shifts each token's advantage by weight · (mean − own), which sums to zero. */
  readonly form: 'loss' | 'advantage';
}

/** What to do about trajectories that are too long. */
export interface OverlongOptions {
  /** Trajectories of which a turn was cut by its token limit are not trained; their rewards still count in their group. */
  readonly mask: boolean;
  /** Rewards fall from 0 at maxCompletionTokens − bufferTokens to −1 at maxCompletionTokens (DAPO's soft punishment); 0 = none. */
  readonly bufferTokens: number;
}

/** Smallest and largest ratio that is kept. */
export type RatioRange = readonly [min: number, max: number];

/** How one `train` call turns trajectory groups into optimizer updates. Null: what the loss's row of `lossDefaults` says, or off. */
export interface TrainConfig {
  /** Of every update of the call; the peak, where there is a schedule. */
  readonly learningRate: number;
  /** From the number of the step, so that a resumed run goes on where it was; null: the same rate at every step. */
  readonly learningRateSchedule: LearningRateSchedule | null;
  readonly loss: PolicyLossName;
  /** cispo: ratio weights are held to [clipLow, clipHigh]; others: ratio to [1 − clipLow, 1 + clipHigh]. */
  readonly clipLow: number | null;
  readonly clipHigh: number | null;
  /**
   * Most that a token's loss may weigh because sampler and trainer differ (truncated importance sampling). Null: 2 where they may differ
   * at the same weights, as with int8 rollouts; no such weight where they are exact.
   */
  readonly importanceCap: number | null;
  /** Tokens whose π_old/μ lies outside are left out of the loss (masked importance sampling, IcePop). */
  readonly importanceMask: RatioRange | null;
  /** Trajectories whose geometric mean of π_old/μ lies outside are left out. */
  readonly sequenceMask: RatioRange | null;
  readonly advantage: AdvantageKind | null;
  /** Advantages are held to [−maxAdvantage, maxAdvantage]. */
  readonly maxAdvantage: number | null;
  readonly lengthNormalization: LengthNormalization | null;
  /** Most tokens that the policy can sample in one trajectory: the divisor of `constant`, and where `overlong.bufferTokens` ends. */
  readonly maxCompletionTokens: number | null;
  readonly overlong: OverlongOptions | null;
  readonly klPenalty: KlPenalty | null;
  /** Weight of the policy's mean entropy over action tokens, which is added to the objective; keeps it from settling too early. 0 = none. */
  readonly entropyBonus: number;
  /**
   * Credit by distance to the end: turn k of n gets its trajectory's advantage times turnDiscount^(n − 1 − k). 1 = every turn alike,
   * as in plain GRPO; below 1 suits tasks in which the last turns decide.
   */
  readonly turnDiscount: number;
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
  learningRateSchedule: null,
  loss: 'cispo',
  clipLow: null,
  clipHigh: null,
  importanceCap: null,
  importanceMask: null,
  sequenceMask: null,
  advantage: null,
  maxAdvantage: null,
  lengthNormalization: null,
  maxCompletionTokens: null,
  overlong: null,
  klPenalty: null,
  entropyBonus: 0,
  turnDiscount: 1,
  gradientSteps: 1,
  epochs: 1,
  maxGradNorm: 1,
  adam: { beta1: 0.9, beta2: 0.99, epsilon: 1e-8, weightDecay: 0 },
  seed: 0,
};

/** What nested options leave out. */
export const defaultLearningRateSchedule: LearningRateSchedule = {
  decay: 'constant',
  warmupSteps: 0,
  totalSteps: null,
};
export const defaultKlPenalty: KlPenalty = { weight: 0, reference: 'base', form: 'loss' };
export const defaultOverlong: OverlongOptions = { mask: false, bufferTokens: 0 };

/** One kind of loss as what it is made of. */
export interface LossDefaults {
  /** The function of ratio and advantage; see train/loss.ts. */
  readonly surrogate: 'cispo' | 'ppo' | 'gspo' | 'importanceSampling';
  /** Null: nothing is clipped. */
  readonly clip: { readonly low: number; readonly high: number } | null;
  readonly advantage: AdvantageKind;
  readonly lengthNormalization: LengthNormalization;
}

const cispo = { surrogate: 'cispo', clip: { low: 0, high: 5 } } as const;
const ppo = { surrogate: 'ppo', clip: { low: 0.2, high: 0.2 } } as const;

/**
 * What each loss stands for. Sources: CISPO MiniMax-M1 (arXiv 2506.13585) with the range [0, 5]; PPO arXiv 1707.06347; GRPO arXiv
 * 2402.03300; DAPO arXiv 2503.14476; Dr. GRPO arXiv 2503.20783; BNPO as TRL names it; GSPO arXiv 2507.18071.
 */
export const lossDefaults: { readonly [K in PolicyLossName]: LossDefaults } = {
  cispo: { ...cispo, advantage: 'groupStd', lengthNormalization: 'part' },
  ppo: { ...ppo, advantage: 'groupStd', lengthNormalization: 'part' },
  grpo: { ...ppo, advantage: 'groupStd', lengthNormalization: 'trajectory' },
  dapo: { ...ppo, clip: { low: 0.2, high: 0.28 }, advantage: 'groupStd', lengthNormalization: 'token' },
  drGrpo: { ...ppo, advantage: 'groupCenter', lengthNormalization: 'constant' },
  bnpo: { ...ppo, advantage: 'groupStd', lengthNormalization: 'part' },
  gspo: {
    surrogate: 'gspo',
    clip: { low: 3e-4, high: 4e-4 },
    advantage: 'groupStd',
    lengthNormalization: 'trajectory',
  },
  importanceSampling: {
    surrogate: 'importanceSampling',
    clip: null,
    advantage: 'groupStd',
    lengthNormalization: 'part',
  },
};

/** The loss of a configuration with what it leaves open filled in. */
export function resolveLoss(config: TrainConfig): LossDefaults {
  const { surrogate, clip, advantage, lengthNormalization } = lossDefaults[config.loss];
  return {
    surrogate,
    clip: clip && { low: config.clipLow ?? clip.low, high: config.clipHigh ?? clip.high },
    advantage: config.advantage ?? advantage,
    lengthNormalization: config.lengthNormalization ?? lengthNormalization,
  };
}

/** `importanceCap` of samplers that are not exact, where the user gave none. */
export const inexactImportanceCap = 2;
