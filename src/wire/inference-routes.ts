/**
 * The inference API as a table for `/openapi.json`: OpenAI's and Anthropic's routes with what this server adds. Layer 0.
 * Requests are the schemas that the routes check; of the answers the fields that clients read, as the protocols have more than these.
 * Every route is there twice: below `/v1`, and below `/rollouts/{rollout_id}/v1`, which says which rollout the call belongs to.
 */
import * as z from 'zod';
import { countTokensRequest, messagesRequest } from './anthropic.ts';
import { completionRequest } from './completions.ts';
import { chatCompletionRequest } from './openai.ts';
import { responsesRequest } from './responses.ts';
import { defineRoute, type RouteSpec } from './route.ts';

const usage = z.looseObject({ prompt_tokens: z.int(), completion_tokens: z.int(), total_tokens: z.int() });

/** Which completion a choice is, the policy step that sampled it, and its number of tokens. */
const origin = z.looseObject({
  completion_id: z.string(),
  policy_step: z.int(),
  completion_tokens: z.int().optional(),
});

export const chatCompletion = z.looseObject({
  id: z.string(),
  object: z.literal('chat.completion'),
  created: z.int(),
  model: z.string(),
  choices: z.array(
    z.looseObject({
      index: z.int(),
      message: z.looseObject({ role: z.literal('assistant'), content: z.string().nullable() }),
      finish_reason: z.enum(['stop', 'length', 'tool_calls']),
      token_ids: z.array(z.int()).optional(),
      art: origin,
    }),
  ),
  usage,
});

export const chatCompletionChunk = z.looseObject({
  id: z.string(),
  object: z.literal('chat.completion.chunk'),
  choices: z.array(z.looseObject({ index: z.int(), delta: z.looseObject({}), finish_reason: z.string().nullable() })),
});

export const textCompletion = z.looseObject({
  id: z.string(),
  object: z.literal('text_completion'),
  created: z.int(),
  model: z.string(),
  choices: z.array(
    z.looseObject({
      index: z.int(),
      text: z.string(),
      finish_reason: z.enum(['stop', 'length']).nullable(),
      art: origin.optional(),
    }),
  ),
  usage: usage.nullish(),
});

export const servedModel = z.object({
  id: z.string(),
  object: z.literal('model'),
  created: z.int(),
  owned_by: z.string(),
});

export const servedModels = z.object({ object: z.literal('list'), data: z.array(servedModel) });

export const responseObject = z.looseObject({
  id: z.string(),
  object: z.literal('response'),
  status: z.string(),
  model: z.string(),
  output: z.array(z.looseObject({ type: z.string() })),
});

export const anthropicMessage = z.looseObject({
  id: z.string(),
  type: z.literal('message'),
  role: z.literal('assistant'),
  model: z.string(),
  content: z.array(z.looseObject({ type: z.string() })),
  stop_reason: z.string().nullable(),
  usage: z.looseObject({ input_tokens: z.int(), output_tokens: z.int() }),
});

export const tokenCount = z.object({ input_tokens: z.int() });

/** An event of a streamed response or message, by its type. */
export const streamedEvent = z.looseObject({ type: z.string() });

export const deletedResponse = z.looseObject({ id: z.string(), object: z.string(), deleted: z.literal(true) });

export const healthz = z.looseObject({ status: z.enum(['ok', 'unavailable']) });

