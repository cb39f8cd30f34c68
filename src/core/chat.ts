/**
 * A conversation and its tools as every inference route understands them, whatever protocol they came by. Layer 0.
 * `wire/` turns OpenAI's and Anthropic's requests into these; chat templates, tool-call parsers and conversations read them.
 */
import type { JsonSchema } from './constraint.ts';

export interface ToolCall {
  readonly id: string;
  readonly name: string;
  /** JSON text, as the policy wrote it. */
  readonly arguments: string;
}

export interface ToolDefinition {
  readonly name: string;
  readonly description: string | null;
  readonly parameters: JsonSchema;
  /** Arguments are held to `parameters` while they are sampled. */
  readonly isStrict: boolean;
}

/** `required`: at least one call; a name: a call of that tool. */
export type ToolChoice = 'auto' | 'none' | 'required' | { readonly name: string };

export const chatRoles = ['system', 'developer', 'user', 'assistant', 'tool'] as const;

/** A message with its content as text, which is how chat templates take it. */
export interface PlainMessage {
  readonly role: (typeof chatRoles)[number];
  readonly content: string;
  /** What an assistant thought before it answered. */
  readonly reasoning?: string;
  readonly toolCalls?: readonly ToolCall[];
  readonly name?: string;
  readonly tool_call_id?: string;
}
