/** The choices of one prompt of `/v1/completions`, whole or in chunks. Layer 5. */
import type { TokenAlternative } from '../../engines/engine.ts';
import type {
  CompletionChoice,
  CompletionLogprobs,
  CompletionRequest,
  PromptTokenLogprobs,
} from '../../wire/completions.ts';
import type { FinishedChoice, Generation, GenerationEvent, GenerationStart, PromptLogprobs } from './generation.ts';
import { finiteLogprob, type SampledTokens, type TokenTexts } from './token-texts.ts';

/** `promptIndex`: the choices of all prompts are numbered through. */
export function wholeChoices(
  request: CompletionRequest,
  { start, prompt, choices }: Generation,
  promptIndex: number,
): readonly CompletionChoice[] {
  const writer = new PromptWriter(request, start, promptIndex);
  return choices.map((choice) => {
    const head = writer.head(choice.index, prompt);
    const body = writer.body(choice.index, choice.message.content, choice);
    return {
      ...head,
      ...body,
      ...writer.end(choice),
      text: head.text + body.text,
      logprobs: joinLogprobs(head.logprobs, body.logprobs),
    };
  });
}

function joinLogprobs(a: CompletionLogprobs | null, b: CompletionLogprobs | null): CompletionLogprobs | null {
  if (a === null || b === null) return a ?? b;
  return {
    tokens: [...a.tokens, ...b.tokens],
    token_logprobs: [...a.token_logprobs, ...b.token_logprobs],
    top_logprobs: [...a.top_logprobs, ...b.top_logprobs],
    text_offset: [...a.text_offset, ...b.text_offset],
  };
}

/** Keeps, for each choice, where its next token begins. */
export class PromptWriter {
  readonly #request: CompletionRequest;
  readonly #start: GenerationStart;
  readonly #firstIndex: number;
  readonly #offsets = new Map<number, number>();
  #hasHead = false;

  constructor(request: CompletionRequest, start: GenerationStart, promptIndex: number) {
    this.#request = request;
    this.#start = start;
    this.#firstIndex = promptIndex * request.n;
  }

