/**
 * What a decoder computes, apart from its weights: sizes and options of all families that we run. Layer 1.
 * `hf-config.ts` reads it from a `config.json` and writes it back; `nn/` builds graphs from it.
 */
import type { RopeScaling } from './rope-scaling.ts';

/** What `model_type` may be. */
export const modelTypes = ['llama', 'mistral', 'qwen2', 'qwen3', 'gemma3_text', 'phi3'] as const;

export type ModelType = (typeof modelTypes)[number];

export interface DecoderConfig {
  readonly modelType: ModelType;
  /** Rows of the embedding, V; may exceed the tokenizer's vocabulary. */
  readonly vocabSize: number;
  /** D */
  readonly width: number;
  readonly layers: number;
  /** H */
  readonly heads: number;
  /** K, a divisor of H. */
  readonly kvHeads: number;
  /** C, even; H·C may differ from D. */
  readonly headSize: number;
  /** F */
  readonly ffWidth: number;
  readonly ropeTheta: number;
  readonly ropeScaling: RopeScaling | null;
  /** Theta of sliding layers, which are then not scaled; null = that of all layers. */
  readonly localRopeTheta: number | null;
  /** Leading channels of a head that the rotary embedding turns; even; null = all C. */
  readonly rotarySize: number | null;
  readonly normEpsilon: number;
  /** RMSNorm multiplies by this + weight: 0, or 1 in Gemma. */
  readonly normOffset: number;
  readonly maxPositions: number;
  /** Keys that a sliding layer sees, the query's own included; null = no layer slides. */
  readonly slidingWindow: number | null;
  /** Layers that slide, rising; empty if there is no window. */
  readonly slidingLayers: readonly number[];
  /** Factor of the embeddings. */
  readonly embeddingScale: number;
  /** Factor of q·k; null = 1/√C. */
  readonly queryScale: number | null;
  readonly activation: 'silu' | 'geluTanh';
  /** Logits become c · tanh(logits / c); null = they stay. */
  readonly logitSoftcap: number | null;
  /** The output projection is the embedding. */
  readonly isEmbeddingTied: boolean;
  /** RMSNorm over the head size of q and k, before the rotary embedding. */
  readonly hasQkNorm: boolean;
  /** RMSNorm of what attention and MLP add to the residual stream. */
  readonly hasPostNorms: boolean;
  /** Biases on q, k and v. */
  readonly hasAttentionBias: boolean;
  /** Bias on o. */
  readonly hasOutputBias: boolean;
  /** Biases on gate, up and down. */
  readonly hasMlpBias: boolean;
  /** q, k and v are one linear layer `qkv_proj`, gate and up one `gate_up_proj`. */
  readonly hasFusedProjections: boolean;
  /** Ids that end a turn; may be empty. */
  readonly eosTokenId: readonly number[];
  readonly bosTokenId: number | null;
  readonly padTokenId: number | null;
}

/** The options that a plain Llama leaves off; a `DecoderConfig` that is written by hand starts from them. */
export const plainDecoder = {
  ropeScaling: null,
  localRopeTheta: null,
  rotarySize: null,
  normOffset: 0,
  slidingWindow: null,
  slidingLayers: [],
  embeddingScale: 1,
  queryScale: null,
  activation: 'silu',
  logitSoftcap: null,
  hasQkNorm: false,
  hasPostNorms: false,
  hasAttentionBias: false,
  hasOutputBias: false,
  hasMlpBias: false,
  hasFusedProjections: false,
} as const satisfies Partial<DecoderConfig>;
