/** Options of the embedded engine, shared by the parent and the engine's process. Layer 4. */

export interface LoraOptions {
  readonly rank: number;
  readonly alpha: number;
  /** Names of linear layers; default all seven of a decoder layer. */
  readonly targetModules?: readonly string[];
}

export interface EmbeddedEngineOptions {
  /** Hugging Face model directory: config.json, model.safetensors, tokenizer.json, tokenizer_config.json. */
  readonly modelDirectory: string;
  /** What is trained: a LoRA adapter, or every parameter. */
  readonly training: ({ readonly kind: 'lora' } & LoraOptions) | { readonly kind: 'full' };
  /** Seed of the adapter's initial A matrices. */
  readonly seed: number;
  /** Threads of one training graph, and of one sampling graph; defaults: number of cores, and 1. */
  readonly trainThreads?: number;
  readonly sampleThreads?: number;
  /** Tokens that the KV cache holds; default 65,536, or as many as fit into memory. */
  readonly cacheTokens?: number;
  /** Sequences that decode together; default 256. */
  readonly maxRunningSequences?: number;
  /** Tokens of one training microbatch, padding included; default 2,048. */
  readonly microbatchTokens?: number;
  /** Whether a model that needs more memory than there is left is refused before it is loaded; default true. */
  readonly isMemoryChecked?: boolean;
  /** Time limit of one engine call, and of a pause in sampling (not of a whole sample), milliseconds; default 600,000. */
  readonly callTimeoutMs?: number;
}
