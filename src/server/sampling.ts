/** From a checked chat request to the engine, and from sampled tokens to completion records. Layer 5. */
import { EngineError } from '../core/errors.ts';
import { deriveSeed } from '../core/rng.ts';
import type { SampleEvent, SampleRequest } from '../engines/engine.ts';
import { refuse } from '../wire/errors.ts';
import type { ChatRequest, WireUsage } from '../wire/openai.ts';
import type { Prompt } from './conversations.ts';
import type { ModelChoice } from './model-lookup.ts';
import type { CompletionRecord } from './served-model.ts';
import { ReplyText, type SampledTokens } from './token-texts.ts';

/** One request on its way through the server. */
export interface Turn extends ModelChoice {
  readonly id: string;
  readonly created: number;
  readonly request: ChatRequest;
  readonly prompt: Prompt;
  readonly seed: number;
  readonly maxTokens: number;
  readonly endOfTurnIds: readonly number[];
  readonly signal: AbortSignal;
}

export type FinishEvent = Extract<SampleEvent, { type: 'finish' }>;

/** Tokens that are left for the reply. Throws ApiError 400 `context_length_exceeded` if there are none. */
export function fitMaxTokens(request: ChatRequest, promptTokens: number, maxPositions: number): number {
  const left = maxPositions - promptTokens;
  if (left < 1) {
    const message = `messages: prompt and reply must fit in the context of ${maxPositions} tokens, got ${promptTokens} prompt tokens`;
    throw refuse(400, 'context_length_exceeded', message, 'messages');
  }
  return Math.min(request.maxTokens ?? left, left);
}

/** Events of choice `index`. Every choice has a seed of its own, whatever `n` is. */
export function sampleChoice(turn: Turn, index: number, isStreaming: boolean): AsyncIterable<SampleEvent> {
  const { request, prompt, policyStep, signal } = turn;
  const sampleRequest: SampleRequest = {
    promptIds: prompt.ids,
    policyStep,
    isStreaming,
    signal,
    sampling: {
      maxTokens: turn.maxTokens,
      temperature: request.temperature,
      topP: request.topP,
      topK: request.topK,
      seed: deriveSeed(turn.seed, 'choice', index),
      stopTokenIds: turn.endOfTurnIds,
      stopStrings: request.stopStrings,
      topLogprobs: request.topLogprobs ?? 0,
    },
  };
  return turn.model.engine.doSample(sampleRequest);
}

/** Collects what one choice sampled. */
export class SampledChoice implements SampledTokens {
  readonly index: number;
  readonly tokenIds: number[] = [];
  readonly logprobs: number[] = [];
  readonly topLogprobs: NonNullable<SampledTokens['topLogprobs']>[number][] = [];
  text = '';
  readonly #turn: Turn;
  readonly #replyText: ReplyText;

  constructor(turn: Turn, index: number) {
    this.index = index;
    this.#turn = turn;
    const { tokenizer } = turn.model;
    this.#replyText = new ReplyText({
      tokenizer,
      stopStrings: turn.request.stopStrings,
      endOfTurnIds: turn.endOfTurnIds,
    });
  }

  /** Adds tokens; returns the text that they complete. */
  push(tokens: SampledTokens): string {
    for (const id of tokens.tokenIds) this.tokenIds.push(id);
    for (const logprob of tokens.logprobs) this.logprobs.push(logprob);
    for (const alternatives of tokens.topLogprobs ?? []) this.topLogprobs.push(alternatives);
    return this.#addText(this.#replyText.push(tokens.tokenIds));
  }

  /** The text that was held back until the end. */
  finish(): string {
    return this.#addText(this.#replyText.flush());
  }

  /** Makes the choice known to training and to the next turn of its conversation. */
  remember(event: FinishEvent): void {
    const { model, state, prompt, id, request } = this.#turn;
    const record: CompletionRecord = {
      completionId: id,
      choiceIndex: this.index,
      policyStep: event.policyStep,
      promptIds: prompt.ids,
      tokenIds: this.tokenIds,
      logprobs: this.logprobs,
      temperature: request.temperature,
      finishReason: event.reason,
    };
    model.completions.put(record);
    state.conversations.record(prompt, this.text, record);
  }

  #addText(text: string): string {
    this.text += text;
    return text;
  }
}

/** Samples a whole choice. Throws what the engine throws. */
export async function collectChoice(turn: Turn, index: number): Promise<{ choice: SampledChoice; event: FinishEvent }> {
  const choice = new SampledChoice(turn, index);
  for await (const event of sampleChoice(turn, index, false)) {
    if (event.type === 'tokens') choice.push(event);
    else if (event.type === 'finish') {
      choice.finish();
      return { choice, event };
    }
  }
  throw endedEarly();
}

/** What an engine did wrong that closed a sample without its last event. */
export function endedEarly(): EngineError {
  return new EngineError('engine: a sequence must end with a finish event, got none');
}

/** All choices share the prompt, which counts once; cached tokens are those of the first choice. */
export function createUsage(turn: Turn, choices: readonly SampledChoice[], first: FinishEvent | undefined): WireUsage {
  const promptTokens = turn.prompt.ids.length;
  const completionTokens = choices.reduce((sum, choice) => sum + choice.tokenIds.length, 0);
  return {
    prompt_tokens: promptTokens,
    completion_tokens: completionTokens,
    total_tokens: promptTokens + completionTokens,
    prompt_tokens_details: { cached_tokens: first?.cachedTokens ?? 0 },
  };
}
