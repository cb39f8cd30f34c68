/** `POST /v1/chat/completions`, answered at once or as a stream. Layer 5. An adapter over `generation.ts`. */
import { randomUUID } from 'node:crypto';
import type { Context } from 'hono';
import type { GenerationRequest } from '../../core/generation.ts';
import { type ChatRequest, parseChatRequest } from '../../wire/openai.ts';
import {
  type ChatCompletionResponse,
  type WireReplyMessage,
  type WireToolCall,
  wireUsage,
} from '../../wire/openai-response.ts';
import { readJson } from '../http/read-json.ts';
import { streamResponse } from '../http/stream-response.ts';
import { streamChunks } from './chat-stream.ts';
import {
  collectGeneration,
  type FinishedChoice,
  type Generation,
  type GenerationStart,
  generate,
  linkAborter,
  type ReplyMessage,
} from './generation.ts';
import { sourceOf, stepHeaders } from './generation-headers.ts';
import type { ModelLookup } from './model-lookup.ts';

const maxBodyBytes = 10 * 1024 * 1024;

/** The header and the `rolloutId` of the path say the same: which calls belong to one rollout. */
export async function handleChatCompletion(c: Context, lookup: ModelLookup): Promise<Response> {
  const chat = parseChatRequest(await readJson(c, maxBodyBytes));
  const request = { ...chat.generation, id: `chatcmpl-${randomUUID()}`, ...sourceOf(c) };
  if (chat.isStreaming) return await answerStream(c, lookup, request, chat);
  return answerWhole(c, await collectGeneration(lookup, request, c.req.raw.signal), chat);
}

function answerWhole(c: Context, { start, choices, usage }: Generation, chat: ChatRequest): Response {
  const response: ChatCompletionResponse = {
    id: start.request.id,
    object: 'chat.completion',
    created: start.created,
    model: start.request.model,
    choices: choices.map((choice) => wireChoice(start, choice, chat)),
    usage: wireUsage(usage),
    system_fingerprint: `${start.request.model.replace(/@.*$/, '')}@${choices[0]?.policyStep}`,
    art: { seed: start.seed },
    ...(chat.hasTokenIds && { prompt_token_ids: start.promptIds }),
  };
  const headers = { 'content-type': 'application/json', ...stepHeaders(start, choices[0]?.policyStep ?? null) };
  return c.body(JSON.stringify(response), 200, headers);
}

function wireChoice(
  { request, tokenTexts }: GenerationStart,
  choice: FinishedChoice,
  chat: ChatRequest,
): ChatCompletionResponse['choices'][number] {
  return {
    index: choice.index,
    message: wireMessage(choice.message),
    logprobs: request.topLogprobs === null ? null : tokenTexts.createLogprobs(choice),
    finish_reason: choice.finishReason,
    ...(chat.hasTokenIds && { token_ids: choice.tokenIds }),
    art: {
      completion_id: request.id,
      policy_step: choice.policyStep,
      completion_tokens: choice.tokenIds.length,
    },
  };
}

function wireMessage({ content, reasoning, toolCalls }: ReplyMessage): WireReplyMessage {
  const hasToolCalls = toolCalls.length > 0;
  return {
    role: 'assistant',
    content: hasToolCalls && content === '' ? null : content,
    refusal: null,
    ...(reasoning !== null && { reasoning_content: reasoning }),
    ...(hasToolCalls && { tool_calls: toolCalls.map(wireToolCall) }),
  };
}

function wireToolCall({ id, name, arguments: text }: ReplyMessage['toolCalls'][number]): WireToolCall {
  return { id, type: 'function', function: { name, arguments: text } };
}

async function answerStream(
  c: Context,
  lookup: ModelLookup,
  request: GenerationRequest,
  chat: ChatRequest,
): Promise<Response> {
  const aborter = linkAborter(c.req.raw.signal);
  const headers: Record<string, string> = {};
  const onStart = (start: GenerationStart): void => {
    // The step of an unpinned stream is known at its end: see `art.policy_step` of the choice's last chunk.
    Object.assign(headers, stepHeaders(start, start.policyStep));
  };
  const chunks = streamChunks(generate(lookup, request, aborter.signal), chat, onStart);
  return await streamResponse(c, chunks, headers, () => aborter.abort());
}
