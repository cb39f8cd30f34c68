/** One message of Anthropic's API on its way out: from the core's events to content blocks and the stream. Layer 5. */
import {
  type AnthropicEvent,
  type AnthropicMessage,
  anthropicUsage,
  type ContentBlock,
  type StopReason,
  toAnthropicError,
} from '../../wire/anthropic-output.ts';
import { sseEvent } from '../../wire/sse.ts';
import type {
  FinishedChoice,
  Generation,
  GenerationEvent,
  GenerationStart,
  ReplyDelta,
  ReplyMessage,
} from './generation.ts';

/** The whole message of a generation that has ended. */
export function createMessage({ start, choices, usage }: Generation, hasTokenIds: boolean): AnthropicMessage {
  const choice = choices[0] as FinishedChoice;
  return {
    ...startedMessage(start, hasTokenIds),
    content: blocksOf(choice.message, start.request.id),
    ...stopOf(choice),
    usage: anthropicUsage(usage),
    art: originOf(start, choice),
    ...(hasTokenIds && { token_ids: choice.tokenIds }),
  };
}

function startedMessage(
  { request, seed, promptIds, policyStep }: GenerationStart,
  hasTokenIds: boolean,
): AnthropicMessage {
  return {
    id: request.id,
    type: 'message',
    role: 'assistant',
    model: request.model,
    content: [],
    stop_reason: null,
    stop_sequence: null,
    // What was found in the cache is known at the end alone.
    usage: anthropicUsage({ promptTokens: promptIds.length, completionTokens: 0, cachedTokens: 0 }),
    art: { seed, completion_id: request.id, ...(policyStep !== null && { policy_step: policyStep }) },
    ...(hasTokenIds && { prompt_token_ids: promptIds }),
  };
}

function originOf({ request, seed }: GenerationStart, { policyStep }: FinishedChoice): AnthropicMessage['art'] {
  return { seed, completion_id: request.id, policy_step: policyStep };
}

function stopOf({ finishReason, stopString }: FinishedChoice): Pick<AnthropicMessage, 'stop_reason' | 'stop_sequence'> {
  const reasons: Readonly<Record<FinishedChoice['finishReason'], StopReason>> = {
    stop: stopString === null ? 'end_turn' : 'stop_sequence',
    length: 'max_tokens',
    tool_calls: 'tool_use',
  };
  const stopReason = reasons[finishReason];
  return { stop_reason: stopReason, stop_sequence: stopReason === 'stop_sequence' ? stopString : null };
}

function blocksOf({ content, reasoning, toolCalls }: ReplyMessage, id: string): readonly ContentBlock[] {
  return [
    ...(reasoning === null || reasoning === '' ? [] : [thinkingBlock(reasoning, id)]),
    ...(content === '' ? [] : [textBlock(content)]),
    ...toolCalls.map((call) => toolUseBlock(call.id, call.name, parseInput(call.arguments))),
  ];
}

/** The signature names the message: sent back, it says which sampled turn the thinking is of. */
function thinkingBlock(thinking: string, signature: string): ContentBlock {
  return { type: 'thinking', thinking, signature };
}

function textBlock(text: string): ContentBlock {
  return { type: 'text', text, citations: null };
}

function toolUseBlock(id: string, name: string, input: unknown): ContentBlock {
  return { type: 'tool_use', id, name, input, caller: { type: 'direct' } };
}

/** Arguments that are no JSON, as when tokens ran out, stay the text that they are. */
function parseInput(text: string): unknown {
  if (text.trim() === '') return {};
  try {
    return JSON.parse(text) as unknown;
  } catch {
    return text;
  }
}

/** The whole event stream as text. An error before the first item is thrown; a later one becomes Anthropic's `error` event. */
export async function* streamMessage(
  events: AsyncIterable<GenerationEvent>,
  hasTokenIds: boolean,
  onStart: (start: GenerationStart) => void,
): AsyncGenerator<string, void> {
  let start: GenerationStart | null = null;
  let choice: FinishedChoice | null = null;
  let blocks = new BlockStream('');
  try {
    for await (const event of events) {
      switch (event.type) {
        case 'started':
          start = event.start;
          onStart(start);
          blocks = new BlockStream(start.request.id);
          yield encode([{ type: 'message_start', message: startedMessage(start, hasTokenIds) }, { type: 'ping' }]);
          break;
        case 'delta':
          if (event.parts.length > 0) yield encode(event.parts.flatMap((part) => blocks.add(part)));
          break;
        case 'finish':
          choice = event.choice;
          yield encode(blocks.close());
          break;
        case 'usage':
          if (start !== null && choice !== null) yield encode(endOf(start, choice, event.usage, hasTokenIds));
          break;
        case 'prompt':
          break;
      }
    }
  } catch (error) {
    if (start === null) throw error;
    yield encode([toAnthropicError(error).body]);
  }
}

function endOf(
  start: GenerationStart,
  choice: FinishedChoice,
  usage: Generation['usage'],
  hasTokenIds: boolean,
): readonly AnthropicEvent[] {
  return [
    {
      type: 'message_delta',
      delta: stopOf(choice),
      usage: anthropicUsage(usage),
      art: originOf(start, choice),
      ...(hasTokenIds && { token_ids: choice.tokenIds }),
    },
    { type: 'message_stop' },
  ];
}

function encode(events: readonly AnthropicEvent[]): string {
  return events.map((event) => sseEvent(event.type, event)).join('');
}

/** At most one block is open at a time: another kind of delta, or another call, closes it. */
class BlockStream {
  readonly #messageId: string;
  #index = -1;
  #open: ContentBlock['type'] | null = null;
  #callIndex = -1;

  constructor(messageId: string) {
    this.#messageId = messageId;
  }

  add(part: ReplyDelta): readonly AnthropicEvent[] {
    switch (part.type) {
      case 'text':
        return [...this.#switchTo(textBlock('')), this.#delta({ type: 'text_delta', text: part.text })];
      case 'reasoning':
        return [...this.#switchTo(thinkingBlock('', '')), this.#delta({ type: 'thinking_delta', thinking: part.text })];
      case 'toolCall': {
        const isOpen = this.#open === 'tool_use' && this.#callIndex === part.index;
        const opening = isOpen ? [] : this.#openBlock(toolUseBlock(part.id ?? '', part.name ?? '', {}));
        this.#callIndex = part.index;
        if (part.argumentsDelta === '') return opening;
        return [...opening, this.#delta({ type: 'input_json_delta', partial_json: part.argumentsDelta })];
      }
    }
  }

  close(): readonly AnthropicEvent[] {
    if (this.#open === null) return [];
    const isThinking = this.#open === 'thinking';
    this.#open = null;
    const signature = isThinking ? [this.#delta({ type: 'signature_delta', signature: this.#messageId })] : [];
    return [...signature, { type: 'content_block_stop', index: this.#index }];
  }

  #switchTo(block: ContentBlock): readonly AnthropicEvent[] {
    return this.#open === block.type ? [] : this.#openBlock(block);
  }

  #openBlock(block: ContentBlock): readonly AnthropicEvent[] {
    const closing = this.close();
    this.#index += 1;
    this.#open = block.type;
    return [...closing, { type: 'content_block_start', index: this.#index, content_block: block }];
  }

  #delta(delta: Extract<AnthropicEvent, { type: 'content_block_delta' }>['delta']): AnthropicEvent {
    return { type: 'content_block_delta', index: this.#index, delta };
  }
}
