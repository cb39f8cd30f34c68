/** The answer of Anthropic's Messages API: the message, its stream, and errors. Layer 0. Source: Anthropic's API reference. */
import type { GenerationUsage } from '../core/generation.ts';
import { type HttpError, toHttpError } from './errors.ts';

export type ContentBlock =
  | { readonly type: 'text'; readonly text: string; readonly citations: null }
  | { readonly type: 'thinking'; readonly thinking: string; readonly signature: string }
  | {
      readonly type: 'tool_use';
      readonly id: string;
      readonly name: string;
      readonly input: unknown;
      readonly caller: { readonly type: 'direct' };
    };

export type StopReason = 'end_turn' | 'max_tokens' | 'stop_sequence' | 'tool_use';

export interface AnthropicUsage {
  /** Without those found in the cache. */
  readonly input_tokens: number;
  readonly output_tokens: number;
  readonly cache_creation_input_tokens: number;
  readonly cache_read_input_tokens: number;
}

export interface AnthropicMessage {
  readonly id: string;
  readonly type: 'message';
  readonly role: 'assistant';
  readonly model: string;
  readonly content: readonly ContentBlock[];
  readonly stop_reason: StopReason | null;
  readonly stop_sequence: string | null;
  readonly usage: AnthropicUsage;
  /** Extension: where the answer comes from. The step of a model without one in its name is known at the end of a stream. */
  readonly art: { readonly seed: number; readonly completion_id: string; readonly policy_step?: number };
  readonly prompt_token_ids?: readonly number[];
  readonly token_ids?: readonly number[];
}

type BlockDelta =
  | { readonly type: 'text_delta'; readonly text: string }
  | { readonly type: 'thinking_delta'; readonly thinking: string }
  | { readonly type: 'signature_delta'; readonly signature: string }
  | { readonly type: 'input_json_delta'; readonly partial_json: string };

export type AnthropicEvent =
  | { readonly type: 'message_start'; readonly message: AnthropicMessage }
  | { readonly type: 'ping' }
  | { readonly type: 'content_block_start'; readonly index: number; readonly content_block: ContentBlock }
  | { readonly type: 'content_block_delta'; readonly index: number; readonly delta: BlockDelta }
  | { readonly type: 'content_block_stop'; readonly index: number }
  | {
      readonly type: 'message_delta';
      readonly delta: Pick<AnthropicMessage, 'stop_reason' | 'stop_sequence'>;
      readonly usage: AnthropicUsage;
      readonly art: AnthropicMessage['art'];
      readonly token_ids?: readonly number[];
    }
  | { readonly type: 'message_stop' }
  | AnthropicErrorBody;

export function anthropicUsage({ promptTokens, completionTokens, cachedTokens }: GenerationUsage): AnthropicUsage {
  return {
    input_tokens: promptTokens - cachedTokens,
    output_tokens: completionTokens,
    cache_creation_input_tokens: 0,
    cache_read_input_tokens: cachedTokens,
  };
}

export interface AnthropicErrorBody {
  readonly type: 'error';
  readonly error: { readonly type: string; readonly message: string };
}

const errorTypes: Readonly<Record<number, string>> = {
  400: 'invalid_request_error',
  401: 'authentication_error',
  403: 'permission_error',
  404: 'not_found_error',
  413: 'request_too_large',
  429: 'rate_limit_error',
  503: 'overloaded_error',
  504: 'timeout_error',
  529: 'overloaded_error',
};

/** `toHttpError` with Anthropic's body. */
export function toAnthropicError(error: unknown): Omit<HttpError, 'body'> & { readonly body: AnthropicErrorBody } {
  const { body, ...rest } = toHttpError(error);
  const type = errorTypes[rest.status] ?? (rest.status < 500 ? 'invalid_request_error' : 'api_error');
  return { ...rest, body: { type: 'error', error: { type, message: body.error.message } } };
}
