/** Messages and tools as chat templates take them, which is OpenAI's shape. Layer 5. */
import type { PlainMessage, ToolDefinition } from '../core/chat.ts';
import type { TemplateMessage } from '../formats/chat-template.ts';

export function toTemplateMessages(messages: readonly PlainMessage[]): readonly TemplateMessage[] {
  return messages.map(({ reasoning, toolCalls, ...message }) => ({
    ...message,
    ...(reasoning !== undefined && { reasoning_content: reasoning }),
    ...(toolCalls !== undefined && { tool_calls: toolCalls.map(toTemplateCall) }),
  }));
}

function toTemplateCall({ id, name, arguments: text }: NonNullable<PlainMessage['toolCalls']>[number]): object {
  return { id, type: 'function', function: { name, arguments: text } };
}

/** Without `strict`: it says how arguments are sampled, not what the policy reads. */
export function toTemplateTools(tools: readonly ToolDefinition[]): readonly object[] {
  return tools.map(({ name, description, parameters }) => ({
    type: 'function',
    function: { name, ...(description !== null && { description }), parameters },
  }));
}
