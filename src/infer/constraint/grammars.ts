/**
 * Constraints compiled for a vocabulary, and what follows each sequence through its own. Layer 3.
 * A compile runs where sampling runs and blocks it, so compiled grammars are kept, the newest `KEPT_GRAMMARS` by content, and after each
 * compile sampling has as long for itself. A grammar that is slow to follow is given up, for all who use it. Memory of WebAssembly is freed by hand: a matcher's at the end of its sequence, a grammar's when it is neither kept nor followed.
 */
import type { TextConstraint } from '../../core/constraint.ts';
import { AbortedError, DataError, EngineError } from '../../core/errors.ts';
import { pause } from '../../core/wait.ts';
import type { Tokenizer } from '../../formats/tokenizer.ts';
import type { TokenMask } from '../row-shaper.ts';
import type { TokenMatcher } from '../token-matcher.ts';
import { NEVER_BYTE } from './ebnf.ts';
import { type CompiledGrammar, GrammarLibrary, type Matcher, tokenBytes } from './grammar-library.ts';
import { type StructuralTag, toStructuralTag } from './structural-tag.ts';

const KEPT_GRAMMARS = 64;
/** A grammar may take this long in all, milliseconds, or this long for each token; a common one takes less than 1 ms for a token. */
const SLOW_MS = 2_000;
const SLOW_MS_PER_TOKEN = 30;

interface Compiled {
  readonly library: GrammarLibrary;
  readonly grammar: CompiledGrammar;
  /** Tokens that the grammar may let through at all. */
  readonly usable: TokenMask;
  /** What following it took, over all sequences. */
  readonly followed: { milliseconds: number; tokens: number };
}

/** A constraint with its users: matchers, and the list of those kept. */
interface Entry {
  readonly compiled: Promise<Compiled>;
  /** Whether those who asked for it still wait. */
  readonly wishes: (() => boolean)[];
  users: number;
}

export class Grammars {
  readonly #tokenizer: Tokenizer;
  readonly #vocabSize: number;
  readonly #kept = new Map<string, Entry>();
  #library: Promise<GrammarLibrary> | null = null;
  /** Ends when the next compile may begin. */
  #turn: Promise<void> = Promise.resolve();
  #ordinary: TokenMask | null = null;

  /** Ids from `vocabSize` on are never allowed. The library is loaded with the first constraint. */
  constructor(tokenizer: Tokenizer, vocabSize: number) {
    this.#tokenizer = tokenizer;
    this.#vocabSize = vocabSize;
  }

  /**
   * What follows one sequence; a constraint that nobody wants any more when its turn comes is not compiled. Throws DataError if the
   * constraint cannot be met, AbortedError if it is not wanted.
   */
  async match(
    constraint: TextConstraint,
    stopTokenIds: readonly number[],
    isWanted: () => boolean = () => true,
  ): Promise<TokenMatcher> {
    const entry = this.#entry(toStructuralTag(constraint));
    entry.users++;
    entry.wishes.push(isWanted);
    try {
      const compiled = await entry.compiled;
      entry.wishes.length = 0;
      checkPace(compiled);
      const stops = stopTokenIds.filter((id) => id < this.#vocabSize);
      const matcher = await compiled.library.createMatcher(compiled.grammar);
      return await SequenceMatcher.start(matcher, compiled, stops, () => this.#release(entry));
    } catch (cause) {
      this.#release(entry);
      throw cause;
    }
  }

  #entry(tag: StructuralTag): Entry {
    const known = this.#kept.get(tag.text);
    const entry = known ?? this.#newEntry(tag);
    this.#kept.delete(tag.text);
    this.#kept.set(tag.text, entry);
    if (known) return entry;
    entry.compiled.catch(() => this.#forget(tag.text, entry));
    const oldest = this.#kept.size > KEPT_GRAMMARS ? this.#kept.entries().next().value : undefined;
    if (oldest) this.#forget(...oldest);
    return entry;
  }

  #newEntry(tag: StructuralTag): Entry {
    const wishes: (() => boolean)[] = [];
    return { compiled: this.#compile(tag, wishes), wishes, users: 1 };
  }

  #forget(text: string, entry: Entry): void {
    if (this.#kept.get(text) !== entry) return;
    this.#kept.delete(text);
    this.#release(entry);
  }

  async #compile({ text, literals }: StructuralTag, wishes: readonly (() => boolean)[]): Promise<Compiled> {
    this.#library ??= GrammarLibrary.load(this.#tokenizer, this.#vocabSize);
    let endTurn = (): void => undefined;
    const turn = this.#turn;
    this.#turn = new Promise((resolve) => {
      endTurn = resolve;
    });
    await turn;
    const startedAt = performance.now();
    try {
      const library = await this.#library;
      if (!wishes.some((isWanted) => isWanted())) throw new AbortedError('constraint: nobody waits for it any more');
      const grammar = await library.compile(text);
      return { library, grammar, usable: this.#usableTokens(literals), followed: { milliseconds: 0, tokens: 0 } };
    } catch (cause) {
      if (cause instanceof AbortedError) throw cause;
      this.#library = null; // The next constraint gets a new instance; sequences under way keep theirs.
      throw new DataError('constraint: must be one that the grammar library compiles, got one that it refuses', {
        cause,
      });
    } finally {
      void pause(performance.now() - startedAt).then(endTurn);
    }
  }

