/**
 * Messages of Anthropic's API as chat messages. Layer 0. Source: Anthropic's API reference, "Create a Message".
 * A `tool_result` becomes a message of its own; blocks of the assistant become one message with text, reasoning and calls.
 */
import * as z from 'zod';
import type { PlainMessage, ToolCall } from '../core/chat.ts';
import type { KnownMessage } from './known-message.ts';

// Changes no token.
const cacheControl = z.unknown().optional();

const textBlock = z.strictObject({
  type: z.literal('text'),
  text: z.string(),
  cache_control: cacheControl,
  citations: z.array(z.unknown()).max(0, 'must be empty: citations are not supported').nullish(),
});

const textBlocks = z.union([z.string(), z.array(textBlock)], { error: 'must be a string or a list of text blocks' });

const toolResultBlock = z.strictObject({
  type: z.literal('tool_result'),
  tool_use_id: z.string().min(1),
  content: textBlocks.nullish(),
  is_error: z.boolean().nullish(),
  cache_control: cacheControl,
});

const toolUseBlock = z.strictObject({
  type: z.literal('tool_use'),
  id: z.string().min(1),
  name: z.string().min(1),
  input: z.unknown(),
  cache_control: cacheControl,
  caller: z.strictObject({ type: z.literal('direct') }).nullish(),
});

const thinkingBlock = z.strictObject({
  type: z.literal('thinking'),
  thinking: z.string(),
  /** Names the message that the thinking is of, where this server wrote it. */
  signature: z.string(),
});

const userContent = z.union(
  [
    z.string(),
    z.array(
      z.discriminatedUnion('type', [textBlock, toolResultBlock], {
        error: 'must be text or tool_result in a message of the user: only text is supported',
      }),
    ),
  ],
  { error: 'must be a string or a list of blocks' },
);

const assistantContent = z.union(
  [
    z.string(),
    z.array(
      z.discriminatedUnion('type', [textBlock, toolUseBlock, thinkingBlock], {
        error: 'must be text, tool_use or thinking in a message of the assistant',
      }),
    ),
  ],
  { error: 'must be a string or a list of blocks' },
);

/** Names the message that this one is, so that the server continues exactly its token ids. */
const art = z.looseObject({ completion_id: z.string() }).nullish();

export const anthropicMessages = z
  .array(
    z.discriminatedUnion(
      'role',
      [
        z.strictObject({ role: z.literal('user'), content: userContent }),
        z.strictObject({ role: z.literal('assistant'), content: assistantContent, art }),
        z.strictObject({ role: z.literal('system'), content: textBlocks }),
      ],
      { error: 'must be user, assistant or system' },
    ),
  )
  .min(1);
export type AnthropicMessages = z.infer<typeof anthropicMessages>;

export const systemBlocks = textBlocks;

/** Blocks that a client wrote are paragraphs; those of the policy are one text. */
const joinClient = '\n';

/** `system`: null if there is none. */
export function toMessages(
  system: z.infer<typeof systemBlocks> | null,
  messages: AnthropicMessages,
): readonly KnownMessage[] {
  const first = system === null ? [] : [plain({ role: 'system', content: textOf(system) })];
  return [...first, ...messages.flatMap(toKnownMessages)];
}

function toKnownMessages(message: AnthropicMessages[number]): readonly KnownMessage[] {
  switch (message.role) {
    case 'system':
      return [plain({ role: 'system', content: textOf(message.content) })];
    case 'user':
      return toUserMessages(message.content).map(plain);
    case 'assistant':
      return [
        {
          message: toAssistantMessage(message.content),
          completionId: message.art?.completion_id ?? signatureOf(message.content),
        },
      ];
  }
}

function plain(message: PlainMessage): KnownMessage {
  return { message, completionId: null };
}

function toUserMessages(content: z.infer<typeof userContent>): readonly PlainMessage[] {
  if (typeof content === 'string') return [{ role: 'user', content }];
  const messages: PlainMessage[] = [];
  let texts: string[] = [];
  const closeText = (): void => {
    if (texts.length > 0) messages.push({ role: 'user', content: texts.join(joinClient) });
    texts = [];
  };
  for (const block of content) {
    if (block.type === 'text') {
      texts.push(block.text);
      continue;
    }
    closeText();
    const text = textOf(block.content ?? '');
    // No chat template has a place for it, and the policy has to see it.
    const result = block.is_error ? `Error: ${text}` : text;
    messages.push({ role: 'tool', content: result, tool_call_id: block.tool_use_id });
  }
  closeText();
  return messages.length > 0 ? messages : [{ role: 'user', content: '' }];
}

function toAssistantMessage(content: z.infer<typeof assistantContent>): PlainMessage {
  if (typeof content === 'string') return { role: 'assistant', content };
  let text = '';
  let reasoning = '';
  const toolCalls: ToolCall[] = [];
  for (const block of content) {
    if (block.type === 'text') text += block.text;
    else if (block.type === 'thinking') reasoning += block.thinking;
    else toolCalls.push({ id: block.id, name: block.name, arguments: argumentsOf(block.input) });
  }
  return {
    role: 'assistant',
    content: text,
    ...(reasoning !== '' && { reasoning }),
    ...(toolCalls.length > 0 && { toolCalls }),
  };
}

/** A string is what the policy wrote where that was no JSON. */
function argumentsOf(input: unknown): string {
  return typeof input === 'string' ? input : JSON.stringify(input ?? {});
}

function signatureOf(content: z.infer<typeof assistantContent>): string | null {
  if (typeof content === 'string') return null;
  const block = content.find((candidate) => candidate.type === 'thinking');
  return block?.type === 'thinking' && block.signature.startsWith('msg_') ? block.signature : null;
}

function textOf(content: z.infer<typeof textBlocks>): string {
  return typeof content === 'string' ? content : content.map((block) => block.text).join(joinClient);
}
