/** What the requests of several inference protocols have in common: sampling fields, and the rule for fields that are not ours. Layer 0. */
import * as z from 'zod';
import type { ToolChoice, ToolDefinition } from '../core/chat.ts';
import type { SamplingSettings } from '../core/generation.ts';
import { formatValue, refuse } from './errors.ts';

/** Whether a value of a field that is not implemented asks for nothing. */
export type IsNeutral = (value: unknown) => boolean;

export const isAnything: IsNeutral = () => true;
export const isNothing: IsNeutral = () => false;
export const isEmpty: IsNeutral = (value) => typeof value === 'object' && Object.keys(value as object).length === 0;
export const isOneOf =
  (...values: readonly unknown[]): IsNeutral =>
  (value) =>
    values.includes(value);

/**
 * Refuses unknown fields, and known ones that are not implemented unless their value asks for nothing; null is "default". Throws
 * ApiError 400 that names the field, and for a body that is not a JSON object.
 */
export function refuseOtherFields(
  body: unknown,
  fields: Readonly<Record<string, unknown>>,
  otherFields: Readonly<Record<string, IsNeutral>>,
): asserts body is Readonly<Record<string, unknown>> {
  if (typeof body !== 'object' || body === null || Array.isArray(body)) {
    throw refuse(400, 'invalid_value', `body: must be a JSON object, got ${formatValue(body)}`);
  }
  for (const [field, value] of Object.entries(body)) {
    if (value === null || Object.hasOwn(fields, field)) continue;
    const isNeutral = Object.hasOwn(otherFields, field) ? otherFields[field] : undefined;
    if (isNeutral === undefined) throw refuse(400, 'unknown_parameter', `${field}: unknown field`, field);
    if (!isNeutral(value)) {
      throw refuse(400, 'unsupported_parameter', `${field}: not supported, got ${formatValue(value)}`, field);
    }
  }
}

const stopString = z.string().min(1);
const penalty = z.number().min(-2).max(2);

/** Sampling fields with the names of OpenAI, or of vLLM where OpenAI has none. Null is "default". */
export const samplingFields = {
  temperature: z.number().min(0).max(2).nullish(),
  top_p: z.number().gt(0).max(1).nullish(),
  /** 0 = off; vLLM writes −1. */
  top_k: z.int().min(-1).nullish(),
  min_p: z.number().min(0).max(1).nullish(),
  frequency_penalty: penalty.nullish(),
  presence_penalty: penalty.nullish(),
  repetition_penalty: z.number().gt(0).max(10).nullish(),
  logit_bias: z
    .record(z.string().regex(/^\d{1,9}$/, 'must name tokens by their ids'), z.number().min(-100).max(100))
    .nullish(),
  min_tokens: z.int().min(0).nullish(),
  stop: z
    .union([stopString, z.array(stopString).max(16)], { error: 'must be a string or a list of up to 16 strings' })
    .nullish(),
  seed: z.int().nullish(),
  stop_token_ids: z.array(z.int().min(0)).max(64).nullish(),
};

const samplingObject = z.object(samplingFields);

/** `maxTokens`: null = what is left of the context. */
export function toSampling(wire: z.infer<typeof samplingObject>, maxTokens: number | null): SamplingSettings {
  const stop = wire.stop ?? [];
  if (maxTokens !== null && (wire.min_tokens ?? 0) > maxTokens) {
    const message = `min_tokens: must be ≤ the most tokens ${maxTokens}, got ${wire.min_tokens}`;
    throw refuse(400, 'invalid_value', message, 'min_tokens');
  }
  const bias = Object.entries(wire.logit_bias ?? {}).map(([id, value]) => [Number(id), value] as const);
  return {
    maxTokens,
    temperature: wire.temperature ?? 1,
    topP: wire.top_p ?? 1,
    topK: Math.max(wire.top_k ?? 0, 0),
    stopStrings: typeof stop === 'string' ? [stop] : stop,
    ...(wire.min_p != null && { minP: wire.min_p }),
    ...(wire.frequency_penalty != null && { frequencyPenalty: wire.frequency_penalty }),
    ...(wire.presence_penalty != null && { presencePenalty: wire.presence_penalty }),
    ...(wire.repetition_penalty != null && { repetitionPenalty: wire.repetition_penalty }),
    ...(bias.length > 0 && { logitBias: bias }),
    ...(wire.min_tokens != null && { minTokens: wire.min_tokens }),
    ...(wire.stop_token_ids != null && { stopTokenIds: wire.stop_token_ids }),
  };
}

/** Throws ApiError 400 if `choice` asks for a call that the tools do not allow. */
export function checkToolChoice(choice: ToolChoice, tools: readonly ToolDefinition[]): ToolChoice {
  if (choice === 'auto' || choice === 'none') return choice;
  const names = tools.map((tool) => tool.name);
  if (choice === 'required' ? names.length > 0 : names.includes(choice.name)) return choice;
  const rule = choice === 'required' ? 'needs at least one tool' : `must name one of the tools (${names.join(', ')})`;
  throw refuse(400, 'invalid_value', `tool_choice: ${rule}, got ${formatValue(choice)}`, 'tool_choice');
}

/** As strict as OpenAI, but for dots, slashes and colons, which servers of MCP put in names. */
export const toolName = z.string().regex(/^[\w.:/-]{1,128}$/, 'must be 1–128 letters, digits, or _ . : / -');

/** Throws ApiError 400 if two tools have the same name; `nameField` is where a tool has it. */
export function checkToolNames(tools: readonly ToolDefinition[], nameField = 'name'): readonly ToolDefinition[] {
  const names = new Set<string>();
  for (const [index, { name }] of tools.entries()) {
    const field = `tools[${index}].${nameField}`;
    if (names.has(name)) throw refuse(400, 'invalid_value', `${field}: must be given once, got ${name} again`, field);
    names.add(name);
  }
  return tools;
}
