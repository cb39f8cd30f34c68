/** What the ways to compute a pass (`whole-graph.ts`, `layered.ts`) take and give. Layer 3. */
import type { DecoderConfig } from '../formats/hf-config.ts';
import type { Runtime } from '../graph/runtime.ts';
import type { LoraSpec } from '../nn/lora.ts';
import type { Parameter } from '../nn/parameters.ts';

/** Values of every trained tensor. */
export type TrainedWeights = ReadonlyMap<string, Parameter>;

/** `parameters` holds the base model; `trained` the adapter, or the very same map in full-parameter training. */
export interface ModelParts {
  readonly config: DecoderConfig;
  readonly lora: LoraSpec | null;
  readonly parameters: ReadonlyMap<string, Parameter>;
  readonly trained: ReadonlyMap<string, Parameter>;
  /** Those of `parameters` that become constants of the compiled graphs; never among `trained`. */
  readonly baked: ReadonlyMap<string, Parameter>;
  readonly runtime: Runtime;
}

/** Sums over the action tokens of one microbatch; the caller owns the arrays. */
export interface PassResult {
  readonly loss: number;
  readonly entropy: number;
  /** One for each place of the microbatch, in order; more may follow that mean nothing. */
  readonly logprobs: Float32Array;
  readonly gradients: Map<string, Float32Array>;
}
