/**
 * The one core of all inference routes: a `GenerationRequest` to events, or to the whole answer. Layer 5.
 * A route is an adapter: its protocol's request to a `GenerationRequest`, what comes from here to its protocol's answer.
 */
import { setMaxListeners } from 'node:events';
import { AbortedError, EngineError } from '../../core/errors.ts';
import type { GenerationRequest, GenerationUsage } from '../../core/generation.ts';
import { mergeEvents } from '../http/merge-events.ts';
import { type EngineFinish, type FinishedChoice, type PromptLogprobs, SampledChoice } from './generation-choice.ts';
import { createTurn, endTurn, explainFailure, sampleChoice, type Turn } from './generation-turn.ts';
import type { ModelLookup } from './model-lookup.ts';
import type { ReplyDelta } from './reply-message.ts';
import type { SampledTokens, TokenTexts } from './token-texts.ts';

export type { FinishedChoice, PromptLogprobs } from './generation-choice.ts';
export type { ReplyDelta, ReplyMessage } from './reply-message.ts';

/** What is known of a request before its first token. */
export interface GenerationStart {
  readonly request: GenerationRequest;
  /** Seconds since 1970. */
  readonly created: number;
  readonly promptIds: readonly number[];
  /** The request's own, or the one that was drawn for it. */
  readonly seed: number;
  /** The step that the request named; null = the newest, which each choice tells at its end. */
  readonly policyStep: number | null;
  /** The conversation continues a sampled turn, but its text had to be encoded again: not token-exact. */
  readonly isRerendered: boolean;
  readonly tokenTexts: TokenTexts;
}

/** In this order, but for choices, whose deltas and ends mix. Every choice has one `finish`, preceded by all of its deltas. */
export type GenerationEvent =
  | { readonly type: 'started'; readonly start: GenerationStart }
  | { readonly type: 'prompt'; readonly prompt: PromptLogprobs }
  | {
      readonly type: 'delta';
      readonly index: number;
      /** None in a delta of what was held back until the end. */
      readonly sampled: SampledTokens;
      /** What they add to the message; may be nothing yet. */
      readonly parts: readonly ReplyDelta[];
    }
  | { readonly type: 'finish'; readonly choice: FinishedChoice }
  | { readonly type: 'usage'; readonly usage: GenerationUsage };

export interface Generation {
  readonly start: GenerationStart;
  /** Null if not asked for. */
  readonly prompt: PromptLogprobs | null;
  readonly choices: readonly FinishedChoice[];
  readonly usage: GenerationUsage;
}

/**
 * Samples all choices and answers when the last one has ended. Throws ApiError for a request that cannot be served, and what the
 * engine throws; then nothing is recorded.
 */
export async function collectGeneration(
  lookup: ModelLookup,
  request: GenerationRequest,
  signal: AbortSignal,
): Promise<Generation> {
  const watch = lookup.watchGeneration?.(request);
  try {
    const generation = await collectTurn(await createTurn(lookup, request), signal);
    watch?.ended(generation.usage, generation.choices);
    return generation;
  } catch (error) {
    watch?.failed(error);
    throw error;
  }
}

async function collectTurn(turn: Turn, signal: AbortSignal): Promise<Generation> {
  const { request } = turn;
  const start = startOf(turn);
  // A signal costs as much as parsing a request; the caller's own is enough where one choice cannot outlive another.
  const aborter = request.n > 1 ? linkAborter(signal) : null;
  try {
    const indices = Array.from({ length: request.n }, (_, index) => index);
    const sampled = await Promise.all(indices.map((index) => collectChoice(turn, index, aborter?.signal ?? signal)));
    const choices = sampled.map(([choice, event]) => choice.finish(event));
    return { start, prompt: sampled[0]?.[2] ?? null, choices, usage: usageOf(turn, choices) };
  } catch (error) {
    aborter?.abort();
    throw await explainFailure(turn, error);
  } finally {
    endTurn(turn);
  }
}

