/** The answer of OpenAI's Responses API: items, events and the response object. Layer 0. Source: OpenAI API reference, "The response object". */
import type { GenerationUsage } from '../core/generation.ts';
import type { WireLogprobs } from './openai-response.ts';
import type { ResponsesRequest } from './responses.ts';

export type ItemStatus = 'in_progress' | 'completed' | 'incomplete';

export type OutputLogprobs = WireLogprobs['content'];

export interface OutputTextPart {
  readonly type: 'output_text';
  readonly text: string;
  readonly annotations: readonly never[];
  readonly logprobs: OutputLogprobs;
}

export interface ReasoningTextPart {
  readonly type: 'reasoning_text';
  readonly text: string;
}

export interface MessageItem {
  readonly type: 'message';
  readonly id: string;
  readonly status: ItemStatus;
  readonly role: 'assistant';
  readonly content: readonly OutputTextPart[];
}

export interface FunctionCallItem {
  readonly type: 'function_call';
  readonly id: string;
  readonly status: ItemStatus;
  readonly call_id: string;
  readonly name: string;
  readonly arguments: string;
}

export interface ReasoningItem {
  readonly type: 'reasoning';
  readonly id: string;
  readonly status: ItemStatus;
  readonly summary: readonly { readonly type: 'summary_text'; readonly text: string }[];
  readonly content: readonly ReasoningTextPart[];
  readonly encrypted_content?: string | null;
}

export type OutputItem = MessageItem | FunctionCallItem | ReasoningItem;

/** An event of a stream before it has its `sequence_number`. */
export interface ResponseEvent {
  readonly type: `response.${string}`;
  readonly [field: string]: unknown;
}

export interface ResponseObject {
  readonly id: string;
  readonly object: 'response';
  /** Seconds since 1970. */
  readonly created_at: number;
  readonly completed_at: number | null;
  readonly status: 'in_progress' | 'completed' | 'incomplete' | 'failed';
  readonly background: false;
  readonly error: { readonly code: 'server_error'; readonly message: string } | null;
  readonly incomplete_details: { readonly reason: 'max_output_tokens' } | null;
  readonly model: string;
  readonly output: readonly OutputItem[];
  readonly usage: ResponseUsage | null;
  /** Extension: where the answer comes from. The step of a model without one in its name is known at the end of a stream. */
  readonly art: { readonly seed: number; readonly completion_id: string; readonly policy_step?: number };
  readonly prompt_token_ids?: readonly number[];
  readonly token_ids?: readonly number[];
  /** The request's fields, defaults filled in. */
  readonly [echoed: string]: unknown;
}

interface ResponseUsage {
  readonly input_tokens: number;
  readonly input_tokens_details: { readonly cached_tokens: number; readonly cache_write_tokens: number };
  readonly output_tokens: number;
  readonly output_tokens_details: { readonly reasoning_tokens: number };
  readonly total_tokens: number;
}

export function responseUsage(usage: GenerationUsage, reasoningTokens: number): ResponseUsage {
  return {
    input_tokens: usage.promptTokens,
    input_tokens_details: { cached_tokens: usage.cachedTokens, cache_write_tokens: 0 },
    output_tokens: usage.completionTokens,
    output_tokens_details: { reasoning_tokens: reasoningTokens },
    total_tokens: usage.promptTokens + usage.completionTokens,
  };
}

/** What a response repeats of its request. */
export function echoRequest({ wire, isParallelToolCalls, isStored, topLogprobs }: ResponsesRequest): {
  readonly [field: string]: unknown;
} {
  return {
    instructions: wire.instructions ?? null,
    max_output_tokens: wire.max_output_tokens ?? null,
    max_tool_calls: null,
    metadata: wire.metadata ?? {},
    parallel_tool_calls: isParallelToolCalls,
    previous_response_id: wire.previous_response_id ?? null,
    reasoning: { effort: wire.reasoning?.effort ?? null, summary: wire.reasoning?.summary ?? null },
    store: isStored,
    temperature: wire.temperature ?? 1,
    text: { format: wire.text?.format ?? { type: 'text' } },
    tool_choice: wire.tool_choice ?? 'auto',
    tools: wire.tools ?? [],
    top_logprobs: topLogprobs ?? 0,
    top_p: wire.top_p ?? 1,
    truncation: 'disabled',
  };
}
