/**
 * OpenAI's chat completions on the wire: the request as a schema and as what the server needs, the response as types. Layer 0.
 * Source: OpenAI API reference, "Create chat completion"; vLLM's protocol for `return_token_ids`. Our extension is the field `art`.
 * Left out: tools, response_format, audio, images, penalties. They are refused by name, never ignored.
 */
import * as z from 'zod';
import { chatRoles, type PlainMessage } from '../core/chat.ts';
import type { GenerationRequest, GenerationUsage, SamplingSettings } from '../core/generation.ts';
import type { ChoiceOrigin } from '../core/trajectory.ts';
import { formatValue, parseWire, refuse } from './errors.ts';

const textPart = z.strictObject({ type: z.literal('text'), text: z.string() });

const chatMessage = z.strictObject({
  role: z.enum(chatRoles),
  content: z.union([z.string(), z.array(textPart)], { error: 'must be a string or a list of text parts' }),
  name: z.string().nullish(),
  tool_call_id: z.string().nullish(),
  // What OpenAI's client returns on an assistant message and agents send back.
  refusal: z.null().optional(),
  annotations: z.array(z.unknown()).max(0).nullish(),
  tool_calls: z.array(z.unknown()).max(0).nullish(),
  function_call: z.null().optional(),
  audio: z.null().optional(),
  /** Names the choice that this message is, so that the server continues exactly its token ids. */
  art: z.looseObject({ completion_id: z.string() }).nullish(),
});
type WireChatMessage = z.infer<typeof chatMessage>;

const stopString = z.string().min(1);

const tokenLimit = z.int().min(1);

/** `.nullish()` everywhere: OpenAI takes null for "default". */
export const chatCompletionRequest = z.object({
  model: z.string().min(1),
  messages: z.array(chatMessage).min(1),
  max_tokens: tokenLimit.nullish(),
  max_completion_tokens: tokenLimit.nullish(),
  temperature: z.number().min(0).max(2).nullish(),
  top_p: z.number().gt(0).max(1).nullish(),
  /** Extension; 0 = off. */
  top_k: z.int().min(0).nullish(),
  n: z.int().min(1).max(128).nullish(),
  stop: z
    .union([stopString, z.array(stopString).max(16)], { error: 'must be a string or a list of up to 16 strings' })
    .nullish(),
  seed: z.int().nullish(),
  logprobs: z.boolean().nullish(),
  top_logprobs: z.int().min(0).max(20).nullish(),
  /** Extension of vLLM. */
  return_token_ids: z.boolean().nullish(),
  stream: z.boolean().nullish(),
  stream_options: z
    .strictObject({ include_usage: z.boolean().optional(), include_obfuscation: z.literal(false).optional() })
    .nullish(),
});

/** Whether a value of a field that is not implemented asks for nothing. */
type IsNeutral = (value: unknown) => boolean;

const isAnything: IsNeutral = () => true;
const isEmpty: IsNeutral = (value) => typeof value === 'object' && Object.keys(value as object).length === 0;
const isOneOf =
  (...values: readonly unknown[]): IsNeutral =>
  (value) =>
    values.includes(value);

/** Fields of OpenAI and vLLM that are not implemented: accepted where they cannot change the tokens, else refused. Null is "default". */
const otherFields: Readonly<Record<string, IsNeutral>> = {
  user: isAnything,
  metadata: isAnything,
  service_tier: isAnything,
  safety_identifier: isAnything,
  prompt_cache_key: isAnything,
  prompt_cache_retention: isAnything,
  // Says how many tools one turn may call; there are none.
  parallel_tool_calls: isAnything,
  store: isOneOf(false),
  tools: isEmpty,
  functions: isEmpty,
  logit_bias: isEmpty,
  tool_choice: isOneOf('none'),
  function_call: isOneOf('none'),
  response_format: (value) => (value as { type?: unknown }).type === 'text',
  modalities: (value) => Array.isArray(value) && value.every((entry) => entry === 'text'),
  frequency_penalty: isOneOf(0),
  presence_penalty: isOneOf(0),
  repetition_penalty: isOneOf(1),
  min_p: isOneOf(0),
  audio: () => false,
  prediction: () => false,
  reasoning_effort: () => false,
  verbosity: () => false,
  web_search_options: () => false,
};

