/** What `/v1/chat/completions` and `/v1/models` answer. Layer 0. Our extension is the field `art`; token ids are vLLM's. */
import type { GenerationUsage } from '../core/generation.ts';
import type { ChoiceOrigin } from '../core/trajectory.ts';

export interface WireTokenLogprob {
  readonly token: string;
  readonly logprob: number;
  readonly bytes: readonly number[];
}

export interface WireLogprobs {
  /** One entry per sampled token, the end-of-turn token too, so that it lines up with `token_ids`. */
  readonly content: readonly (WireTokenLogprob & { readonly top_logprobs: readonly WireTokenLogprob[] })[];
  readonly refusal: null;
}

export interface WireUsage {
  readonly prompt_tokens: number;
  readonly completion_tokens: number;
  readonly total_tokens: number;
  readonly prompt_tokens_details: { readonly cached_tokens: number };
}

export function wireUsage({ promptTokens, completionTokens, cachedTokens }: GenerationUsage): WireUsage {
  return {
    prompt_tokens: promptTokens,
    completion_tokens: completionTokens,
    total_tokens: promptTokens + completionTokens,
    prompt_tokens_details: { cached_tokens: cachedTokens },
  };
}

interface ResponseBase {
  readonly id: string;
  /** Seconds since 1970. */
  readonly created: number;
  readonly model: string;
  /** Extension: the seed that this request was sampled with. In streams in the first chunk. */
  readonly art?: { readonly seed: number };
  readonly prompt_token_ids?: readonly number[];
}

export interface WireToolCall {
  readonly id: string;
  readonly type: 'function';
  readonly function: { readonly name: string; readonly arguments: string };
}

/** Of vLLM; OpenAI's models do not tell their reasoning. */
interface WireReasoning {
  readonly reasoning_content?: string;
}

export interface WireReplyMessage extends WireReasoning {
  readonly role: 'assistant';
  /** Null if there are tool calls and no text. */
  readonly content: string | null;
  readonly refusal: null;
  readonly tool_calls?: readonly WireToolCall[];
}

export interface WireChoice {
  readonly index: number;
  readonly message: WireReplyMessage;
  readonly logprobs: WireLogprobs | null;
  readonly finish_reason: 'stop' | 'length' | 'tool_calls';
  readonly token_ids?: readonly number[];
  readonly art: ChoiceOrigin;
}

export interface ChatCompletionResponse extends ResponseBase {
  readonly object: 'chat.completion';
  readonly choices: readonly WireChoice[];
  readonly usage: WireUsage;
  /** The policy that sampled the first choice, as `name@step`. */
  readonly system_fingerprint: string;
}

/** `id`, `type` and `name` come with the first delta of a call. */
export interface WireToolCallDelta extends Partial<Pick<WireToolCall, 'id' | 'type'>> {
  readonly index: number;
  readonly function: { readonly name?: string; readonly arguments: string };
}

export interface WireDelta extends WireReasoning {
  readonly role?: 'assistant';
  readonly content?: string;
  readonly tool_calls?: readonly WireToolCallDelta[];
}

export interface WireChunkChoice {
  readonly index: number;
  readonly delta: WireDelta;
  readonly logprobs: WireLogprobs | null;
  readonly finish_reason: 'stop' | 'length' | 'tool_calls' | null;
  readonly token_ids?: readonly number[];
  readonly art?: ChoiceOrigin;
}

export interface ChatCompletionChunk extends ResponseBase {
  readonly object: 'chat.completion.chunk';
  readonly choices: readonly WireChunkChoice[];
  readonly usage?: WireUsage | null;
}

export interface WireModel {
  readonly id: string;
  readonly object: 'model';
  readonly created: number;
  readonly owned_by: 'art';
}
