/** What the routes share about one registered model. Layer 5. The inference routes and the training routes meet here. */
import type { PlainMessage, ToolDefinition } from '../../core/chat.ts';
import type { Engine } from '../../engines/engine.ts';
import type { ChatTemplate } from '../../formats/chat-template.ts';
import type { DecoderConfig } from '../../formats/hf-config.ts';
import type { Tokenizer } from '../../formats/tokenizer.ts';
import type { RolloutBook } from '../rollouts/rollouts.ts';

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

/** The text side of a turn that belongs to a rollout, which the server collects. */
export interface RolloutCall {
  readonly rolloutId: string;
  /** When the call came, and when its turn was sampled, milliseconds since 1970. */
  readonly startedAt: number;
  readonly sampledAt: number;
  readonly seed: number;
  /** Of the prompt, in the conversations; none where the prompt was none. */
  readonly promptKey: string;
  readonly messages: readonly PlainMessage[];
  /** None in a turn that continues another: it has those of that turn. */
  readonly tools: readonly ToolDefinition[];
  readonly reply: PlainMessage;
}

/** Where a turn came from. */
export interface CompletionSource {
  /** What its ids stand for: it decides whether they may be written to the disk. */
  readonly readText: () => string;
  readonly call: RolloutCall | null;
}

export interface StoredCompletion {
  readonly record: CompletionRecord;
  readonly call: RolloutCall | null;
}

/** Sampled turns, by bounded memory and, in a run, a bounded log on disk; the oldest are dropped. */
export interface CompletionStore {
  /** Kept, also against the death of this process, when it returns. Throws ApiError 409 for a call of a finished rollout. */
  put(record: CompletionRecord, source?: CompletionSource): void;
  get(completionId: string, choiceIndex: number): CompletionRecord | undefined;
  readonly rollouts: RolloutBook;
  close(): Promise<void>;
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