/** A chat request with its defaults filled in; the route adds what identifies it. */
export interface ChatRequest {
  readonly generation: Omit<GenerationRequest, 'id' | 'rolloutId'>;
  readonly hasTokenIds: boolean;
  readonly isStreaming: boolean;
  readonly hasStreamUsage: boolean;
}

/** Checks a request body. Throws ApiError 400 that names the field, the rule and the value got. */
export function parseChatRequest(body: unknown): ChatRequest {
  if (typeof body !== 'object' || body === null || Array.isArray(body)) {
    throw refuse(400, 'invalid_value', `body: must be a JSON object, got ${formatValue(body)}`);
  }
  refuseOtherFields(body as Readonly<Record<string, unknown>>);
  const wire = parseWire(chatCompletionRequest, body);
  checkCombinations(wire);
  return {
    generation: {
      model: wire.model,
      prompt: {
        type: 'chat',
        messages: wire.messages.map(toPlainMessage),
        completionIds: wire.messages.map((message) => message.art?.completion_id ?? null),
        tools: [],
        templateVariables: {},
      },
      n: wire.n ?? 1,
      sampling: toSampling(wire),
      seed: wire.seed ?? null,
      toolChoice: 'auto',
      isParallelToolCalls: true,
      format: { type: 'text' },
      topLogprobs: wire.logprobs ? (wire.top_logprobs ?? 0) : null,
      promptLogprobs: null,
    },
    hasTokenIds: wire.return_token_ids ?? false,
    isStreaming: wire.stream ?? false,
    hasStreamUsage: wire.stream_options?.include_usage ?? false,
  };
}

function toSampling(wire: z.infer<typeof chatCompletionRequest>): SamplingSettings {
  const stop = wire.stop ?? [];
  return {
    maxTokens: wire.max_completion_tokens ?? wire.max_tokens ?? null,
    temperature: wire.temperature ?? 1,
    topP: wire.top_p ?? 1,
    topK: wire.top_k ?? 0,
    stopStrings: typeof stop === 'string' ? [stop] : stop,
  };
}

function refuseOtherFields(body: Readonly<Record<string, unknown>>): void {
  for (const [field, value] of Object.entries(body)) {
    if (value === null || Object.hasOwn(chatCompletionRequest.shape, field)) continue;
    const isNeutral = Object.hasOwn(otherFields, field) ? otherFields[field] : undefined;
    if (isNeutral === undefined) throw refuse(400, 'unknown_parameter', `${field}: unknown field`, field);
    if (!isNeutral(value)) {
      throw refuse(400, 'unsupported_parameter', `${field}: not supported, got ${formatValue(value)}`, field);
    }
  }
}

function checkCombinations(wire: z.infer<typeof chatCompletionRequest>): void {
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

function toPlainMessage(message: WireChatMessage): PlainMessage {
  const { content } = message;
  const text = typeof content === 'string' ? content : content.map((part) => part.text).join('');
  return {
    role: message.role,
    content: text,
    ...(message.name != null && { name: message.name }),
    ...(message.tool_call_id != null && { tool_call_id: message.tool_call_id }),
  };
}

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

export interface WireChoice {
  readonly index: number;
  readonly message: { readonly role: 'assistant'; readonly content: string; readonly refusal: null };
  readonly logprobs: WireLogprobs | null;
  readonly finish_reason: 'stop' | 'length' | 'tool_calls';
  readonly token_ids?: readonly number[];
  readonly art: ChoiceOrigin;
}

export interface ChatCompletionResponse extends ResponseBase {
  readonly object: 'chat.completion';
  readonly choices: readonly WireChoice[];
  readonly usage: WireUsage;
}

export interface WireChunkChoice {
  readonly index: number;
  readonly delta: { readonly role?: 'assistant'; readonly content?: string };
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
