/**
 * OpenAI's Responses API: the request as a schema and as what the server needs. Layer 0.
 * Source: OpenAI API reference, "Create a model response". Extensions: `top_k`, `min_p`, penalties, `logit_bias`, `stop`, `seed`,
 * `chat_template_kwargs`, `return_token_ids`, as in chat completions. Left out, and refused by name: tools that the server itself
 * would run, images, files, audio, background responses, conversations, prompt templates.
 */
import * as z from 'zod';
import type { ToolChoice, ToolDefinition } from '../core/chat.ts';
import type { ReplyFormat } from '../core/generation.ts';
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
import { type ResponseInputItem, responseInput } from './responses-input.ts';

const jsonObject = z.record(z.string(), z.unknown());

const functionTool = z.strictObject({
  type: z.literal('function', { error: 'must be function: the server runs no tools itself' }),
  name: toolName,
  description: z.string().nullish(),
  parameters: jsonObject.nullish(),
  strict: z.boolean().nullish(),
  defer_loading: z.literal(false).nullish(),
  allowed_callers: z.array(z.literal('direct')).nullish(),
});

const toolChoice = z.union(
  [z.enum(['none', 'auto', 'required']), z.strictObject({ type: z.literal('function'), name: z.string().min(1) })],
  { error: 'must be none, auto, required or {"type":"function","name":…}' },
);

const textFormat = z.discriminatedUnion(
  'type',
  [
    z.strictObject({ type: z.literal('text') }),
    z.strictObject({ type: z.literal('json_object') }),
    z.strictObject({
      type: z.literal('json_schema'),
      name: z.string(),
      schema: jsonObject,
      description: z.string().nullish(),
      strict: z.boolean().nullish(),
    }),
  ],
  { error: 'must be text, json_object or json_schema' },
);

/** What a response may be asked to include; what only tools of the server would give is always absent. */
const includable = z.enum([
  'reasoning.encrypted_content',
  'message.output_text.logprobs',
  'file_search_call.results',
  'web_search_call.results',
  'web_search_call.action.sources',
  'code_interpreter_call.outputs',
  'computer_call_output.output.image_url',
  'message.input_image.image_url',
]);

const summary = z.enum(['auto', 'detailed'], { error: 'must be auto or detailed: the whole reasoning is its summary' });

export const responsesRequest = z.object({
  ...samplingFields,
  model: z.string().min(1),
  input: responseInput,
  instructions: z.string().nullish(),
  max_output_tokens: z.int().min(1).nullish(),
  tools: z.array(functionTool).nullish(),
  tool_choice: toolChoice.nullish(),
  parallel_tool_calls: z.boolean().nullish(),
  text: z
    .strictObject({
      format: textFormat.nullish(),
      verbosity: z.literal('medium', { error: 'must be medium, which is the default' }).nullish(),
    })
    .nullish(),
  reasoning: z
    .strictObject({
      effort: z.literal('none', { error: 'must be none: no other effort is supported' }).nullish(),
      summary: summary.nullish(),
      generate_summary: summary.nullish(),
    })
    .nullish(),
  previous_response_id: z.string().nullish(),
  store: z.boolean().nullish(),
  include: z.array(includable).nullish(),
  metadata: z.record(z.string(), z.string()).nullish(),
  top_logprobs: z.int().min(0).max(20).nullish(),
  stream: z.boolean().nullish(),
  stream_options: z.strictObject({ include_obfuscation: z.literal(false).nullish() }).nullish(),
  /** Extension of vLLM: further variables of the chat template. */
  chat_template_kwargs: jsonObject.nullish(),
  return_token_ids: z.boolean().nullish(),
});
export type WireResponsesRequest = z.infer<typeof responsesRequest>;

/** Fields that are not implemented: accepted where they cannot change the tokens, else refused. */
const otherFields: Readonly<Record<string, IsNeutral>> = {
  user: isAnything,
  safety_identifier: isAnything,
  prompt_cache_key: isAnything,
  prompt_cache_retention: isAnything,
  prompt_cache_options: isAnything,
  service_tier: isAnything,
  // Counts calls of tools that the server runs; there are none.
  max_tool_calls: isAnything,
  background: isOneOf(false),
  truncation: isOneOf('disabled'),
  context_management: isEmpty,
  conversation: isNothing,
  prompt: isNothing,
  moderation: isNothing,
};

/** A request with its defaults filled in; sampling fields are read from `wire`. */
export interface ResponsesRequest {
  readonly wire: WireResponsesRequest;
  /** A string is a user's message. */
  readonly items: readonly ResponseInputItem[];
  readonly tools: readonly ToolDefinition[];
  readonly toolChoice: ToolChoice;
  readonly isParallelToolCalls: boolean;
  readonly format: ReplyFormat;
  readonly templateVariables: Readonly<Record<string, unknown>>;
  /** null = no logprobs in the response. */
  readonly topLogprobs: number | null;
  readonly hasSummary: boolean;
  readonly hasEncryptedReasoning: boolean;
  readonly isStored: boolean;
  readonly isStreaming: boolean;
  readonly hasTokenIds: boolean;
}

/** Checks a request body. Throws ApiError 400 that names the field, the rule and the value got. */
export function parseResponsesRequest(body: unknown): ResponsesRequest {
  refuseOtherFields(body, responsesRequest.shape, otherFields);
  const wire = parseWire(responsesRequest, body);
  const include = wire.include ?? [];
  const hasLogprobs = include.includes('message.output_text.logprobs');
  if (wire.top_logprobs != null && wire.top_logprobs > 0 && !hasLogprobs) {
    const message = 'top_logprobs: needs include to have message.output_text.logprobs';
    throw refuse(400, 'invalid_value', message, 'top_logprobs');
  }
  const tools = checkToolNames((wire.tools ?? []).map(toDefinition));
  return {
    wire,
    items: typeof wire.input === 'string' ? [{ type: 'message', role: 'user', content: wire.input }] : wire.input,
    tools,
    toolChoice: checkToolChoice(toToolChoice(wire.tool_choice), tools),
    isParallelToolCalls: wire.parallel_tool_calls ?? true,
    format: toFormat(wire.text?.format),
    templateVariables: {
      ...(wire.reasoning?.effort === 'none' && { enable_thinking: false }),
      ...wire.chat_template_kwargs,
    },
    topLogprobs: hasLogprobs ? (wire.top_logprobs ?? 0) : null,
    hasSummary: (wire.reasoning?.summary ?? wire.reasoning?.generate_summary) != null,
    hasEncryptedReasoning: include.includes('reasoning.encrypted_content'),
    isStored: wire.store ?? true,
    isStreaming: wire.stream ?? false,
    hasTokenIds: wire.return_token_ids ?? false,
  };
}

function toDefinition(tool: z.infer<typeof functionTool>): ToolDefinition {
  return {
    name: tool.name,
    description: tool.description ?? null,
    parameters: tool.parameters ?? { type: 'object', properties: {} },
    isStrict: tool.strict ?? false,
  };
}

function toToolChoice(choice: z.infer<typeof toolChoice> | null | undefined): ToolChoice {
  if (choice == null) return 'auto';
  return typeof choice === 'string' ? choice : { name: choice.name };
}

function toFormat(format: z.infer<typeof textFormat> | null | undefined): ReplyFormat {
  switch (format?.type) {
    case 'json_object':
      return { type: 'jsonObject' };
    case 'json_schema':
      return { type: 'jsonSchema', schema: format.schema };
    default:
      return { type: 'text' };
  }
}