  /** What an event of the core adds. */
  write(event: GenerationEvent): readonly CompletionChoice[] {
    switch (event.type) {
      case 'started':
        // With logprobs of the prompt, those come first.
        return this.#start.request.promptLogprobs === null ? this.#heads(null) : [];
      case 'prompt':
        return this.#heads(event.prompt);
      case 'delta': {
        const text = event.parts.map((part) => (part.type === 'toolCall' ? '' : part.text)).join('');
        const { topLogprobs, hasTokenIds, isPromptOnly } = this.#request;
        const isNeeded = !isPromptOnly && (text !== '' || topLogprobs !== null || hasTokenIds);
        return isNeeded ? [this.body(event.index, text, event.sampled)] : [];
      }
      case 'finish':
        return [{ ...this.#empty(event.choice.index), ...this.end(event.choice) }];
      case 'usage':
        return [];
    }
  }

  /** Where nothing of the prompt was asked for, there is nothing to say before the first token. */
  #heads(prompt: PromptLogprobs | null): readonly CompletionChoice[] {
    const { hasEcho, hasPromptLogprobs, hasTokenIds, n } = this.#request;
    if (this.#hasHead || !(hasEcho || hasPromptLogprobs || hasTokenIds)) return [];
    this.#hasHead = true;
    return Array.from({ length: n }, (_, index) => this.head(index, prompt));
  }

  /** The prompt as far as it was asked for. */
  head(index: number, prompt: PromptLogprobs | null): CompletionChoice {
    const { hasEcho, hasPromptLogprobs, hasTokenIds, topLogprobs } = this.#request;
    const { promptIds, tokenTexts } = this.#start;
    const logprobs =
      hasEcho && topLogprobs !== null && prompt !== null
        ? this.#logprobs(index, { tokenIds: promptIds, logprobs: prompt.logprobs, top: prompt.topLogprobs })
        : null;
    const text = hasEcho ? this.#promptText() : '';
    this.#offsets.set(index, text.length);
    return {
      ...this.#empty(index),
      text,
      logprobs,
      ...(hasPromptLogprobs && prompt !== null && { prompt_logprobs: promptTokens(tokenTexts, promptIds, prompt) }),
      ...(hasTokenIds && { prompt_token_ids: promptIds }),
    };
  }

  body(index: number, text: string, sampled: SampledTokens): CompletionChoice {
    const { topLogprobs, hasTokenIds, isPromptOnly } = this.#request;
    const { tokenIds, logprobs, topLogprobs: top } = isPromptOnly ? noTokens : sampled;
    return {
      ...this.#empty(index),
      text: isPromptOnly ? '' : text,
      logprobs: topLogprobs === null ? null : this.#logprobs(index, { tokenIds, logprobs, top }),
      ...(hasTokenIds && { token_ids: tokenIds }),
    };
  }

  end(choice: FinishedChoice): Pick<CompletionChoice, 'finish_reason' | 'art'> {
    const { request, seed } = this.#start;
    const origin = {
      completion_id: request.id,
      choice_index: choice.index,
      policy_step: choice.policyStep,
      seed,
    };
    if (this.#request.isPromptOnly) return { finish_reason: 'length' };
    return { finish_reason: choice.finishReason === 'length' ? 'length' : 'stop', art: origin };
  }

  #empty(index: number): CompletionChoice {
    return { index: this.#firstIndex + index, text: '', logprobs: null, finish_reason: null };
  }

  #promptText(): string {
    const { prompt } = this.#start.request;
    return prompt.type === 'text' ? prompt.text : this.#start.tokenTexts.decode(this.#start.promptIds);
  }

  #logprobs(index: number, { tokenIds, logprobs, top }: LogprobTokens): CompletionLogprobs {
    const { tokenTexts } = this.#start;
    const tokens = tokenIds.map((id) => tokenTexts.textOf(id));
    let offset = this.#offsets.get(index) ?? 0;
    const offsets = tokens.map((token) => {
      const begin = offset;
      offset += token.length;
      return begin;
    });
    this.#offsets.set(index, offset);
    return {
      tokens,
      token_logprobs: logprobs.map((logprob) => (logprob === null ? null : finiteLogprob(logprob))),
      top_logprobs: tokens.map((token, position) => {
        const logprob = logprobs[position] ?? null;
        return logprob === null ? null : byText(tokenTexts, token, logprob, top?.[position] ?? []);
      }),
      text_offset: offsets,
    };
  }
}

const noTokens: SampledTokens = { tokenIds: [], logprobs: [] };

interface LogprobTokens {
  readonly tokenIds: readonly number[];
  readonly logprobs: readonly (number | null)[];
  readonly top: readonly (readonly TokenAlternative[] | null)[] | undefined;
}

/** Of two tokens with the same text (parts of characters have one) the likelier is told. */
function byText(
  tokenTexts: TokenTexts,
  token: string,
  logprob: number,
  alternatives: readonly TokenAlternative[],
): Readonly<Record<string, number>> {
  const logprobs = new Map<string, number>();
  for (const alternative of alternatives) {
    const text = tokenTexts.textOf(alternative.tokenId);
    if (!logprobs.has(text)) logprobs.set(text, finiteLogprob(alternative.logprob));
  }
  if (!logprobs.has(token)) logprobs.set(token, finiteLogprob(logprob));
  return Object.fromEntries(logprobs);
}

function promptTokens(
  tokenTexts: TokenTexts,
  promptIds: readonly number[],
  { logprobs, topLogprobs }: PromptLogprobs,
): readonly (PromptTokenLogprobs | null)[] {
  return promptIds.map((id, position) => {
    const logprob = logprobs[position] ?? null;
    if (logprob === null) return null;
    const entryOf = (tokenId: number, value: number, rank: number | null): PromptTokenLogprobs => ({
      [tokenId]: { logprob: finiteLogprob(value), rank, decoded_token: tokenTexts.textOf(tokenId) },
    });
    const alternatives = topLogprobs?.[position] ?? [];
    return Object.assign(
      entryOf(id, logprob, null),
      ...alternatives.map((alternative, index) => entryOf(alternative.tokenId, alternative.logprob, index + 1)),
    );
  });
}
