/**
 * Distances between a teacher's and the policy's distribution of a token, from the teacher's K best tokens. Layer 3. What they leave is one
 * more outcome, the tail, on both sides, so that both are distributions over K + 1 outcomes, and the distance is a lower bound of that
 * over the whole vocabulary. Sums over rows with weights, shape []. Source: generalised knowledge distillation, Agarwal et al. 2023
 * (arXiv 2306.13649) section 3, for the distances on what the policy sampled; the tail is ours.
 */
import { add, exp, log, maximum, mul, reduceSum, sub, type Tensor, takeAlongLast } from '../graph/builder.ts';

export interface DistillationInputs {
  /** Log-probabilities of the policy over the vocabulary, [M, V]. */
  readonly distribution: Tensor;
  /** [M, K] int64; no token twice in a row. */
  readonly teacherIds: Tensor;
  /** [M, K], nats. */
  readonly teacherLogprobs: Tensor;
  /** [M, 1]. */
  readonly weights: Tensor;
}

/**
 * Least probability of a tail. In float32 one minus a sum of probabilities is good to about 1e-7; below this the tail's logarithm would be
 * that of rounding, and a teacher without a tail would forbid one at infinite cost. A tail below it has no gradient.
 */
const tailFloor = 1e-6;

/** `Σ w · KL(teacher ‖ policy)`, `KL = Σ_k p_k (ln p_k − ln π_k) + p_tail (ln p_tail − ln π_tail)`: the policy covers what the teacher does. */
export function forwardKlTopKLoss(inputs: DistillationInputs): Tensor {
  const { policy, teacher } = outcomes(inputs);
  return divergence(teacher, policy, inputs.weights);
}

/** `Σ w · KL(policy ‖ teacher)`, the policy's expectation: it leaves what the teacher would not do. */
export function reverseKlTopKLoss(inputs: DistillationInputs): Tensor {
  const { policy, teacher } = outcomes(inputs);
  return divergence(policy, teacher, inputs.weights);
}

/** Log-probabilities of the K tokens, [M, K], and of the tail, [M, 1]. */
interface Outcomes {
  readonly best: Tensor;
  readonly tail: Tensor;
}

function outcomes({ distribution, teacherIds, teacherLogprobs }: DistillationInputs): {
  readonly policy: Outcomes;
  readonly teacher: Outcomes;
} {
  const withTail = (best: Tensor): Outcomes => ({ best, tail: tailOf(best) });
  return { policy: withTail(takeAlongLast(distribution, teacherIds)), teacher: withTail(teacherLogprobs) };
}

function tailOf(best: Tensor): Tensor {
  return log(maximum(sub(1, reduceSum(exp(best), [1], true)), tailFloor));
}

function divergence(of: Outcomes, from: Outcomes, weights: Tensor): Tensor {
  const term = (a: Tensor, b: Tensor): Tensor => mul(exp(a), sub(a, b));
  const perRow = add(reduceSum(term(of.best, from.best), [1], true), term(of.tail, from.tail));
  return reduceSum(mul(weights, perRow), [0, 1]);
}
