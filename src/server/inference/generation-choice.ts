/** Collects what one choice sampled, as tokens and as a message. Layer 5. */
import type { PlainMessage } from '../../core/chat.ts';
import { EngineError } from '../../core/errors.ts';
import type { SampleEvent } from '../../engines/engine.ts';
import type { Turn } from './generation-turn.ts';
import { type ReplyDelta, type ReplyMessage, ReplyMessageBuilder } from './reply-message.ts';
import type { CompletionRecord, CompletionSource } from './served-model.ts';
import { ReplyText, type SampledTokens } from './token-texts.ts';

export interface FinishedChoice extends Required<SampledTokens> {
  readonly index: number;
  /** `tool_calls`: the policy ended its turn and called a tool. */
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
  readonly #message: ReplyMessageBuilder;

  constructor(turn: Turn, index: number) {
    this.index = index;
    this.#turn = turn;
    const { parsing } = turn;
    this.#replyText = new ReplyText({
      tokenizer: turn.model.tokenizer,
      stopStrings: turn.request.sampling.stopStrings,
      endOfTurnIds: turn.endIds,
      ...(parsing !== null && { keptIds: turn.state.markIds }),
    });
    // Seeds make ids of calls reproducible; in one conversation the prompt grows, which makes them differ.
    this.#message = new ReplyMessageBuilder(parsing, [turn.seed, turn.prompt.ids.length, index]);
  }

  /** Adds tokens; returns what they add to the message. */
  push(tokens: SampledTokens): readonly ReplyDelta[] {
    for (const id of tokens.tokenIds) this.tokenIds.push(id);
    for (const logprob of tokens.logprobs) this.logprobs.push(logprob);
    for (const alternatives of tokens.topLogprobs ?? []) this.topLogprobs.push(alternatives);
    return this.#message.push(this.#replyText.push(tokens.tokenIds));
  }

  /** What was held back until the end. */
  flush(): readonly ReplyDelta[] {
    const parts = this.#message.push(this.#replyText.flush());
    return this.#turn.parsing === null ? parts : [...parts, ...this.#message.finish()];
  }

  /** Call after `flush`. Makes the choice known to training and to the next turn of its conversation. */
  finish(event: EngineFinish): FinishedChoice {
    const { model, state, prompt, request } = this.#turn;
    requireFresh(this.#turn, event.policyStep);
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
    const message = this.#message.message();
    const reply = toPlainMessage(message);
    if (request.isRecorded !== false) model.completions.put(record, sourceOf(this.#turn, this.tokenIds, reply));
    state.malformedToolCalls += this.#message.malformedToolCalls;
    if (request.prompt.type === 'chat') state.conversations.record(prompt, reply, record);
    return {
      index: this.index,
      finishReason: event.reason === 'stop' && message.toolCalls.length > 0 ? 'tool_calls' : event.reason,
      stopString: this.#replyText.stopString,
      policyStep: event.policyStep,
      cachedTokens: event.cachedTokens,
      message,
      tokenIds: this.tokenIds,
      logprobs: this.logprobs,
      topLogprobs: this.topLogprobs,
    };
  }
}

/** Training on turns of an older policy than the served one would go on unnoticed. A rollback meanwhile makes an older one the newest. */
function requireFresh({ model, policyStep, newestStep }: Turn, sampledStep: number): void {
  const expected = Math.min(newestStep, model.step());
  if (policyStep !== null || sampledStep >= expected) return;
  throw new EngineError(
    `engine: must sample ${model.name} from its newest step, ${expected}, when no step is named; got step ${sampledStep}`,
  );
}

function toPlainMessage({ content, reasoning, toolCalls }: ReplyMessage): PlainMessage {
  return {
    role: 'assistant',
    content,
    ...(reasoning !== null && { reasoning }),
    ...(toolCalls.length > 0 && { toolCalls }),
  };
}

/** The text side of a turn, and of its rollout, if it belongs to one. */
function sourceOf(
  { model, request, prompt, seed, startedAt }: Turn,
  sampled: readonly number[],
  reply: PlainMessage,
): CompletionSource {
  const { tokenizer } = model;
  const readPrompt = (): string => (prompt.text === '' ? tokenizer.decode(prompt.ids) : prompt.text);
  const readText = (): string => readPrompt() + tokenizer.decode(sampled);
  const { rolloutId } = request;
  if (rolloutId === null) return { readText, call: null };
  const isChat = request.prompt.type === 'chat';
  const messages = isChat ? request.prompt.messages : [{ role: 'user', content: readPrompt() } as const];
  const tools = isChat && prompt.origin !== 'continued' ? request.prompt.tools : [];
  const call = { rolloutId, startedAt, sampledAt: Date.now(), seed, promptKey: prompt.key, messages, tools, reply };
  return { readText, call };
}
