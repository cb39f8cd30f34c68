/** The chunks of a streamed chat completion. Layer 5. Source: OpenAI's chunk object; vLLM for token ids per chunk. */
import type { SampleEvent } from '../engines/engine.ts';
import { toHttpError } from '../wire/errors.ts';
import type { ChatCompletionChunk, WireChunkChoice } from '../wire/openai.ts';
import { sseData, sseDone } from '../wire/sse.ts';
import { createUsage, endedEarly, type FinishEvent, SampledChoice, sampleChoice, type Turn } from './sampling.ts';
import type { SampledTokens } from './token-texts.ts';

/**
 * The whole event stream as text, one item a write. An error before the first item is thrown; a later one becomes a last
 * event with OpenAI's error body, without `[DONE]`, after `stopSampling` has ended the other choices.
 */
export async function* streamChunks(turn: Turn, stopSampling: () => void): AsyncGenerator<string, void> {
  const choices = Array.from({ length: turn.request.n }, (_, index) => new SampledChoice(turn, index));
  const finished = new Map<number, FinishEvent>();
  const events = mergeEvents(choices.map((choice) => sampleChoice(turn, choice.index, true)));
  let isStarted = false;
  try {
    for await (const [index, event] of events) {
      const choice = choices[index] as SampledChoice;
      let text = isStarted ? '' : sseData(firstChunk(turn));
      isStarted = true;
      if (event.type === 'tokens') {
        text += tokensChunk(turn, choice, event);
      } else if (event.type === 'finish') {
        finished.set(index, event);
        text += finishChunk(turn, choice, event);
      }
      if (text !== '') yield text;
    }
    if (finished.size < choices.length) throw endedEarly();
    yield usageChunk(turn, choices, finished.get(0)) + sseDone;
  } catch (error) {
    if (!isStarted) throw error;
    stopSampling();
    yield sseData(toHttpError(error).body);
  }
}

function chunk(turn: Turn, choices: readonly WireChunkChoice[]): ChatCompletionChunk {
  return {
    id: turn.id,
    object: 'chat.completion.chunk',
    created: turn.created,
    model: turn.request.model,
    choices,
    ...(turn.request.hasStreamUsage && { usage: null }),
  };
}

/** Announces every choice, the seed, and the prompt's ids. */
function firstChunk(turn: Turn): ChatCompletionChunk {
  const announcements = Array.from({ length: turn.request.n }, (_, index) => ({
    index,
    delta: { role: 'assistant' as const, content: '' },
    logprobs: null,
    finish_reason: null,
  }));
  return {
    ...chunk(turn, announcements),
    art: { seed: turn.seed },
    ...(turn.request.hasTokenIds && { prompt_token_ids: turn.prompt.ids }),
  };
}

/** '' where the tokens complete no text and nothing else about them was asked for. */
function tokensChunk(turn: Turn, choice: SampledChoice, tokens: SampledTokens): string {
  const content = choice.push(tokens);
  const { topLogprobs, hasTokenIds } = turn.request;
  if (content === '' && topLogprobs === null && !hasTokenIds) return '';
  const wire: WireChunkChoice = {
    index: choice.index,
    delta: { content },
    logprobs: topLogprobs === null ? null : turn.state.tokenTexts.createLogprobs(tokens),
    finish_reason: null,
    ...(hasTokenIds && { token_ids: tokens.tokenIds }),
  };
  return sseData(chunk(turn, [wire]));
}

function finishChunk(turn: Turn, choice: SampledChoice, event: FinishEvent): string {
  const content = choice.finish();
  choice.remember(event);
  const wire: WireChunkChoice = {
    index: choice.index,
    delta: content === '' ? {} : { content },
    logprobs: null,
    finish_reason: event.reason,
    art: { completion_id: turn.id, policy_step: event.policyStep },
  };
  return sseData(chunk(turn, [wire]));
}

function usageChunk(turn: Turn, choices: readonly SampledChoice[], first: FinishEvent | undefined): string {
  if (!turn.request.hasStreamUsage) return '';
  return sseData({ ...chunk(turn, []), usage: createUsage(turn, choices, first) });
}

type Indexed = readonly [index: number, event: SampleEvent];

/** Events of all sources as they come, each with the index of its source. The first failure ends it. */
async function* mergeEvents(sources: readonly AsyncIterable<SampleEvent>[]): AsyncGenerator<Indexed, void> {
  const iterators = sources.map((source) => source[Symbol.asyncIterator]());
  const pull = async (index: number): Promise<{ index: number; result: IteratorResult<SampleEvent> }> => ({
    index,
    result: await (iterators[index] as AsyncIterator<SampleEvent>).next(),
  });
  const pending = new Map(iterators.map((_, index) => [index, pull(index)]));
  // A source that fails while another is awaited must not count as an unhandled rejection.
  for (const promise of pending.values()) promise.catch(() => {});
  while (pending.size > 0) {
    const { index, result } = await Promise.race(pending.values());
    if (result.done) {
      pending.delete(index);
      continue;
    }
    yield [index, result.value];
    const next = pull(index);
    next.catch(() => {});
    pending.set(index, next);
  }
}