  #release(entry: Entry): void {
    if (--entry.users > 0) return;
    entry.compiled.then(({ grammar }) => grammar.dispose()).catch(() => undefined);
  }

  /** All but special tokens, whose text no reply has, unless the constraint spells them. */
  #usableTokens(literals: readonly string[]): TokenMask {
    this.#ordinary ??= this.#ordinaryTokens();
    const usable = this.#ordinary.slice();
    for (const id of this.#tokenizer.specialIds) {
      if (id >= this.#vocabSize) continue;
      const text = this.#tokenizer.tokenText(id);
      if (text !== '' && literals.some((literal) => literal.includes(text))) setBit(usable, id);
    }
    return usable;
  }

  #ordinaryTokens(): TokenMask {
    const mask = new Int32Array(Math.ceil((this.#vocabSize + 1) / 32));
    for (let id = 0; id < this.#vocabSize; id++) if (this.#isOrdinary(id)) setBit(mask, id);
    return mask;
  }

  #isOrdinary(id: number): boolean {
    return !this.#tokenizer.specialIds.has(id) && !tokenBytes(this.#tokenizer, id).includes(NEVER_BYTE);
  }
}

class SequenceMatcher implements TokenMatcher {
  mask: TokenMask = new Int32Array(0);
  isComplete = false;
  readonly #compiled: Compiled;
  readonly #stops: readonly number[];
  readonly #onDispose: () => void;
  #matcher: Matcher | null;

  private constructor(matcher: Matcher, compiled: Compiled, stops: readonly number[], onDispose: () => void) {
    this.#matcher = matcher;
    this.#compiled = compiled;
    this.#stops = stops;
    this.#onDispose = onDispose;
  }

  static async start(
    matcher: Matcher,
    compiled: Compiled,
    stops: readonly number[],
    onDispose: () => void,
  ): Promise<TokenMatcher> {
    const started = new SequenceMatcher(matcher, compiled, stops, onDispose);
    started.#look(await matcher.getNextTokenBitmask());
    return started;
  }

  async accept(tokenId: number): Promise<void> {
    if (!this.#matcher) throw new EngineError('constraint: must be followed before it is disposed');
    const { followed } = this.#compiled;
    const startedAt = performance.now();
    if (!this.#matcher.acceptToken(tokenId)) {
      throw new EngineError(`constraint: must allow what was sampled, got token ${tokenId}`);
    }
    const mask = await this.#matcher.getNextTokenBitmask();
    followed.milliseconds += performance.now() - startedAt;
    followed.tokens += 1;
    checkPace(this.#compiled);
    this.#look(mask);
  }

  dispose(): void {
    if (!this.#matcher) return;
    this.#matcher.dispose();
    this.#matcher = null;
    this.#onDispose();
  }

  #look(mask: TokenMask): void {
    const { library, usable } = this.#compiled;
    const mayEnd = hasBit(mask, library.endId);
    for (const id of this.#stops) setBit(mask, id, false);
    let any = 0;
    for (let word = 0; word < usable.length; word++) {
      mask[word]! &= usable[word]!;
      any |= mask[word]!;
    }
    if (mayEnd) for (const id of this.#stops) setBit(mask, id);
    else if (any === 0)
      throw new DataError(
        'constraint: must be a text that tokens of the vocabulary spell, got one that goes on with none',
      );
    this.mask = mask;
    this.isComplete = any === 0 && this.#stops.length === 0;
  }
}

/** Throws DataError if sampling waits too long for this grammar: expressions whose parts match the same text many ways are slow. */
function checkPace({ followed: { milliseconds, tokens } }: Compiled): void {
  if (milliseconds < SLOW_MS || milliseconds < SLOW_MS_PER_TOKEN * tokens) return;
  const mean = Math.round(milliseconds / tokens);
  throw new DataError(
    `constraint: must take at most ${SLOW_MS_PER_TOKEN} ms for a token, got ${mean}; avoid parts that match the same text in many ways`,
  );
}

function hasBit(mask: TokenMask, id: number): boolean {
  return ((mask[id >> 5]! >>> (id & 31)) & 1) === 1;
}

function setBit(mask: TokenMask, id: number, isSet = true): void {
  if (isSet) mask[id >> 5]! |= 1 << (id & 31);
  else mask[id >> 5]! &= ~(1 << (id & 31));
}
