/** What an inference route asks of a model, whatever protocol it came by. Layer 0. `wire/` maps requests to these. */
import type { PlainMessage, ToolChoice, ToolDefinition } from './chat.ts';
import type { JsonSchema } from './constraint.ts';

export interface ChatPrompt {
  readonly type: 'chat';
  readonly messages: readonly PlainMessage[];
  /** Per message, the completion it says it is. */
  readonly completionIds: readonly (string | null)[];
  readonly tools: readonly ToolDefinition[];
  /** Further variables of the chat template, as in `{ enable_thinking: false }`. */
  readonly templateVariables: Readonly<Record<string, unknown>>;
}

export type GenerationPrompt =
  | ChatPrompt
  | { readonly type: 'tokens'; readonly ids: readonly number[] }
  | { readonly type: 'text'; readonly text: string };

/** What the answer must look like. A reply may still reason before it, or call tools instead. */
export type ReplyFormat =
  | { readonly type: 'text' }
  | { readonly type: 'jsonObject' }
  | { readonly type: 'jsonSchema'; readonly schema: JsonSchema }
  | { readonly type: 'regex'; readonly pattern: string }
  | { readonly type: 'choice'; readonly options: readonly string[] };

export interface SamplingSettings {
  /** null = what is left of the context. */
  readonly maxTokens: number | null;
  readonly temperature: number;
  readonly topP: number;
  /** 0 = off. */
  readonly topK: number;
  readonly stopStrings: readonly string[];
  /** As in the engine's `SamplingParams`; absent = off. */
  readonly minP?: number;
  readonly frequencyPenalty?: number;
  readonly presencePenalty?: number;
  readonly repetitionPenalty?: number;
  readonly logitBias?: readonly (readonly [tokenId: number, bias: number])[];
  readonly minTokens?: number;
  /** They end the reply as end-of-turn tokens do. */
  readonly stopTokenIds?: readonly number[];
}

/** One request with its defaults filled in. Each of its `n` choices is sampled by itself. */
export interface GenerationRequest {
  /** The completion id: what the choices are known by to training and to the next turn. */
  readonly id: string;
  /** `name`, or `name@step`. */
  readonly model: string;
  readonly prompt: GenerationPrompt;
  /** Which calls belong together, if the client said so. */
  readonly rolloutId: string | null;
  /** Id of the API key it came with; null = the local user. Conversations of different keys know nothing of each other. */
  readonly keyId: string | null;
  readonly n: number;
  readonly sampling: SamplingSettings;
  /** null = the server draws one. */
  readonly seed: number | null;
  readonly toolChoice: ToolChoice;
  readonly isParallelToolCalls: boolean;
  readonly format: ReplyFormat;
  /** Alternatives reported for each token; null = no logprobs in the answer. */
  readonly topLogprobs: number | null;
  /** The same for each token of the prompt. */
  readonly promptLogprobs: number | null;
  /** Default true. False where the prompt alone is asked about: what is sampled is not shown, so it is no turn to train on. */
  readonly isRecorded?: boolean;
}

/** Tokens that a request took. */
export interface GenerationUsage {
  /** The choices share the prompt, which counts once. */
  readonly promptTokens: number;
  readonly completionTokens: number;
  /** Prompt tokens that the first choice found in the cache. */
  readonly cachedTokens: number;
}

/** Sampling as OpenAI's defaults have it. */
export const defaultSampling: SamplingSettings = { maxTokens: null, temperature: 1, topP: 1, topK: 0, stopStrings: [] };
