/**
 * Anthropic's Messages API: the request as a schema and as what the server needs. Layer 0.
 * Source: Anthropic's API reference, "Create a Message". Extensions: `min_p`, penalties, `logit_bias`, `seed`, `chat_template_kwargs`,
 * `return_token_ids`, as in chat completions. Left out, and refused by name: tools that the server itself would run, images,
 * documents, citations, containers, a last message of the assistant to be continued, thinking with a budget.
 */
import * as z from 'zod';
import type { ToolChoice, ToolDefinition } from '../core/chat.ts';
import type { ReplyFormat } from '../core/generation.ts';
import { type AnthropicMessages, anthropicMessages, systemBlocks, toMessages } from './anthropic-messages.ts';
import { parseWire, refuse } from './errors.ts';
import {
  checkToolChoice,
  checkToolNames,
  type IsNeutral,
  isAnything,
  isEmpty,
  isNothing,
  isOneOf,
  refuseOtherFields,
  samplingFields,
  toolName,
} from './inference-fields.ts';
import type { KnownMessage } from './known-message.ts';

const jsonObject = z.record(z.string(), z.unknown());

const tool = z.strictObject({
  type: z.literal('custom', { error: 'must be custom: the server runs no tools itself' }).nullish(),
  name: toolName,
  description: z.string().nullish(),
  input_schema: jsonObject,
  strict: z.boolean().nullish(),
  // Change no token: caching, and how fine deltas are.
  cache_control: z.unknown().optional(),
  eager_input_streaming: z.boolean().nullish(),
  defer_loading: z.literal(false).nullish(),
  allowed_callers: z.array(z.literal('direct')).nullish(),
  input_examples: z.array(jsonObject).max(0, 'must be empty: examples are not supported').nullish(),
});

const isParallelOff = z.boolean().nullish();

const toolChoice = z.discriminatedUnion(
  'type',
  [
    z.strictObject({ type: z.literal('auto'), disable_parallel_tool_use: isParallelOff }),
    z.strictObject({ type: z.literal('any'), disable_parallel_tool_use: isParallelOff }),
    z.strictObject({ type: z.literal('tool'), name: z.string().min(1), disable_parallel_tool_use: isParallelOff }),
    z.strictObject({ type: z.literal('none') }),
  ],
  { error: 'must be auto, any, tool or none' },
);

const display = z.literal('summarized', { error: 'must be summarized: the whole reasoning is given' }).nullish();

const thinking = z.discriminatedUnion(
  'type',
  [z.strictObject({ type: z.literal('disabled') }), z.strictObject({ type: z.literal('adaptive'), display })],
  { error: 'must be disabled or adaptive: a budget is not supported' },
);

/** What counts as a prompt. */
const promptFields = {
  model: z.string().min(1),
  messages: anthropicMessages,
  system: systemBlocks.nullish(),
  tools: z.array(tool).max(1024).nullish(),
  tool_choice: toolChoice.nullish(),
  thinking: thinking.nullish(),
  output_config: z
    .strictObject({
      effort: z.null({ error: 'not supported' }).optional(),
      format: z.strictObject({ type: z.literal('json_schema'), schema: jsonObject }).nullish(),
    })
    .nullish(),
  /** Extension of vLLM: further variables of the chat template. */
  chat_template_kwargs: jsonObject.nullish(),
};

const { stop: _, ...ourSamplingFields } = samplingFields;

export const countTokensRequest = z.object(promptFields);

export const messagesRequest = z.object({
  ...ourSamplingFields,
  ...promptFields,
  max_tokens: z.int().min(1),
  stop_sequences: z.array(z.string().min(1)).max(16).nullish(),
  stream: z.boolean().nullish(),
  return_token_ids: z.boolean().nullish(),
});
export type WireMessagesRequest = z.infer<typeof messagesRequest>;

/** Fields that are not implemented: accepted where they cannot change the tokens, else refused. */
const otherFields: Readonly<Record<string, IsNeutral>> = {
  metadata: isAnything,
  service_tier: isAnything,
  inference_geo: isAnything,
  cache_control: isAnything,
  user_profile_id: isAnything,
  workspace_id: isAnything,
  diagnostics: isAnything,
  speed: isOneOf('standard'),
  mcp_servers: isEmpty,
  container: isNothing,
  context_management: isNothing,
};

/** What makes the prompt, defaults filled in. */
export interface AnthropicPrompt {
  readonly model: string;
  readonly messages: readonly KnownMessage[];
  readonly tools: readonly ToolDefinition[];
  readonly toolChoice: ToolChoice;
  readonly isParallelToolCalls: boolean;
  readonly format: ReplyFormat;
  readonly templateVariables: Readonly<Record<string, unknown>>;
}

/** A request with its defaults filled in; sampling fields are read from `wire`. */
export interface MessagesRequest {
  readonly prompt: AnthropicPrompt;
  readonly wire: WireMessagesRequest;
  readonly isStreaming: boolean;
  readonly hasTokenIds: boolean;
}

/** Checks a request body. Throws ApiError 400 that names the field, the rule and the value got. */
export function parseMessagesRequest(body: unknown): MessagesRequest {
  refuseOtherFields(body, messagesRequest.shape, otherFields);
  const wire = parseWire(messagesRequest, body);
  return {
    prompt: toPrompt(wire),
    wire,
    isStreaming: wire.stream ?? false,
    hasTokenIds: wire.return_token_ids ?? false,
  };
}

/** `POST /v1/messages/count_tokens`. */
export function parseCountTokensRequest(body: unknown): AnthropicPrompt {
  refuseOtherFields(body, countTokensRequest.shape, otherFields);
  return toPrompt(parseWire(countTokensRequest, body));
}

function toPrompt(wire: z.infer<typeof countTokensRequest>): AnthropicPrompt {
  checkLast(wire.messages);
  const tools = checkToolNames((wire.tools ?? []).map(toDefinition));
  const schema = wire.output_config?.format?.schema;
  return {
    model: wire.model,
    messages: toMessages(wire.system ?? null, wire.messages),
    tools,
    toolChoice: checkToolChoice(toToolChoice(wire.tool_choice), tools),
    isParallelToolCalls: !(
      wire.tool_choice != null &&
      'disable_parallel_tool_use' in wire.tool_choice &&
      wire.tool_choice.disable_parallel_tool_use
    ),
    format: schema === undefined ? { type: 'text' } : { type: 'jsonSchema', schema },
    templateVariables: {
      ...(wire.thinking != null && { enable_thinking: wire.thinking.type === 'adaptive' }),
      ...wire.chat_template_kwargs,
    },
  };
}

function checkLast(messages: AnthropicMessages): void {
  const last = messages.length - 1;
  if (messages[last]?.role !== 'assistant') return;
  const field = `messages[${last}].role`;
  const message = `${field}: must be user in the last message: continuing a text of the assistant is not supported, got assistant`;
  throw refuse(400, 'unsupported_parameter', message, field);
}

function toDefinition({ name, description, input_schema: parameters, strict }: z.infer<typeof tool>): ToolDefinition {
  return { name, description: description ?? null, parameters, isStrict: strict ?? false };
}

function toToolChoice(choice: z.infer<typeof toolChoice> | null | undefined): ToolChoice {
  switch (choice?.type) {
    case 'any':
      return 'required';
    case 'tool':
      return { name: choice.name };
    case 'none':
      return 'none';
    default:
      return 'auto';
  }
}
