/** OpenAI's Responses API: `POST /v1/responses`, and what was stored. Layer 5. An adapter over `generation.ts`. */
import { randomUUID } from 'node:crypto';
import type { Context, Hono } from 'hono';
import type { PlainMessage } from '../../core/chat.ts';
import type { GenerationRequest } from '../../core/generation.ts';
import { refuse } from '../../wire/errors.ts';
import { toSampling } from '../../wire/inference-fields.ts';
import type { KnownMessage } from '../../wire/known-message.ts';
import { parseResponsesRequest, type ResponsesRequest } from '../../wire/responses.ts';
import { type ResponseInputItem, responseIdOfItem, toMessages } from '../../wire/responses-input.ts';
import { readJson } from '../http/read-json.ts';
import { streamResponse } from '../http/stream-response.ts';
import { collectGeneration, type GenerationStart, generate, linkAborter } from './generation.ts';
import { sourceOf, stepHeaders } from './generation-headers.ts';
import type { ModelLookup } from './model-lookup.ts';
import { createResponseStore, type OwnResponses, type ResponseStore } from './responses-store.ts';
import { type ResponsesTurn, ResponseWriter } from './responses-writer.ts';

const maxBodyBytes = 10 * 1024 * 1024;

/** Adds the routes below `base`, which is `/v1` or `/rollouts/:rolloutId/v1`; `store` is the same for both. */
export function registerResponsesRoutes(
  app: Hono,
  base: string,
  lookup: ModelLookup,
  store: ResponseStore = createResponseStore(),
): void {
  app.post(`${base}/responses`, (c) => createResponse(c, lookup, store));
  app.get(`${base}/responses/:id`, (c) => getResponse(c, store));
  app.delete(`${base}/responses/:id`, (c) => deleteResponse(c, store));
}

async function createResponse(c: Context, lookup: ModelLookup, store: ResponseStore): Promise<Response> {
  const request = parseResponsesRequest(await readJson(c, maxBodyBytes));
  const own = store.of(ownerOf(c));
  const turn = createTurn(request, sourceOf(c), own);
  if (request.isStreaming) return await answerStream(c, lookup, turn, own);
  const writer = await collect(c, lookup, turn);
  if (request.isStored) own.put(writer.stored());
  const headers = { 'content-type': 'application/json', ...stepHeaders(writer.start, writer.policyStep) };
  return c.body(JSON.stringify(writer.response()), 200, headers);
}

/** The whole answer. Logprobs of a text need to know which tokens it came from: only a stream tells. */
async function collect(c: Context, lookup: ModelLookup, turn: ResponsesTurn): Promise<ResponseWriter> {
  const { signal } = c.req.raw;
  if (turn.generation.topLogprobs === null) {
    return ResponseWriter.ofWhole(turn, await collectGeneration(lookup, turn.generation, signal));
  }
  const writer = new ResponseWriter(turn);
  for await (const event of generate(lookup, turn.generation, signal)) writer.write(event);
  return writer;
}

function createTurn(
  request: ResponsesRequest,
  source: Pick<GenerationRequest, 'rolloutId' | 'keyId'>,
  own: OwnResponses,
): ResponsesTurn {
  const { wire } = request;
  const history = [
    ...previousMessages(wire.previous_response_id ?? null, own),
    ...toMessages(resolveReferences(request.items, own)),
  ];
  const instructions: readonly KnownMessage[] =
    wire.instructions == null ? [] : [{ message: systemMessage(wire.instructions), completionId: null }];
  const messages = [...instructions, ...history];
  const generation: GenerationRequest = {
    id: `resp_${randomUUID().replaceAll('-', '')}`,
    model: wire.model,
    prompt: {
      type: 'chat',
      messages: messages.map(({ message }) => message),
      completionIds: messages.map(({ completionId }) => completionId),
      tools: request.tools,
      templateVariables: request.templateVariables,
    },
    ...source,
    n: 1,
    sampling: toSampling(wire, wire.max_output_tokens ?? null),
    seed: wire.seed ?? null,
    toolChoice: request.toolChoice,
    isParallelToolCalls: request.isParallelToolCalls,
    format: request.format,
    topLogprobs: request.topLogprobs,
    promptLogprobs: null,
  };
  return { request, generation, history };
}

function systemMessage(content: string): PlainMessage {
  return { role: 'system', content };
}

function previousMessages(responseId: string | null, own: OwnResponses): readonly KnownMessage[] {
  if (responseId === null) return [];
  const previous = own.get(responseId);
  if (previous !== undefined) return previous.messages;
  throw refuse(
    404,
    'previous_response_not_found',
    notStored('previous_response_id', responseId),
    'previous_response_id',
  );
}

/** Replaces references by the items that they name. */
function resolveReferences(items: readonly ResponseInputItem[], own: OwnResponses): readonly ResponseInputItem[] {
  return items.map((item) => {
    if (item.type !== 'item_reference') return item;
    const responseId = responseIdOfItem(item.id);
    const found = responseId === null ? undefined : own.findItem(responseId, item.id);
    if (found === undefined) throw refuse(404, 'item_not_found', notStored('input', item.id), 'input');
    return found as ResponseInputItem;
  });
}

function notStored(field: string, id: string): string {
  return `${field}: must be one that is stored, got ${JSON.stringify(id)}. Stored are the newest in memory; send the whole input instead`;
}

async function answerStream(
  c: Context,
  lookup: ModelLookup,
  turn: ResponsesTurn,
  own: OwnResponses,
): Promise<Response> {
  const aborter = linkAborter(c.req.raw.signal);
  const headers: Record<string, string> = {};
  const onStart = (start: GenerationStart): void => {
    // The step of an unpinned stream is known at its end: see `art.policy_step` of the last event's response.
    Object.assign(headers, stepHeaders(start, start.policyStep));
  };
  const writer = new ResponseWriter(turn);
  const onEnd = (): void => {
    if (turn.request.isStored) own.put(writer.stored());
  };
  const events = writer.stream(generate(lookup, turn.generation, aborter.signal), onStart, onEnd);
  return await streamResponse(c, events, headers, () => aborter.abort());
}

function getResponse(c: Context, store: ResponseStore): Response {
  const stored = store.of(ownerOf(c)).get(responseIdOf(c));
  if (c.req.query('stream') === 'true') {
    throw refuse(400, 'unsupported_parameter', 'stream: not supported for stored responses, got true', 'stream');
  }
  if (stored === undefined) throw unknownResponse(responseIdOf(c));
  return c.json(stored.response);
}

function deleteResponse(c: Context, store: ResponseStore): Response {
  const id = responseIdOf(c);
  if (!store.of(ownerOf(c)).delete(id)) throw unknownResponse(id);
  return c.json({ id, object: 'response', deleted: true });
}

/** Whose responses a call may read: those of the same key and the same rollout. */
function ownerOf(c: Context): string {
  const { keyId, rolloutId } = sourceOf(c);
  return `${keyId ?? ''} ${rolloutId ?? ''}`;
}

function responseIdOf(c: Context): string {
  return c.req.param('id') ?? '';
}

function unknownResponse(id: string): Error {
  return refuse(404, 'response_not_found', notStored('id', id), 'id');
}
