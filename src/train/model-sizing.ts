/**
 * What follows from the size of a model alone: microbatches, lanes, room for activations. Layer 3.
 * Apart from the trainer, so that memory can be estimated before a model is loaded. The bits of gradients depend on microbatches, so
 * those depend on nothing else.
 */

/** What activations may take where nothing else is asked for. */
export const defaultActivationBytes = 1.5e9;

/** Every lane has its own packed copies of the weights; larger models would take too much memory. */
const maxLaneValues = 50_000_000;
/** Weights of all lanes together: raw, and packed for forward and backward pass. */
const maxLaneBytes = 2e9;
const laneBytesPerValue = 12;
/** Tensors of so many tokens stay in the caches of a core. */
const smallMicrobatch = 512;
const largeMicrobatch = 2048;

/** Whether a model of so many parameters trains in lanes. */
export function isSmallModel(parameterCount: number): boolean {
  return parameterCount <= maxLaneValues;
}

/** Tokens of a microbatch, padding included. */
export function defaultMicrobatchTokens(parameterCount: number): number {
  return isSmallModel(parameterCount) ? smallMicrobatch : largeMicrobatch;
}

/** Lanes that so many threads are split into, at least 1. */
export function laneCount(parameterCount: number, threads: number): number {
  const affordable = Math.floor(maxLaneBytes / (laneBytesPerValue * parameterCount));
  return isSmallModel(parameterCount) ? Math.max(1, Math.min(threads, affordable)) : 1;
}
