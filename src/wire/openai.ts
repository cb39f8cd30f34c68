/**
 * `POST /v1/chat/completions`: the request as a schema and as what the server needs. Layer 0.
 * Source: OpenAI API reference, "Create chat completion"; vLLM's protocol for the fields that OpenAI does not have.
 * Left out: audio, images, custom tools, the old `functions`. They are refused by name, never ignored.
 */
import * as z from 'zod';
import type { GenerationRequest } from '../core/generation.ts';
import { parseWire, refuse } from './errors.ts';
import {
  type IsNeutral,
  isAnything,
  isEmpty,
  isNothing,
  isOneOf,
  refuseOtherFields,
  samplingFields,
  toSampling,
} from './inference-fields.ts';
import { chatMessage, toPlainMessage } from './openai-messages.ts';
import { toolFields, toReplyFormat, toToolChoice, toTools } from './openai-tools.ts';

const tokenLimit = z.int().min(1).nullish();

export const chatCompletionRequest = z.object({
  ...samplingFields,
  ...toolFields,
  model: z.string().min(1),
  messages: z.array(chatMessage).min(1),
  max_tokens: tokenLimit,
  max_completion_tokens: tokenLimit,
  n: z.int().min(1).max(128).nullish(),
  logprobs: z.boolean().nullish(),
  top_logprobs: z.int().min(0).max(20).nullish(),
  stream: z.boolean().nullish(),
  stream_options: z
    .strictObject({ include_usage: z.boolean().optional(), include_obfuscation: z.literal(false).optional() })
    .nullish(),
  /** A template turns reasoning off or not: there is no more or less of it. */
  reasoning_effort: z.literal('none', { error: 'must be none: no other effort is supported' }).nullish(),
  /** Extension of vLLM: further variables of the chat template. */
  chat_template_kwargs: z.record(z.string(), z.unknown()).nullish(),
  /** Extension of vLLM. */
  return_token_ids: z.boolean().nullish(),
});
type WireRequest = z.infer<typeof chatCompletionRequest>;

/** Fields of OpenAI and vLLM that are not implemented: accepted where they cannot change the tokens, else refused. Null is "default". */
const otherFields: Readonly<Record<string, IsNeutral>> = {
  user: isAnything,
  metadata: isAnything,
  service_tier: isAnything,
  safety_identifier: isAnything,
  prompt_cache_key: isAnything,
  prompt_cache_retention: isAnything,
  store: isOneOf(false),
  functions: isEmpty,
  function_call: isOneOf('none', 'auto'),
  modalities: (value) => Array.isArray(value) && value.every((entry) => entry === 'text'),
  add_generation_prompt: isOneOf(true),
  continue_final_message: isOneOf(false),
  ignore_eos: isOneOf(false),
  skip_special_tokens: isOneOf(true),
  include_stop_str_in_output: isOneOf(false),
  use_beam_search: isOneOf(false),
  audio: isNothing,
  prediction: isNothing,
  verbosity: isOneOf('medium'),
  web_search_options: isNothing,
};

/** A chat request with its defaults filled in; the route adds what identifies it. */
export interface ChatRequest {
  readonly generation: Omit<GenerationRequest, 'id' | 'rolloutId' | 'keyId'>;
  readonly hasTokenIds: boolean;
  readonly isStreaming: boolean;
  readonly hasStreamUsage: boolean;
}

/** Checks a request body. Throws ApiError 400 that names the field, the rule and the value got. */
export function parseChatRequest(body: unknown): ChatRequest {
  refuseOtherFields(body, chatCompletionRequest.shape, otherFields);
  const wire = parseWire(chatCompletionRequest, body);
  checkCombinations(wire);
  return {
    generation: toGeneration(wire),
    hasTokenIds: wire.return_token_ids ?? false,
    isStreaming: wire.stream ?? false,
    hasStreamUsage: wire.stream_options?.include_usage ?? false,
  };
}

function toGeneration(wire: WireRequest): ChatRequest['generation'] {
  const tools = toTools(wire);
  return {
    model: wire.model,
    prompt: {
      type: 'chat',
      messages: wire.messages.map(toPlainMessage),
      completionIds: wire.messages.map((message) => message.art?.completion_id ?? null),
      tools,
      templateVariables: toTemplateVariables(wire),
    },
    n: wire.n ?? 1,
    sampling: toSampling(wire, wire.max_completion_tokens ?? wire.max_tokens ?? null),
    seed: wire.seed ?? null,
    toolChoice: toToolChoice(wire, tools),
    isParallelToolCalls: wire.parallel_tool_calls ?? true,
    format: toReplyFormat(wire),
    topLogprobs: wire.logprobs ? (wire.top_logprobs ?? 0) : null,
    promptLogprobs: null,
  };
}

/** What the server itself gives to templates. */
const ownVariables = ['messages', 'tools', 'documents', 'add_generation_prompt'];

function toTemplateVariables(wire: WireRequest): Readonly<Record<string, unknown>> {
  const variables = wire.chat_template_kwargs ?? {};
  const own = ownVariables.find((name) => Object.hasOwn(variables, name));
  if (own === undefined) return { ...(wire.reasoning_effort === 'none' && { enable_thinking: false }), ...variables };
  const field = `chat_template_kwargs.${own}`;
  throw refuse(400, 'unsupported_parameter', `${field}: must not be given, the server sets it`, field);
}

function checkCombinations(wire: WireRequest): void {
  const { max_tokens: limit, max_completion_tokens: newLimit } = wire;
  if (limit != null && newLimit != null && limit !== newLimit) {
    const message = `max_completion_tokens: must equal max_tokens when both are given, got ${newLimit} and ${limit}`;
    throw refuse(400, 'invalid_value', message, 'max_completion_tokens');
  }
  if (wire.top_logprobs != null && !wire.logprobs) {
    throw refuse(400, 'invalid_value', 'top_logprobs: needs logprobs to be true', 'top_logprobs');
  }
  if (wire.stream_options != null && !wire.stream) {
    throw refuse(400, 'invalid_value', 'stream_options: needs stream to be true', 'stream_options');
  }
}
