/** Tools, tool choice and response format in OpenAI's shape, and as the server takes them. Layer 0. */
import * as z from 'zod';
import type { ToolChoice, ToolDefinition } from '../core/chat.ts';
import type { ReplyFormat } from '../core/generation.ts';
import { refuse } from './errors.ts';
import { checkToolChoice, checkToolNames, toolName } from './inference-fields.ts';

const jsonSchema = z.union([z.boolean(), z.record(z.string(), z.unknown())], { error: 'must be a JSON schema' });

const tool = z.strictObject({
  type: z.literal('function'),
  function: z.strictObject({
    name: toolName,
    description: z.string().nullish(),
    parameters: jsonSchema.nullish(),
    strict: z.boolean().nullish(),
  }),
  // Where a client wants a prompt cached: changes no token.
  cache_control: z.unknown().optional(),
});

const namedTool = z.strictObject({ type: z.literal('function'), function: z.strictObject({ name: toolName }) });

const jsonSchemaFormat = z.strictObject({
  type: z.literal('json_schema'),
  json_schema: z.strictObject({
    name: z.string().min(1),
    description: z.string().nullish(),
    schema: jsonSchema,
    /** Either way the answer is held to the schema. */
    strict: z.boolean().nullish(),
  }),
});

export const toolFields = {
  tools: z.array(tool).max(1024).nullish(),
  tool_choice: z
    .union([z.enum(['auto', 'none', 'required']), namedTool], {
      error: 'must be auto, none, required, or { type: "function", function: { name } }',
    })
    .nullish(),
  parallel_tool_calls: z.boolean().nullish(),
  response_format: z
    .discriminatedUnion('type', [
      z.strictObject({ type: z.literal('text') }),
      z.strictObject({ type: z.literal('json_object') }),
      jsonSchemaFormat,
    ])
    .nullish(),
  /** Extension of vLLM. */
  structured_outputs: z
    .strictObject({
      json: jsonSchema.nullish(),
      json_object: z.boolean().nullish(),
      regex: z.string().min(1).nullish(),
      choice: z.array(z.string().min(1)).min(1).nullish(),
    })
    .nullish(),
};

const toolObject = z.object(toolFields);
type WireTools = z.infer<typeof toolObject>;

const noParameters = { type: 'object', properties: {} };

export function toTools({ tools }: WireTools): readonly ToolDefinition[] {
  const definitions = (tools ?? []).map(({ function: { name, description, parameters, strict } }) => ({
    name,
    description: description ?? null,
    parameters: parameters ?? noParameters,
    isStrict: strict ?? false,
  }));
  return checkToolNames(definitions, 'function.name');
}

/** Throws ApiError 400 if a call is required of a tool that is not there. */
export function toToolChoice({ tool_choice: choice }: WireTools, tools: readonly ToolDefinition[]): ToolChoice {
  const wanted = typeof choice === 'object' && choice !== null ? { name: choice.function.name } : choice;
  return checkToolChoice(wanted ?? 'auto', tools);
}

/** Throws ApiError 400 if several things are asked for. */
export function toReplyFormat({ response_format: format, structured_outputs: other }: WireTools): ReplyFormat {
  const formats: ReplyFormat[] = [];
  if (format?.type === 'json_object' || other?.json_object) formats.push({ type: 'jsonObject' });
  if (format?.type === 'json_schema') formats.push({ type: 'jsonSchema', schema: format.json_schema.schema });
  if (other?.json != null) formats.push({ type: 'jsonSchema', schema: other.json });
  if (other?.regex != null) formats.push({ type: 'regex', pattern: other.regex });
  if (other?.choice != null) formats.push({ type: 'choice', options: other.choice });
  if (formats.length < 2) return formats[0] ?? { type: 'text' };
  const message = 'structured_outputs: must ask for one format alone, and not beside response_format';
  throw refuse(400, 'invalid_value', message, 'structured_outputs');
}
