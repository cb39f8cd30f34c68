/** Anthropic's Messages API: `POST /v1/messages` and `/v1/messages/count_tokens`. Layer 5. An adapter over `generation.ts`. */
import { randomUUID } from 'node:crypto';
import type { Context, Hono } from 'hono';
import type { ChatPrompt, GenerationRequest } from '../../core/generation.ts';
import { type AnthropicPrompt, parseCountTokensRequest, parseMessagesRequest } from '../../wire/anthropic.ts';
import { toSampling } from '../../wire/inference-fields.ts';
import { readJson } from '../http/read-json.ts';
import { streamResponse } from '../http/stream-response.ts';
import { collectGeneration, type GenerationStart, generate, linkAborter } from './generation.ts';
import { sourceOf, stepHeaders } from './generation-headers.ts';
import { countPromptTokens } from './generation-turn.ts';
import { createMessage, streamMessage } from './messages-writer.ts';
import type { ModelLookup } from './model-lookup.ts';

const maxBodyBytes = 10 * 1024 * 1024;

/** Adds the routes below `base`, which is `/v1` or `/rollouts/:rolloutId/v1`. */
export function registerMessagesRoutes(app: Hono, base: string, lookup: ModelLookup): void {
  app.post(`${base}/messages`, (c) => handleMessage(c, lookup));
  app.post(`${base}/messages/count_tokens`, async (c) => {
    const prompt = parseCountTokensRequest(await readJson(c, maxBodyBytes));
    const chat = { model: prompt.model, prompt: toChatPrompt(prompt), ...sourceOf(c) };
    return c.json({ input_tokens: await countPromptTokens(lookup, chat) });
  });
}

/** Whether errors of this path have Anthropic's shape. */
export function isMessagesPath(path: string): boolean {
  return /^(\/rollouts\/[^/]+)?\/v1\/messages(\/|$)/.test(path);
}

async function handleMessage(c: Context, lookup: ModelLookup): Promise<Response> {
  const { prompt, wire, isStreaming, hasTokenIds } = parseMessagesRequest(await readJson(c, maxBodyBytes));
  const request: GenerationRequest = {
    id: `msg_${randomUUID().replaceAll('-', '')}`,
    model: prompt.model,
    prompt: toChatPrompt(prompt),
    ...sourceOf(c),
    n: 1,
    sampling: toSampling({ ...wire, stop: wire.stop_sequences }, wire.max_tokens),
    seed: wire.seed ?? null,
    toolChoice: prompt.toolChoice,
    isParallelToolCalls: prompt.isParallelToolCalls,
    format: prompt.format,
    topLogprobs: null,
    promptLogprobs: null,
  };
  if (isStreaming) return await answerStream(c, lookup, request, hasTokenIds);
  const generation = await collectGeneration(lookup, request, c.req.raw.signal);
  const headers = {
    'content-type': 'application/json',
    ...stepHeaders(generation.start, generation.choices[0]?.policyStep ?? null),
  };
  return c.body(JSON.stringify(createMessage(generation, hasTokenIds)), 200, headers);
}

function toChatPrompt({ messages, tools, templateVariables }: AnthropicPrompt): ChatPrompt {
  return {
    type: 'chat',
    messages: messages.map(({ message }) => message),
    completionIds: messages.map(({ completionId }) => completionId),
    tools,
    templateVariables,
  };
}

async function answerStream(
  c: Context,
  lookup: ModelLookup,
  request: GenerationRequest,
  hasTokenIds: boolean,
): Promise<Response> {
  const aborter = linkAborter(c.req.raw.signal);
  const headers: Record<string, string> = {};
  const onStart = (start: GenerationStart): void => {
    // The step of an unpinned stream is known at its end: see `art.policy_step` of `message_delta`.
    Object.assign(headers, stepHeaders(start, start.policyStep));
  };
  const events = streamMessage(generate(lookup, request, aborter.signal), hasTokenIds, onStart);
  return await streamResponse(c, events, headers, () => aborter.abort());
}
