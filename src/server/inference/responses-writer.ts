/** One response on its way out: from the core's events to the response object and its stream. Layer 5. */

import type { PlainMessage } from '../../core/chat.ts';
import type { GenerationRequest, GenerationUsage } from '../../core/generation.ts';
import { toHttpError } from '../../wire/errors.ts';
import type { KnownMessage } from '../../wire/known-message.ts';
import type { ResponsesRequest } from '../../wire/responses.ts';
import { echoRequest, type ResponseEvent, type ResponseObject, responseUsage } from '../../wire/responses-output.ts';
import { sseEvent } from '../../wire/sse.ts';
import type {
  FinishedChoice,
  Generation,
  GenerationEvent,
  GenerationStart,
  ReplyDelta,
  ReplyMessage,
} from './generation.ts';
import { OutputItems } from './responses-items.ts';
import type { StoredResponse } from './responses-store.ts';
import type { TokenTexts } from './token-texts.ts';

export interface ResponsesTurn {
  readonly request: ResponsesRequest;
  readonly generation: GenerationRequest;
  /** The conversation so far, without instructions. */
  readonly history: readonly KnownMessage[];
}

export class ResponseWriter {
  readonly #turn: ResponsesTurn;
  #start: GenerationStart | null = null;
  #items: OutputItems | null = null;
  #choice: FinishedChoice | null = null;
  #usage: GenerationUsage | null = null;
  #failure: string | null = null;

  constructor(turn: ResponsesTurn) {
    this.#turn = turn;
  }

  static ofWhole(turn: ResponsesTurn, { start, choices, usage }: Generation): ResponseWriter {
    const writer = new ResponseWriter(turn);
    const choice = choices[0] as FinishedChoice;
    writer.write({ type: 'started', start });
    writer.write({ type: 'delta', index: 0, sampled: choice, parts: partsOf(choice.message) });
    writer.write({ type: 'finish', choice });
    writer.write({ type: 'usage', usage });
    return writer;
  }

  get start(): GenerationStart {
    if (this.#start === null) throw new Error('response: must have started');
    return this.#start;
  }

  get policyStep(): number | null {
    return this.#choice?.policyStep ?? null;
  }

  /** Takes an event of the core; returns what it means to the client, but for the first events and the last one. */
  write(event: GenerationEvent): readonly ResponseEvent[] {
    switch (event.type) {
      case 'started':
        this.#start = event.start;
        this.#items = this.#createItems(event.start);
        return [];
      case 'prompt':
        return [];
      case 'delta':
        return this.#items?.add(event.parts, event.sampled) ?? [];
      case 'finish':
        this.#choice = event.choice;
        return this.#items?.close(event.choice.finishReason === 'length') ?? [];
      case 'usage':
        this.#usage = event.usage;
        return [];
    }
  }

  #createItems({ tokenTexts }: GenerationStart): OutputItems {
    const { request, generation } = this.#turn;
    return new OutputItems({
      responseId: generation.id,
      tokenTexts: request.topLogprobs === null ? null : tokenTexts,
      hasSummary: request.hasSummary,
      hasEncryptedReasoning: request.hasEncryptedReasoning,
    });
  }

  /** An error before the first event is thrown; a later one becomes `response.failed`. */
  async *stream(
    events: AsyncIterable<GenerationEvent>,
    onStart: (start: GenerationStart) => void,
    onEnd: () => void,
  ): AsyncGenerator<string, void> {
    let sequenceNumber = 0;
    const encode = (list: readonly ResponseEvent[]): string =>
      list.map((event) => sseEvent(event.type, { ...event, sequence_number: sequenceNumber++ })).join('');
    try {
      for await (const event of events) {
        const written = this.write(event);
        if (event.type === 'started') {
          onStart(event.start);
          const response = this.response();
          yield encode([
            { type: 'response.created', response },
            { type: 'response.in_progress', response },
          ]);
        }
        if (written.length > 0) yield encode(written);
      }
      onEnd();
    } catch (error) {
      if (this.#start === null) throw error;
      this.#failure = toHttpError(error).body.error.message;
    }
    const response = this.response();
    yield encode([{ type: `response.${response.status}`, response }]);
  }

  /** The response as it stands. */
  response(): ResponseObject {
    const { request, generation } = this.#turn;
    const { start } = this;
    const choice = this.#choice;
    const policyStep = choice?.policyStep ?? start.policyStep;
    const status = this.#status();
    return {
      id: generation.id,
      object: 'response',
      created_at: start.created,
      completed_at: status === 'completed' ? Math.floor(Date.now() / 1000) : null,
      status,
      background: false,
      error: this.#failure === null ? null : { code: 'server_error', message: this.#failure },
      incomplete_details: status === 'incomplete' ? { reason: 'max_output_tokens' } : null,
      model: generation.model,
      output: this.#items?.items ?? [],
      usage: this.#usage === null ? null : responseUsage(this.#usage, this.#reasoningTokens()),
      ...echoRequest(request),
      art: {
        seed: start.seed,
        completion_id: generation.id,
        ...(policyStep !== null && { policy_step: policyStep }),
      },
      ...(request.hasTokenIds && { prompt_token_ids: start.promptIds }),
      ...(request.hasTokenIds && choice !== null && { token_ids: choice.tokenIds }),
    };
  }

  #status(): ResponseObject['status'] {
    if (this.#failure !== null) return 'failed';
    if (this.#choice === null) return 'in_progress';
    return this.#choice.finishReason === 'length' ? 'incomplete' : 'completed';
  }

  #reasoningTokens(): number {
    const { tokenTexts } = this.start;
    const reasoning = this.#choice?.message.reasoning ?? '';
    return this.#choice === null || reasoning === '' ? 0 : countTokens(tokenTexts, this.#choice, reasoning.length);
  }

  /** What later requests need of this response. Call after the end. */
  stored(): StoredResponse {
    const message = assistantMessage((this.#choice as FinishedChoice).message);
    const completionId = this.#turn.generation.id;
    return { response: this.response(), messages: [...this.#turn.history, { message, completionId }] };
  }
}

function partsOf({ content, reasoning, toolCalls }: ReplyMessage): readonly ReplyDelta[] {
  return [
    ...(reasoning === null || reasoning === '' ? [] : [{ type: 'reasoning' as const, text: reasoning }]),
    ...(content === '' ? [] : [{ type: 'text' as const, text: content }]),
    ...toolCalls.map(({ id, name, arguments: text }, index) => ({
      type: 'toolCall' as const,
      index,
      id,
      name,
      argumentsDelta: text,
    })),
  ];
}

function assistantMessage({ content, reasoning, toolCalls }: ReplyMessage): PlainMessage {
  return {
    role: 'assistant',
    content,
    ...(reasoning !== null && reasoning !== '' && { reasoning }),
    ...(toolCalls.length > 0 && { toolCalls }),
  };
}

/** Tokens whose texts together are at least so long: those of the reasoning, which comes first, give or take its markers. */
function countTokens(tokenTexts: TokenTexts, choice: FinishedChoice, length: number): number {
  let characters = 0;
  const { content } = tokenTexts.createLogprobs({ tokenIds: choice.tokenIds, logprobs: choice.logprobs });
  const index = content.findIndex(({ token }) => {
    characters += token.length;
    return characters >= length;
  });
  return index < 0 ? content.length : index + 1;
}