async function collectChoice(
  turn: Turn,
  index: number,
  signal: AbortSignal,
): Promise<readonly [SampledChoice, EngineFinish, PromptLogprobs | null]> {
  const choice = new SampledChoice(turn, index);
  let prompt: PromptLogprobs | null = null;
  for await (const event of sampleChoice(turn, index, false, signal)) {
    if (event.type === 'tokens') choice.push(event);
    else if (event.type === 'prompt') prompt = event;
    else {
      choice.flush();
      return [choice, event, prompt];
    }
  }
  throw endedEarly();
}

/**
 * Samples all choices and tells tokens as they come. `started` comes with the engine's first event, so that what is thrown before
 * can still become a status. To end it early, abort `signal`: a generator that waits for the engine hears nothing else.
 */
export async function* generate(
  lookup: ModelLookup,
  request: GenerationRequest,
  signal: AbortSignal,
): AsyncGenerator<GenerationEvent, void> {
  const watch = lookup.watchGeneration?.(request);
  const fail = (error: unknown): unknown => {
    watch?.failed(error);
    return error;
  };
  const turn = await createTurn(lookup, request).catch((error: unknown) => Promise.reject(fail(error)));
  const start = startOf(turn);
  const aborter = request.n > 1 ? linkAborter(signal) : null;
  const choices = Array.from({ length: request.n }, (_, index) => new SampledChoice(turn, index));
  const finished: FinishedChoice[] = [];
  let isStarted = false;
  let isOver = false;
  try {
    const sources = choices.map(({ index }) => sampleChoice(turn, index, true, aborter?.signal ?? signal));
    for await (const [index, event] of mergeEvents(sources)) {
      const choice = choices[index] as SampledChoice;
      if (!isStarted) {
        watch?.started();
        yield { type: 'started', start };
      }
      isStarted = true;
      if (event.type === 'prompt') yield { type: 'prompt', prompt: event };
      else if (event.type === 'tokens') yield { type: 'delta', index, sampled: event, parts: choice.push(event) };
      else {
        const parts = choice.flush();
        if (parts.length > 0) yield { type: 'delta', index, sampled: nothing, parts };
        const finishedChoice = choice.finish(event);
        finished[index] = finishedChoice;
        yield { type: 'finish', choice: finishedChoice };
      }
    }
    if (choices.some((_, index) => finished[index] === undefined)) throw endedEarly();
    const usage = usageOf(turn, finished);
    isOver = true;
    watch?.ended(usage, finished);
    yield { type: 'usage', usage };
  } catch (error) {
    isOver = true;
    throw fail(isStarted ? error : await explainFailure(turn, error));
  } finally {
    if (!isOver) watch?.failed(new AbortedError('generation: was given up by its reader'));
    aborter?.abort();
    endTurn(turn);
  }
}

const nothing: SampledTokens = { tokenIds: [], logprobs: [] };

/** Aborts with `signal`, and by itself. */
export function linkAborter(signal: AbortSignal): AbortController {
  const aborter = new AbortController();
  setMaxListeners(0, aborter.signal); // one listener a choice, and n may be 128
  if (signal.aborted) aborter.abort(signal.reason);
  signal.addEventListener('abort', () => aborter.abort(signal.reason), { once: true });
  return aborter;
}

function startOf({ request, prompt, seed, policyStep, state }: Turn): GenerationStart {
  return {
    request,
    created: Math.floor(Date.now() / 1000),
    promptIds: prompt.ids,
    seed,
    policyStep,
    isRerendered: prompt.origin === 'rerendered',
    tokenTexts: state.tokenTexts,
  };
}

function usageOf(turn: Turn, choices: readonly FinishedChoice[]): GenerationUsage {
  return {
    promptTokens: turn.prompt.ids.length,
    completionTokens: choices.reduce((sum, choice) => sum + choice.tokenIds.length, 0),
    cachedTokens: choices[0]?.cachedTokens ?? 0,
  };
}

/** What an engine did wrong that closed a sample without its last event. */
function endedEarly(): EngineError {
  return new EngineError('engine: a sequence must end with a finish event, got none');
}
