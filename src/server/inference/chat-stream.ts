/** The chunks of a streamed chat completion. Layer 5. Source: OpenAI's chunk object; vLLM for token ids per chunk. */
import { toHttpError } from '../../wire/errors.ts';
import type { ChatRequest } from '../../wire/openai.ts';
import {
  type ChatCompletionChunk,
  type WireChunkChoice,
  type WireDelta,
  wireUsage,
} from '../../wire/openai-response.ts';
import { sseData, sseDone } from '../../wire/sse.ts';
import type { FinishedChoice, GenerationEvent, GenerationStart, ReplyDelta } from './generation.ts';

type Delta = Extract<GenerationEvent, { type: 'delta' }>;

/**
 * The whole event stream as text, one item a write. An error before the first item is thrown; a later one becomes a last
 * event with OpenAI's error body, without `[DONE]`.
 */
export async function* streamChunks(
  events: AsyncIterable<GenerationEvent>,
  chat: ChatRequest,
  onStart: (start: GenerationStart) => void,
): AsyncGenerator<string, void> {
  let writer: ChunkWriter | null = null;
  let held = '';
  try {
    for await (const event of events) {
      if (event.type === 'started') {
        onStart(event.start);
        writer = createChunkWriter(event.start, chat);
        // Goes out with the first tokens.
        held = writer.first();
        continue;
      }
      const text: string = held + (writer === null ? '' : writeEvent(writer, event, chat));
      held = '';
      if (text !== '') yield text;
    }
    yield sseDone;
  } catch (error) {
    if (writer === null) throw error;
    yield held + sseData(toHttpError(error).body);
  }
}

function writeEvent(
  writer: ChunkWriter,
  event: Exclude<GenerationEvent, { type: 'started' }>,
  chat: ChatRequest,
): string {
  switch (event.type) {
    case 'prompt':
      return '';
    case 'delta':
      return writer.delta(event);
    case 'finish':
      return writer.finish(event.choice);
    case 'usage':
      return chat.hasStreamUsage ? writer.write([], { usage: wireUsage(event.usage) }) : '';
  }
}

interface ChunkWriter {
  readonly first: () => string;
  readonly delta: (event: Delta) => string;
  readonly finish: (choice: FinishedChoice) => string;
  readonly write: (choices: readonly WireChunkChoice[], extra?: Partial<ChatCompletionChunk>) => string;
}

function createChunkWriter(
  { request, created, seed, promptIds, tokenTexts }: GenerationStart,
  chat: ChatRequest,
): ChunkWriter {
  const base = { id: request.id, object: 'chat.completion.chunk' as const, created, model: request.model };
  const write: ChunkWriter['write'] = (choices, extra = {}) => {
    const chunk: ChatCompletionChunk = { ...base, choices, ...(chat.hasStreamUsage && { usage: null }), ...extra };
    return sseData(chunk);
  };
  return {
    write,
    /** Announces every choice, the seed, and the prompt's ids. */
    first: () =>
      write(
        Array.from({ length: request.n }, (_, index) => ({
          index,
          delta: { role: 'assistant' as const, content: '' },
          logprobs: null,
          finish_reason: null,
        })),
        { art: { seed }, ...(chat.hasTokenIds && { prompt_token_ids: promptIds }) },
      ),
    /** '' where the tokens complete no text and nothing else about them was asked for. */
    delta: ({ index, sampled, parts }) => {
      const [first, ...others] = wireDeltas(parts);
      if (first === undefined && request.topLogprobs === null && !chat.hasTokenIds) return '';
      const head = write([
        {
          index,
          delta: first ?? { content: '' },
          logprobs: request.topLogprobs === null ? null : tokenTexts.createLogprobs(sampled),
          finish_reason: null,
          ...(chat.hasTokenIds && { token_ids: sampled.tokenIds }),
        },
      ]);
      if (others.length === 0) return head;
      const bare = { index, logprobs: null, finish_reason: null, ...(chat.hasTokenIds && { token_ids: [] }) };
      return head + others.map((delta) => write([{ ...bare, delta }])).join('');
    },
    finish: ({ index, finishReason, policyStep, tokenIds }) =>
      write([
        {
          index,
          delta: {},
          logprobs: null,
          finish_reason: finishReason,
          art: { completion_id: request.id, policy_step: policyStep, completion_tokens: tokenIds.length },
        },
      ]),
  };
}

/** A chunk each: some clients read one call of a delta alone. */
function wireDeltas(parts: readonly ReplyDelta[]): readonly WireDelta[] {
  return parts.map((part) => {
    if (part.type === 'text') return { content: part.text };
    if (part.type === 'reasoning') return { reasoning_content: part.text };
    const { index, id, name, argumentsDelta } = part;
    return {
      tool_calls: [
        id === undefined || name === undefined
          ? { index, function: { arguments: argumentsDelta } }
          : { index, id, type: 'function', function: { name, arguments: argumentsDelta } },
      ],
    };
  });
}
