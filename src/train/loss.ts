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
 * PPO's clipped surrogate: `L = −Σ w · min(ρA, clip(ρ, 1 − clipLow, 1 + clipHigh) · A)`.
 * Source: Schulman et al. 2017 (arXiv 1707.06347) eq. 7; two bounds as in DAPO (arXiv 2503.14476).
 */
export function ppoLoss(inputs: LossInputs, { clipLow, clipHigh }: ClipInputs): Tensor {
  const ratio = importanceRatio(inputs);
  const clipped = minimum(maximum(ratio, sub(1, clipLow)), add(1, clipHigh));
  return weightedSum(inputs, neg(minimum(mul(ratio, inputs.advantages), mul(clipped, inputs.advantages))));
}

/** Cross-entropy of the given tokens, `L = −Σ w · ln π`; what supervised training minimises. */
export function crossEntropyLoss(inputs: TokenInputs): Tensor {
  return weightedSum(inputs, neg(inputs.trainingLogprobs));
}

/** `Σ w · H`, H the entropy of the policy at each token; policy losses subtract a share of it to keep exploring. */
export function entropySum(inputs: { readonly entropies: Tensor; readonly weights: Tensor }): Tensor {
  return weightedSum(inputs, inputs.entropies);
}
