/** `POST /v1/chat/completions`, answered at once or as a stream. Layer 5. */

import { randomInt, randomUUID } from 'node:crypto';
import { setMaxListeners } from 'node:events';
import type { Context } from 'hono';
import { ApiError, DataError, EngineError } from '../core/errors.ts';
import { type ChatCompletionResponse, type ChatRequest, parseChatRequest } from '../wire/openai.ts';
import { sseHeaders } from '../wire/sse.ts';
import { streamChunks } from './chat-stream.ts';
import { chooseModel, endOfTurnIds, type ModelLookup, requireStep } from './model-lookup.ts';
import { readJson } from './read-json.ts';
import {
  collectChoice,
  createUsage,
  type FinishEvent,
  fitMaxTokens,
  type SampledChoice,
  type Turn,
} from './sampling.ts';

const maxBodyBytes = 10 * 1024 * 1024;

/** `x-art-rollout-id` and the `rolloutId` of the path say the same: which calls belong to one rollout. */
export async function handleChatCompletion(c: Context, lookup: ModelLookup): Promise<Response> {
  const request = parseChatRequest(await readJson(c, maxBodyBytes));
  const rolloutId = c.req.param('rolloutId') ?? c.req.header('x-art-rollout-id') ?? null;
  const clientSignal = c.req.raw.signal;
  // A signal costs as much as parsing the request; the client's own is enough where nothing else can end the sampling.
  const aborter = request.isStreaming || request.n > 1 ? linkAborter(clientSignal) : null;
  const turn = await createTurn(lookup, request, rolloutId, aborter?.signal ?? clientSignal);
  const headers: Record<string, string> = turn.prompt.origin === 'rerendered' ? { 'x-art-rerendered': '1' } : {};
  try {
    if (aborter !== null && request.isStreaming) return await answerStream(c, turn, aborter, headers);
    return await answerWhole(c, turn, headers);
  } catch (error) {
    aborter?.abort();
    if (turn.policyStep !== null && (error instanceof DataError || error instanceof EngineError)) {
      await explainLostStep(turn, turn.policyStep, error);
    }
    throw error;
  }
}

/** Aborts with the client, and by itself: when one of several choices fails, or the body of a stream is dropped. */
function linkAborter(clientSignal: AbortSignal): AbortController {
  const aborter = new AbortController();
  setMaxListeners(0, aborter.signal); // one listener a choice, and n may be 128
  if (clientSignal.aborted) aborter.abort(clientSignal.reason);
  clientSignal.addEventListener('abort', () => aborter.abort(clientSignal.reason), { once: true });
  return aborter;
}

async function createTurn(
  lookup: ModelLookup,
  request: ChatRequest,
  rolloutId: string | null,
  signal: AbortSignal,
): Promise<Turn> {
  const choice = await chooseModel(lookup, request.model);
  const { messages, completionIds } = request;
  const prompt = choice.state.conversations.createPrompt({ messages, completionIds, rolloutId });
  return {
    ...choice,
    id: `chatcmpl-${randomUUID()}`,
    created: Math.floor(Date.now() / 1000),
    request,
    prompt,
    seed: request.seed ?? randomInt(2 ** 32),
    maxTokens: fitMaxTokens(request, prompt.ids.length, choice.model.config.maxPositions),
    endOfTurnIds: endOfTurnIds(choice.model),
    signal,
  };
}

/** A step may be unloaded between the look-up and the engine's admission: then the answer is 404, not the engine's error. */
async function explainLostStep(turn: Turn, step: number, error: unknown): Promise<void> {
  try {
    await requireStep(turn.model, step);
  } catch (reason) {
    throw reason instanceof ApiError ? reason : error;
  }
}

async function answerWhole(c: Context, turn: Turn, headers: Record<string, string>): Promise<Response> {
  const indices = Array.from({ length: turn.request.n }, (_, index) => index);
  const sampled = await Promise.all(indices.map((index) => collectChoice(turn, index)));
  for (const { choice, event } of sampled) choice.remember(event);
  const response: ChatCompletionResponse = {
    id: turn.id,
    object: 'chat.completion',
    created: turn.created,
    model: turn.request.model,
    choices: sampled.map(({ choice, event }) => wireChoice(turn, choice, event)),
    usage: createUsage(
      turn,
      sampled.map(({ choice }) => choice),
      sampled[0]?.event,
    ),
    art: { seed: turn.seed },
    ...(turn.request.hasTokenIds && { prompt_token_ids: turn.prompt.ids }),
  };
  headers['content-type'] = 'application/json';
  headers['x-art-policy-step'] = String(sampled[0]?.event.policyStep);
  return c.body(JSON.stringify(response), 200, headers);
}

function wireChoice(turn: Turn, choice: SampledChoice, event: FinishEvent): ChatCompletionResponse['choices'][number] {
  const { request, state } = turn;
  return {
    index: choice.index,
    message: { role: 'assistant', content: choice.text, refusal: null },
    logprobs: request.topLogprobs === null ? null : state.tokenTexts.createLogprobs(choice),
    finish_reason: event.reason,
    ...(request.hasTokenIds && { token_ids: choice.tokenIds }),
    art: { completion_id: turn.id, policy_step: event.policyStep },
  };
}

/** The first event is awaited before the headers are sent, so that an engine that refuses gives a status, not a broken stream. */
async function answerStream(
  c: Context,
  turn: Turn,
  aborter: AbortController,
  headers: Record<string, string>,
): Promise<Response> {
  const chunks = streamChunks(turn, () => aborter.abort());
  const first = await chunks.next();
  const encoder = new TextEncoder();
  const body = new ReadableStream<Uint8Array>({
    start: (controller) => {
      if (!first.done) controller.enqueue(encoder.encode(first.value));
    },
    pull: async (controller) => {
      const { done, value } = await chunks.next();
      if (done) controller.close();
      else controller.enqueue(encoder.encode(value));
    },
    // The generator may be waiting for the engine: aborting is what wakes it.
    cancel: () => aborter.abort(),
  });
  // The step of an unpinned stream is known at its end: see `art.policy_step` of the last chunk.
  if (turn.policyStep !== null) headers['x-art-policy-step'] = String(turn.policyStep);
  return c.body(body, 200, { ...sseHeaders, ...headers });
}
