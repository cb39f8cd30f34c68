/**
 * Which weights become constants of the compiled graphs. Layer 4.
 * ONNX Runtime packs constant weights once, which is faster for small batches, but sums long rows (more than 256 values) in another
 * order than for fed weights: so sampler and trainer must both do the one or both the other, or their logprobs differ in the last bit.
 */
import { countParameters, type Parameters } from '../../nn/parameters.ts';

/** Every graph holds its own packed copies, so large models are fed instead. */
export const MAX_BAKED_VALUES = 50_000_000;

/** The frozen base of a LoRA run if it is small; nothing in full-parameter training, whose weights change. */
export function bakedWeights(parameters: Parameters, isLora: boolean): Parameters {
  const isSmall = countParameters(parameters) <= MAX_BAKED_VALUES;
  return isLora && isSmall ? parameters : new Map();
}
