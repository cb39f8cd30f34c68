/** Chat messages in OpenAI's shape, and as the server takes them. Layer 0. Images and audio are refused by name. */
import * as z from 'zod';
import { chatRoles, type PlainMessage } from '../core/chat.ts';

const textPart = z.strictObject({
  type: z.literal('text'),
  text: z.string(),
  // Where a client wants a prompt cached: changes no token.
  cache_control: z.unknown().optional(),
});

const toolCall = z.strictObject({
  id: z.string().min(1),
  type: z.literal('function').optional(),
  function: z.strictObject({ name: z.string().min(1), arguments: z.string() }),
  // As a stream's deltas have it, which some clients send back.
  index: z.int().optional(),
});

const text = z.union([z.string(), z.array(textPart)], { error: 'must be a string or a list of text parts' });

export const chatMessage = z
  .strictObject({
    role: z.enum(chatRoles),
    content: text.nullish(),
    name: z.string().nullish(),
    tool_call_id: z.string().nullish(),
    tool_calls: z.array(toolCall).nullish(),
    reasoning_content: z.string().nullish(),
    /** The newer name of the same in vLLM. */
    reasoning: z.string().nullish(),
    // What OpenAI's client returns on an assistant message and agents send back.
    refusal: z.null().optional(),
    annotations: z.array(z.unknown()).max(0).nullish(),
    function_call: z.null().optional(),
    audio: z.null().optional(),
    /** Names the choice that this message is, so that the server continues exactly its token ids. */
    art: z.looseObject({ completion_id: z.string() }).nullish(),
  })
  .check(({ value, issues }) => {
    const issue = messageIssue(value);
    if (issue !== null) issues.push({ code: 'custom', input: value, path: [issue[0]], message: issue[1] });
  });
type WireMessage = Pick<
  z.infer<typeof chatMessage>,
  'role' | 'content' | 'tool_calls' | 'tool_call_id' | 'reasoning' | 'reasoning_content'
>;

/** The field and the rule that it breaks. */
function messageIssue(message: WireMessage): readonly [field: string, rule: string] | null {
  const { role, content, tool_calls: toolCalls, tool_call_id: toolCallId } = message;
  const hasToolCalls = toolCalls != null && toolCalls.length > 0;
  if (role === 'tool' && toolCallId == null) return ['tool_call_id', 'must name the tool call that it answers'];
  if (role === 'assistant') {
    const isEmpty = content == null && !hasToolCalls && message.reasoning == null && message.reasoning_content == null;
    return isEmpty ? ['content', 'must be there, or tool_calls'] : null;
  }
  if (hasToolCalls) return ['tool_calls', 'must be on an assistant message'];
  return content == null ? ['content', 'must be there'] : null;
}

export function toPlainMessage(message: z.infer<typeof chatMessage>): PlainMessage {
  const { content, name, tool_calls: toolCalls, tool_call_id: toolCallId } = message;
  const reasoning = message.reasoning_content ?? message.reasoning;
  return {
    role: message.role,
    content: typeof content === 'string' ? content : (content ?? []).map((part) => part.text).join(''),
    ...(name != null && { name }),
    ...(toolCallId != null && { tool_call_id: toolCallId }),
    ...(reasoning != null && reasoning !== '' && { reasoning }),
    ...(toolCalls != null &&
      toolCalls.length > 0 && {
        toolCalls: toolCalls.map((call) => ({ id: call.id, ...call.function })),
      }),
  };
}
