/** What the routes share about one registered model. Layer 5. The inference routes and the training routes meet here. */
import type { Engine } from '../engines/engine.ts';
import type { ChatTemplate } from '../formats/chat-template.ts';
import type { DecoderConfig } from '../formats/hf-config.ts';
import type { Tokenizer } from '../formats/tokenizer.ts';

/** A sampled turn exactly as the engine returned it; the only source of training tokens. */
export interface CompletionRecord {
  readonly completionId: string;
  readonly choiceIndex: number;
  readonly policyStep: number;
  readonly promptIds: readonly number[];
  readonly tokenIds: readonly number[];
  readonly logprobs: readonly number[];
  readonly temperature: number;
  readonly finishReason: 'stop' | 'length';
}

/** Bounded memory of sampled turns; the oldest are dropped. */
export interface CompletionStore {
  put(record: CompletionRecord): void;
  get(completionId: string, choiceIndex: number): CompletionRecord | undefined;
}

export interface ServedModel {
  readonly name: string;
  readonly project: string;
  readonly engine: Engine;
  readonly tokenizer: Tokenizer;
  readonly template: ChatTemplate;
  readonly config: DecoderConfig;
  readonly completions: CompletionStore;
  /** Newest policy step that has been published and proven. */
  step(): number;
}
