/** Token ids of a reply to what OpenAI's response holds: content text and logprobs. Layer 5. */
import type { TokenAlternative } from '../../engines/engine.ts';
import type { StreamDecoder, Tokenizer } from '../../formats/tokenizer.ts';
import type { WireLogprobs, WireTokenLogprob } from '../../wire/openai-response.ts';

/** OpenAI's stand-in for "impossible": JSON has no −∞. */
const lowestLogprob = -9999;

export function finiteLogprob(logprob: number): number {
  return Number.isFinite(logprob) ? logprob : lowestLogprob;
}

export interface SampledTokens {
  readonly tokenIds: readonly number[];
  readonly logprobs: readonly number[];
  readonly topLogprobs?: readonly (readonly TokenAlternative[])[];
}

export interface TokenTexts {
  createLogprobs(sampled: SampledTokens): WireLogprobs;
  /** The text of one token alone. */
  textOf(id: number): string;
  /** The text of ids in a row, special tokens too. */
  decode(ids: readonly number[]): string;
}

/** Remembers text and bytes of each token, which are asked for at every turn. */
export function createTokenTexts(tokenizer: Tokenizer): TokenTexts {
  const cache: (Pick<WireTokenLogprob, 'token' | 'bytes'> | undefined)[] = [];
  const entryOf = (id: number, logprob: number): WireTokenLogprob => {
    cache[id] ??= { token: tokenizer.tokenText(id), bytes: Array.from(tokenizer.tokenBytes(id)) };
    const { token, bytes } = cache[id];
    return { token, logprob: finiteLogprob(logprob), bytes };
  };
  return {
    textOf: (id) => entryOf(id, 0).token,
    decode: (ids) => tokenizer.decode(ids),
    createLogprobs: (sampled) => ({
      content: sampled.tokenIds.map((id, position) => ({
        ...entryOf(id, sampled.logprobs[position] as number),
        top_logprobs: (sampled.topLogprobs?.[position] ?? []).map(({ tokenId, logprob }) => entryOf(tokenId, logprob)),
      })),
      refusal: null,
    }),
  };
}

export interface ReplyTextOptions {
  readonly tokenizer: Tokenizer;
  readonly stopStrings: readonly string[];
  /** Never part of the text, special or not. */
  readonly endOfTurnIds: readonly number[];
  /** Special tokens whose text is kept, since a parser reads it (`markIds`); default none. */
  readonly keptIds?: ReadonlySet<number>;
}

/**
 * Text of a reply, token by token: without special tokens, cut before the first stop string.
 * What may be the beginning of a stop string or of a character is held back until it is decided.
 */
export class ReplyText {
  readonly #options: ReplyTextOptions;
  readonly #decoder: StreamDecoder;
  #held = '';
  #stop: string | null = null;

  constructor(options: ReplyTextOptions) {
    this.#options = options;
    this.#decoder = options.tokenizer.createStreamDecoder();
  }

  /** The stop string that the text was cut at. */
  get stopString(): string | null {
    return this.#stop;
  }

  /** The text that these ids add. */
  push(ids: readonly number[]): string {
    let text = this.#held;
    for (const id of ids) {
      if (!this.#isSkipped(id)) text += this.#decoder.push(id);
    }
    return this.#release(text, false);
  }

  /** What is still held back, at the end of the reply. */
  flush(): string {
    return this.#release(this.#held + this.#decoder.flush(), true);
  }

  #isSkipped(id: number): boolean {
    const { tokenizer, endOfTurnIds, keptIds } = this.#options;
    return endOfTurnIds.includes(id) || (tokenizer.specialIds.has(id) && !keptIds?.has(id));
  }

  #release(text: string, isEnd: boolean): string {
    const { stopStrings } = this.#options;
    this.#held = '';
    if (this.#stop !== null || text === '' || stopStrings.length === 0) return this.#stop !== null ? '' : text;
    const index = firstIndexOf(text, stopStrings);
    if (index >= 0) {
      this.#stop = stopStrings.find((stop) => text.startsWith(stop, index)) ?? null;
      return text.slice(0, index);
    }
    if (isEnd) return text;
    const open = text.length - openLength(text, stopStrings);
    this.#held = text.slice(open);
    return text.slice(0, open);
  }
}

function firstIndexOf(text: string, stopStrings: readonly string[]): number {
  const found = stopStrings.map((stop) => text.indexOf(stop)).filter((index) => index >= 0);
  return found.length === 0 ? -1 : Math.min(...found);
}

/** Length of the longest end of `text` that begins a stop string. */
function openLength(text: string, stopStrings: readonly string[]): number {
  const longest = Math.min(text.length, Math.max(...stopStrings.map((stop) => stop.length)) - 1);
  for (let length = longest; length > 0; length--) {
    const end = text.slice(text.length - length);
    if (stopStrings.some((stop) => stop.startsWith(end))) return length;
  }
  return 0;
}
