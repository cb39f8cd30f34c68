/**
 * Supervised fine-tuning on the wire: `POST /api/models/{name}/sft`. Layer 0. Conversations in OpenAI's chat format, tools included.
 * The answer is that of a `train` call: progress and result as events, or a job.
 */
import * as z from 'zod';
import { chatRoles, type PlainMessage, type ToolCall, type ToolDefinition } from '../core/chat.ts';
import { decayNames } from '../core/schedule.ts';
import { defaultSftConfig, type SftConfig } from '../core/sft-config.ts';
import { adamOptions } from './training.ts';
import { toAdamConfig } from './training-names.ts';

const textPart = z.strictObject({ type: z.literal('text'), text: z.string() });

const toolCall = z.strictObject({
  id: z.string().optional(),
  type: z.literal('function').optional(),
  /** Position in a streamed message; it says nothing here. */
  index: z.int().optional(),
  function: z.strictObject({
    name: z.string().min(1),
    arguments: z.union([z.string(), z.record(z.string(), z.unknown())], { error: 'must be JSON text or an object' }),
  }),
});

const sftMessage = z.strictObject({
  role: z.enum(chatRoles),
  content: z.union([z.string(), z.array(textPart), z.null()], { error: 'must be text, text parts or null' }).optional(),
  reasoning_content: z.string().nullish(),
  tool_calls: z.array(toolCall).nullish(),
  name: z.string().nullish(),
  tool_call_id: z.string().nullish(),
  // What OpenAI's client returns on an assistant message.
  refusal: z.null().optional(),
  annotations: z.array(z.unknown()).max(0).nullish(),
  audio: z.null().optional(),
  function_call: z.null().optional(),
});

const sftTool = z.strictObject({
  type: z.literal('function'),
  function: z.strictObject({
    name: z.string().min(1),
    description: z.string().nullish(),
    parameters: z.record(z.string(), z.unknown()).optional(),
    strict: z.boolean().nullish(),
  }),
});

export const sftConversation = z.strictObject({
  messages: z.array(sftMessage).min(1),
  tools: z.array(sftTool).optional(),
});
type WireConversation = z.infer<typeof sftConversation>;

/** `SftConfig` of `core/`, which has the meaning and the default of each. */
export const sftOptions = z.strictObject({
  train_on: z.enum(['all', 'last']).optional(),
  epochs: z.int().min(1).max(1000).optional(),
  batch_size: z.int().min(1).max(4096).optional(),
  learning_rate: z.number().positive().optional(),
  schedule: z.enum(decayNames).optional(),
  warmup_ratio: z.number().min(0).max(1).optional(),
  schedule_span: z
    .strictObject({ done: z.int().min(0), total: z.int().min(1) })
    .nullable()
    .optional(),
  checkpoint_every: z.int().min(1).nullable().optional(),
  max_grad_norm: z.number().min(0).optional(),
  adam: adamOptions.optional(),
  seed: z.int().min(0).optional(),
  chat_template_kwargs: z.record(z.string(), z.unknown()).optional(),
});

/** `POST /api/models/{name}/sft`. */
export const sftRequest = z.strictObject({
  /** Sent twice, it trains once: the second answer is the first one's result. */
  idempotency_key: z.string().min(1).max(200),
  conversations: z.array(sftConversation).min(1).max(1_000_000),
  options: sftOptions.default({}),
});
export type SftRequest = z.infer<typeof sftRequest>;

/** A conversation as templates and encoders take it. */
export interface PlainConversation {
  readonly messages: readonly PlainMessage[];
  readonly tools: readonly ToolDefinition[];
}

export function toPlainConversation({ messages, tools = [] }: WireConversation): PlainConversation {
  return { messages: messages.map(toPlainMessage), tools: tools.map(toToolDefinition) };
}

export function toSftConfig(options: z.infer<typeof sftOptions>): SftConfig {
  const base = defaultSftConfig;
  return {
    trainOn: options.train_on ?? base.trainOn,
    epochs: options.epochs ?? base.epochs,
    batchSize: options.batch_size ?? base.batchSize,
    learningRate: options.learning_rate ?? base.learningRate,
    schedule: options.schedule ?? base.schedule,
    warmupRatio: options.warmup_ratio ?? base.warmupRatio,
    scheduleSpan: options.schedule_span ?? base.scheduleSpan,
    checkpointEvery: options.checkpoint_every ?? base.checkpointEvery,
    maxGradNorm: options.max_grad_norm ?? base.maxGradNorm,
    adam: toAdamConfig(options.adam, base.adam),
    seed: options.seed ?? base.seed,
    templateVariables: options.chat_template_kwargs ?? base.templateVariables,
  };
}

function toPlainMessage(message: z.infer<typeof sftMessage>): PlainMessage {
  const { role, content, reasoning_content: reasoning, tool_calls: calls, name, tool_call_id: callId } = message;
  const text = Array.isArray(content) ? content.map((part) => part.text).join('') : (content ?? '');
  return {
    role,
    content: text,
    ...(reasoning != null && { reasoning }),
    ...(calls != null && calls.length > 0 && { toolCalls: calls.map(toToolCall) }),
    ...(name != null && { name }),
    ...(callId != null && { tool_call_id: callId }),
  };
}

function toToolCall(call: z.infer<typeof toolCall>, index: number): ToolCall {
  const { name, arguments: given } = call.function;
  return { id: call.id ?? `call_${index}`, name, arguments: typeof given === 'string' ? given : JSON.stringify(given) };
}

function toToolDefinition({ function: definition }: z.infer<typeof sftTool>): ToolDefinition {
  const { name, description = null, parameters = { type: 'object', properties: {} }, strict } = definition;
  return { name, description: description ?? null, parameters, isStrict: strict === true };
}
