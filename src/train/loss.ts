/**
 * Policy losses as functions over graphs, side by side. Layer 3. All tensors [M, 1] float32, one row per action token, nats.
 * Each returns the weighted sum over rows, shape []; the caller's weights decide the normalisation (1 / action tokens of the whole
 * batch gives DAPO's token mean).
 */
import { add, exp, maximum, minimum, mul, neg, reduceSum, stopGradient, sub, type Tensor } from '../graph/builder.ts';

export interface TokenInputs {
  readonly trainingLogprobs: Tensor;
  readonly weights: Tensor;
}

export interface LossInputs extends TokenInputs {
  readonly samplingLogprobs: Tensor;
  readonly advantages: Tensor;
}

export interface SequenceLossInputs extends TokenInputs {
  /** ln of the ratio of the whole trajectory, equal in all of its rows. */
  readonly sequenceLogRatios: Tensor;
  readonly advantages: Tensor;
}

/** Bounds as scalar tensors, so that one compiled graph serves every clip range. */
export interface ClipInputs {
  readonly clipLow: Tensor;
  readonly clipHigh: Tensor;
}

function importanceRatio(inputs: LossInputs): Tensor {
  return exp(sub(inputs.trainingLogprobs, inputs.samplingLogprobs));
}

function weightedSum(inputs: { readonly weights: Tensor }, perToken: Tensor): Tensor {
  return reduceSum(mul(inputs.weights, perToken), [0, 1]);
}

/**
 * CISPO: `L = −Σ w · sg(clip(ρ, clipLow, clipHigh)) · A · ln π`, ρ = exp(training − sampling). No token loses its gradient.
 * Source: MiniMax-M1 (arXiv 2506.13585) eq. 4–5.
 */
export function cispoLoss(inputs: LossInputs, { clipLow, clipHigh }: ClipInputs): Tensor {
  const weight = stopGradient(minimum(maximum(importanceRatio(inputs), clipLow), clipHigh));
  return weightedSum(inputs, neg(mul(mul(weight, inputs.advantages), inputs.trainingLogprobs)));
}

/**
 * PPO's clipped surrogate: `L = −Σ w · min(ρA, clip(ρ, 1 − clipLow, 1 + clipHigh) · A)`. Source: Schulman et al. 2017 (arXiv 1707.06347)
 * eq. 7; two bounds as in DAPO (arXiv 2503.14476). GRPO, DAPO, Dr. GRPO and BNPO are this loss; they differ in advantages and weights.
 */
export function ppoLoss(inputs: LossInputs, clip: ClipInputs): Tensor {
  return clippedSurrogate(importanceRatio(inputs), inputs, clip);
}

/**
 * GSPO: `L = −Σ w · min(sA, clip(s, 1 − clipLow, 1 + clipHigh) · A)`, s = exp(mean over the trajectory's action tokens of training − sampling).
 * The mean is the caller's, because a trajectory may stand in several microbatches; here s moves with each token's own logprob, so
 * that d(loss)/d(ln π) = −w·s·A in a sequence that is not clipped, else 0. With one advantage a trajectory and w = 1 / its tokens that is the
 * gradient of GSPO. Source: Zheng et al. 2025 (arXiv 2507.18071) eq. 5, 7, 10; as tokens eq. 13–17.
 */
export function gspoLoss(inputs: SequenceLossInputs, clip: ClipInputs): Tensor {
  const still = sub(inputs.trainingLogprobs, stopGradient(inputs.trainingLogprobs)); // 0, with the gradient of ln π
  return clippedSurrogate(exp(add(inputs.sequenceLogRatios, still)), inputs, clip);
}

function clippedSurrogate(
  ratio: Tensor,
  inputs: { readonly advantages: Tensor; readonly weights: Tensor },
  { clipLow, clipHigh }: ClipInputs,
): Tensor {
  const clipped = minimum(maximum(ratio, sub(1, clipLow)), add(1, clipHigh));
  return weightedSum(inputs, neg(minimum(mul(ratio, inputs.advantages), mul(clipped, inputs.advantages))));
}

/** Importance sampling, nothing clipped: `L = −Σ w · ρA`, whose gradient is −w·ρ·A by ln π. Unbiased where the sampler covers the policy. */
export function importanceSamplingLoss(inputs: LossInputs): Tensor {
  return weightedSum(inputs, neg(mul(importanceRatio(inputs), inputs.advantages)));
}

/**
 * `Σ w · (exp(x) − x − 1)`, x = reference − training: the k3 estimate of KL(policy ‖ reference), never negative. Source: Schulman 2020,
 * "Approximating KL divergence"; DeepSeekMath (arXiv 2402.03300) eq. 4.
 */
export function klK3Sum(inputs: TokenInputs & { readonly referenceLogprobs: Tensor }): Tensor {
  const x = sub(inputs.referenceLogprobs, inputs.trainingLogprobs);
  return weightedSum(inputs, sub(sub(exp(x), x), 1));
}

/** Cross-entropy of the given tokens, `L = −Σ w · ln π`; what supervised training minimises. */
export function crossEntropyLoss(inputs: TokenInputs): Tensor {
  return weightedSum(inputs, neg(inputs.trainingLogprobs));
}

/** `Σ w · H`, H the entropy of the policy at each token; policy losses subtract a share of it to keep exploring. */
export function entropySum(inputs: { readonly entropies: Tensor; readonly weights: Tensor }): Tensor {
  return weightedSum(inputs, inputs.entropies);
}
