/**
 * Messages and tools as a model's chat template takes them. Layer 5.
 * A template that has no tools, or writes calls in a form that no parser reads, gets them as text in the Hermes form: the tools in the
 * system message, calls in the assistant's text, results as a user's message. So a policy of any model can be trained to call tools.
 */
import type { PlainMessage, ToolCall, ToolDefinition } from '../../core/chat.ts';
import type { ChatTemplate, TemplateMessage } from '../../formats/chat-template.ts';
import type { ToolFormat } from '../../formats/tool-formats/tool-format.ts';

/** Of models whose template has no form of its own. */
export const genericToolFormat: ToolFormat = 'hermes';

export interface TemplateInput {
  readonly messages: readonly TemplateMessage[];
  readonly tools: readonly object[];
}

export function toTemplateInput(
  template: ChatTemplate,
  messages: readonly PlainMessage[],
  tools: readonly ToolDefinition[],
): TemplateInput {
  const wireTools = tools.map(toTemplateTool);
  if (template.toolFormat !== null) return { messages: messages.map(toTemplateMessage), tools: wireTools };
  const plain = withResultsOfUsers(messages.map(withCallsAsText));
  const all = tools.length === 0 ? plain : withTools(template, plain, toolsText(wireTools));
  return { messages: all.map(toTemplateMessage), tools: [] };
}

function toTemplateMessage({ reasoning, toolCalls, ...message }: PlainMessage): TemplateMessage {
  return {
    ...message,
    // OpenAI's newer name of it: templates know the old one, and some leave out what they do not know.
    ...(message.role === 'developer' && { role: 'system' as const }),
    ...(reasoning !== undefined && { reasoning_content: reasoning }),
    ...(toolCalls !== undefined && { tool_calls: toolCalls.map(toTemplateCall) }),
  };
}

function toTemplateCall({ id, name, arguments: text }: ToolCall): object {
  return { id, type: 'function', function: { name, arguments: text } };
}

/** Without `strict`: it says how arguments are sampled, not what the policy reads. */
function toTemplateTool({ name, description, parameters }: ToolDefinition): object {
  return { type: 'function', function: { name, ...(description !== null && { description }), parameters } };
}

/** As the template of Qwen2.5 has it. */
function toolsText(tools: readonly object[]): string {
  return [
    '# Tools\n\nYou may call one or more functions to assist with the user query.\n',
    'You are provided with function signatures within <tools></tools> XML tags:\n<tools>',
    ...tools.map((tool) => JSON.stringify(tool)),
    '</tools>\n',
    'For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:',
    '<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>',
  ].join('\n');
}

/** In the system message, or where the template refuses one in the first message. */
function withTools(template: ChatTemplate, messages: readonly PlainMessage[], text: string): readonly PlainMessage[] {
  const [first, ...rest] = messages;
  const isSystem = first?.role === 'system' || first?.role === 'developer';
  if (first !== undefined && (isSystem || !hasSystemMessages(template))) {
    const content = isSystem ? `${first.content}\n\n${text}` : `${text}\n\n${first.content}`;
    return [{ ...first, content }, ...rest];
  }
  return [{ role: 'system', content: text }, ...messages];
}

const systemSupport = new WeakMap<ChatTemplate, boolean>();

function hasSystemMessages(template: ChatTemplate): boolean {
  let isSupported = systemSupport.get(template);
  if (isSupported === undefined) {
    const marker = 'system-probe';
    const messages = [
      { role: 'system', content: marker },
      { role: 'user', content: 'a' },
    ];
    try {
      isSupported = template.render({ messages, addGenerationPrompt: true }).includes(marker);
    } catch {
      isSupported = false;
    }
    systemSupport.set(template, isSupported);
  }
  return isSupported;
}

function withCallsAsText({ toolCalls, ...message }: PlainMessage): PlainMessage {
  if (toolCalls === undefined) return message;
  const calls = toolCalls.map(
    (call) => `<tool_call>\n{"name": ${JSON.stringify(call.name)}, "arguments": ${call.arguments}}\n</tool_call>`,
  );
  return { ...message, content: [...(message.content === '' ? [] : [message.content]), ...calls].join('\n') };
}

/** Results that follow each other are one message: many templates want user and assistant to take turns. */
function withResultsOfUsers(messages: readonly PlainMessage[]): readonly PlainMessage[] {
  const result: PlainMessage[] = [];
  for (const [index, message] of messages.entries()) {
    if (message.role !== 'tool') {
      result.push(message);
      continue;
    }
    const text = `<tool_response>\n${message.content}\n</tool_response>`;
    const previous = messages[index - 1]?.role === 'tool' ? result.pop() : undefined;
    result.push({ role: 'user', content: previous === undefined ? text : `${previous.content}\n${text}` });
  }
  return result;
}
