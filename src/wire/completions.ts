/**
 * OpenAI's completions of plain text, `POST /v1/completions`: the request as a schema and as what the server needs, the response as types.
 * Layer 0. Source: OpenAI API reference, "Create completion"; vLLM's protocol for the fields that OpenAI does not have.
 * Left out: `suffix`, more candidates than choices, tools and formats, which belong to chats. They are refused by name.
 */
import * as z from 'zod';
import type { GenerationPrompt, SamplingSettings } from '../core/generation.ts';
import { parseWire, refuse } from './errors.ts';
import {
  type IsNeutral,
  isAnything,
  isNothing,
  isOneOf,
  refuseOtherFields,
  samplingFields,
  toSampling,
} from './inference-fields.ts';
import type { WireUsage } from './openai-response.ts';

const tokenIds = z.array(z.int().min(0)).min(1);
const maxPrompts = 2048;

const promptRule = 'must be a string, a list of strings, a list of token ids, or a list of such lists';

export const completionRequest = z.object({
  ...samplingFields,
  model: z.string().min(1),
  prompt: z.union(
    [z.string(), z.array(z.string()).min(1).max(maxPrompts), tokenIds, z.array(tokenIds).min(1).max(maxPrompts)],
    { error: promptRule },
  ),
  /** 0: nothing is sampled; the answer is about the prompt. */
  max_tokens: z.int().min(0).nullish(),
  n: z.int().min(1).max(128).nullish(),
  best_of: z.int().min(1).nullish(),
  echo: z.boolean().nullish(),
  /** Alternatives for each token. */
  logprobs: z.int().min(0).max(20).nullish(),
  /** Extension of vLLM: the same for each token of the prompt. */
  prompt_logprobs: z.int().min(0).max(20).nullish(),
  /** Extension of vLLM. */
  return_token_ids: z.boolean().nullish(),
  stream: z.boolean().nullish(),
  stream_options: z
    .strictObject({ include_usage: z.boolean().nullish(), include_obfuscation: z.literal(false).nullish() })
    .nullish(),
});

/** Fields that are not implemented: accepted where they cannot change the tokens, else refused. */
const otherFields: Readonly<Record<string, IsNeutral>> = {
  user: isAnything,
  metadata: isAnything,
  suffix: isNothing,
  response_format: (value) => (value as { type?: unknown }).type === 'text',
  skip_special_tokens: isOneOf(true),
  spaces_between_special_tokens: isOneOf(true),
  add_special_tokens: isOneOf(false),
  ignore_eos: isOneOf(false),
  use_beam_search: isOneOf(false),
};

/** OpenAI's default. */
const defaultMaxTokens = 16;

/** A request with its defaults filled in. */
export interface CompletionRequest {
  readonly model: string;
  readonly prompts: readonly Exclude<GenerationPrompt, { type: 'chat' }>[];
  readonly sampling: SamplingSettings;
  readonly seed: number | null;
  readonly n: number;
  /** null = no logprobs in the answer. */
  readonly topLogprobs: number | null;
  /** For echoed text and for `prompt_logprobs`. */
  readonly promptLogprobs: number | null;
  readonly hasEcho: boolean;
  readonly hasPromptLogprobs: boolean;
  /** What is sampled is no part of the answer: the engine samples one token at least. */
  readonly isPromptOnly: boolean;
  readonly hasTokenIds: boolean;
  readonly isStreaming: boolean;
  readonly hasStreamUsage: boolean;
}