const versioned = {
  listServedModels: defineRoute({
    method: 'get',
    path: '/models',
    tag: 'Inference',
    summary: 'What can be sampled from: name for the newest step, name@step for a fixed one',
    scope: 'infer',
    responses: { 200: { description: 'The models.', schema: servedModels } },
  }),
  getServedModel: defineRoute({
    method: 'get',
    path: '/models/{id}',
    tag: 'Inference',
    summary: 'One model that can be sampled from',
    scope: 'infer',
    responses: { 200: { description: 'The model.', schema: servedModel } },
    errors: [404],
  }),
  createChatCompletion: defineRoute({
    method: 'post',
    path: '/chat/completions',
    tag: 'Inference',
    summary: 'Chat completion, as OpenAI has it',
    details:
      'With stream: true the answer is a stream of chunks, then [DONE]. Each choice says in art which policy step sampled it.',
    scope: 'infer',
    body: chatCompletionRequest,
    responses: {
      200: { description: 'The completion.', schema: chatCompletion, events: { message: chatCompletionChunk } },
    },
    errors: [404, 429],
  }),
  createCompletion: defineRoute({
    method: 'post',
    path: '/completions',
    tag: 'Inference',
    summary: 'Completion of texts or token ids without a template, as OpenAI has it',
    details: 'With stream: true the answer is a stream of chunks of the same shape, then [DONE].',
    scope: 'infer',
    body: completionRequest,
    responses: {
      200: { description: 'The completion.', schema: textCompletion, events: { message: textCompletion } },
    },
    errors: [404, 429],
  }),
  createResponse: defineRoute({
    method: 'post',
    path: '/responses',
    tag: 'Inference',
    summary: 'Response, as OpenAI has it',
    details: 'With stream: true the answer is a stream of typed events.',
    scope: 'infer',
    body: responsesRequest,
    responses: { 200: { description: 'The response.', schema: responseObject, events: { message: streamedEvent } } },
    errors: [404, 429],
  }),
  getResponse: defineRoute({
    method: 'get',
    path: '/responses/{id}',
    tag: 'Inference',
    summary: 'A response that was stored',
    scope: 'infer',
    responses: { 200: { description: 'The response.', schema: responseObject } },
    errors: [404],
  }),
  deleteResponse: defineRoute({
    method: 'delete',
    path: '/responses/{id}',
    tag: 'Inference',
    summary: 'Forget a response that was stored',
    scope: 'infer',
    responses: { 200: { description: 'It is gone.', schema: deletedResponse } },
    errors: [404],
  }),
  createMessage: defineRoute({
    method: 'post',
    path: '/messages',
    tag: 'Inference',
    summary: 'Message, as Anthropic has it',
    details: 'With stream: true the answer is a stream of typed events. Errors have the shape of Anthropic here.',
    scope: 'infer',
    body: messagesRequest,
    responses: { 200: { description: 'The message.', schema: anthropicMessage, events: { message: streamedEvent } } },
    errors: [404],
  }),
  countMessageTokens: defineRoute({
    method: 'post',
    path: '/messages/count_tokens',
    tag: 'Inference',
    summary: 'How many tokens a message request has before it is answered',
    scope: 'infer',
    body: countTokensRequest,
    responses: { 200: { description: 'The number.', schema: tokenCount } },
    errors: [404],
  }),
} as const;

/** Each route below both base paths. */
export const inferenceRoutes: Readonly<Record<string, RouteSpec>> = {
  ...Object.fromEntries(
    Object.entries(versioned).flatMap(([name, spec]) => [
      [name, { ...spec, path: `/v1${spec.path}` } as RouteSpec],
      [
        `${name}InRollout`,
        { ...spec, path: `/rollouts/{rollout_id}/v1${spec.path}`, tag: 'Inference in a rollout' } as RouteSpec,
      ],
    ]),
  ),
  metricsPage: defineRoute({
    method: 'get',
    path: '/metrics',
    tag: 'Server',
    summary: 'Counters and gauges for Prometheus',
    scope: 'infer',
    responses: { 200: { description: 'The text format of Prometheus.', contentType: 'text/plain' } },
  }) as RouteSpec,
  healthz: defineRoute({
    method: 'get',
    path: '/healthz',
    tag: 'Server',
    summary: 'Whether the engines answer, for load balancers',
    scope: 'open',
    responses: {
      200: { description: 'They do.', schema: healthz },
      503: { description: 'One does not.', schema: healthz },
    },
  }) as RouteSpec,
};
