/** Collects what one choice sampled, as tokens and as a message. Layer 5. */
import type { ToolCall } from '../core/chat.ts';
import type { SampleEvent } from '../engines/engine.ts';
import type { Turn } from './generation-turn.ts';
import type { CompletionRecord } from './served-model.ts';
import { ReplyText, type SampledTokens } from './token-texts.ts';

/** What text adds to a message. */
export type ReplyDelta =
  | { readonly type: 'text'; readonly text: string }
  | { readonly type: 'reasoning'; readonly text: string }
  /** The first delta of a call has its id and name. */
  | {
      readonly type: 'toolCall';
      readonly index: number;
      readonly id?: string;
      readonly name?: string;
      readonly argumentsDelta: string;
    };

/** What the policy said, as clients get it. */
export interface ReplyMessage {
  readonly content: string;
  readonly reasoning: string | null;
  readonly toolCalls: readonly ToolCall[];
}

export interface FinishedChoice extends Required<SampledTokens> {
  readonly index: number;
  readonly finishReason: 'stop' | 'length' | 'tool_calls';
  /** The stop string that ended it; it is not part of the message. */
  readonly stopString: string | null;
  readonly policyStep: number;
  /** Prompt tokens found in the cache. */
  readonly cachedTokens: number;
  readonly message: ReplyMessage;
}

/** Logprobs of the prompt's tokens, null for the first. */
export type PromptLogprobs = Omit<Extract<SampleEvent, { type: 'prompt' }>, 'type'>;

export type EngineFinish = Extract<SampleEvent, { type: 'finish' }>;

export class SampledChoice implements SampledTokens {
  readonly index: number;
  readonly tokenIds: number[] = [];
  readonly logprobs: number[] = [];
  readonly topLogprobs: NonNullable<SampledTokens['topLogprobs']>[number][] = [];
  readonly #turn: Turn;
  readonly #replyText: ReplyText;
  #content = '';

  constructor(turn: Turn, index: number) {
    this.index = index;
    this.#turn = turn;
    this.#replyText = new ReplyText({
      tokenizer: turn.model.tokenizer,
      stopStrings: turn.request.sampling.stopStrings,
      endOfTurnIds: turn.endIds,
    });
  }

  /** Adds tokens; returns what they add to the message. */
  push(tokens: SampledTokens): readonly ReplyDelta[] {
    for (const id of tokens.tokenIds) this.tokenIds.push(id);
    for (const logprob of tokens.logprobs) this.logprobs.push(logprob);
    for (const alternatives of tokens.topLogprobs ?? []) this.topLogprobs.push(alternatives);
    return this.#add(this.#replyText.push(tokens.tokenIds));
  }

  /** What was held back until the end. */
  flush(): readonly ReplyDelta[] {
    return this.#add(this.#replyText.flush());
  }

  /** Call after `flush`. Makes the choice known to training and to the next turn of its conversation. */
  finish(event: EngineFinish): FinishedChoice {
    const { model, state, prompt, request } = this.#turn;
    const record: CompletionRecord = {
      completionId: request.id,
      choiceIndex: this.index,
      policyStep: event.policyStep,
      promptIds: prompt.ids,
      tokenIds: this.tokenIds,
      logprobs: this.logprobs,
      temperature: request.sampling.temperature,
      finishReason: event.reason,
    };
    model.completions.put(record);
    if (request.prompt.type === 'chat')
      state.conversations.record(prompt, { role: 'assistant', content: this.#content }, record);
    return {
      index: this.index,
      finishReason: event.reason,
      stopString: this.#replyText.stopString,
      policyStep: event.policyStep,
      cachedTokens: event.cachedTokens,
      message: { content: this.#content, reasoning: null, toolCalls: [] },
      tokenIds: this.tokenIds,
      logprobs: this.logprobs,
      topLogprobs: this.topLogprobs,
    };
  }

  #add(text: string): readonly ReplyDelta[] {
    if (text === '') return [];
    this.#content += text;
    return [{ type: 'text', text }];
  }
}