/** Checks a request body. Throws ApiError 400 that names the field, the rule and the value got. */
export function parseCompletionRequest(body: unknown): CompletionRequest {
  refuseOtherFields(body, completionRequest.shape, otherFields);
  const wire = parseWire(completionRequest, body);
  const maxTokens = wire.max_tokens ?? defaultMaxTokens;
  const hasEcho = wire.echo ?? false;
  const hasPromptLogprobs = wire.prompt_logprobs != null;
  const echoedLogprobs = hasEcho ? (wire.logprobs ?? -1) : -1;
  const promptLogprobs = Math.max(echoedLogprobs, wire.prompt_logprobs ?? -1);
  checkCombinations(wire, maxTokens === 0 && !hasEcho && !hasPromptLogprobs);
  return {
    model: wire.model,
    prompts: toPrompts(wire.prompt),
    sampling: toSampling(wire, Math.max(maxTokens, 1)),
    seed: wire.seed ?? null,
    n: wire.n ?? 1,
    topLogprobs: wire.logprobs ?? null,
    promptLogprobs: promptLogprobs < 0 ? null : promptLogprobs,
    hasEcho,
    hasPromptLogprobs,
    isPromptOnly: maxTokens === 0,
    hasTokenIds: wire.return_token_ids ?? false,
    isStreaming: wire.stream ?? false,
    hasStreamUsage: wire.stream_options?.include_usage ?? false,
  };
}

function checkCombinations(wire: z.infer<typeof completionRequest>, isAboutNothing: boolean): void {
  if (wire.best_of != null && wire.best_of !== (wire.n ?? 1)) {
    const message = `best_of: must equal n: choosing among more candidates is not supported, got ${wire.best_of}`;
    throw refuse(400, 'unsupported_parameter', message, 'best_of');
  }
  if (isAboutNothing) {
    throw refuse(400, 'invalid_value', 'max_tokens: must be ≥ 1 without echo and prompt_logprobs, got 0', 'max_tokens');
  }
  if (wire.stream_options != null && !wire.stream) {
    throw refuse(400, 'invalid_value', 'stream_options: needs stream to be true', 'stream_options');
  }
}

function toPrompts(prompt: z.infer<typeof completionRequest>['prompt']): CompletionRequest['prompts'] {
  if (typeof prompt === 'string') return [{ type: 'text', text: prompt }];
  if (typeof prompt[0] === 'number') return [{ type: 'tokens', ids: prompt as number[] }];
  return (prompt as (string | number[])[]).map((entry) =>
    typeof entry === 'string' ? { type: 'text', text: entry } : { type: 'tokens', ids: entry },
  );
}

/** Of the whole text: with `echo` the prompt's tokens too, of which the first has no logprob. */
export interface CompletionLogprobs {
  readonly tokens: readonly string[];
  readonly token_logprobs: readonly (number | null)[];
  /** Alternatives and the token itself, by their texts. */
  readonly top_logprobs: readonly (Readonly<Record<string, number>> | null)[];
  /** Where each token begins in the text, in UTF-16 units. */
  readonly text_offset: readonly number[];
}

/** Of one token of the prompt, by token id: itself and its alternatives. `rank`: 1 = likeliest; null = beyond those asked for. */
export type PromptTokenLogprobs = Readonly<
  Record<string, { readonly logprob: number; readonly rank: number | null; readonly decoded_token: string }>
>;

export interface CompletionOrigin {
  readonly completion_id: string;
  /** Of the completion, which is one prompt's; `index` counts over all prompts. */
  readonly choice_index: number;
  readonly policy_step: number;
  readonly seed: number;
}

export interface CompletionChoice {
  readonly index: number;
  readonly text: string;
  readonly logprobs: CompletionLogprobs | null;
  readonly finish_reason: 'stop' | 'length' | null;
  readonly prompt_logprobs?: readonly (PromptTokenLogprobs | null)[];
  readonly prompt_token_ids?: readonly number[];
  readonly token_ids?: readonly number[];
  /** Extension: where the choice comes from; in streams in its last chunk. */
  readonly art?: CompletionOrigin;
}

/** Whole answers and chunks have the same shape. */
export interface CompletionResponse {
  readonly id: string;
  readonly object: 'text_completion';
  /** Seconds since 1970. */
  readonly created: number;
  readonly model: string;
  readonly choices: readonly CompletionChoice[];
  readonly usage?: WireUsage | null;
}
