/** Follows what a sequence samples and says which tokens may come next. Layer 3. */
import type { TokenMask } from './row-shaper.ts';

/** Of one sequence, which disposes it. */
export interface TokenMatcher {
  /** Tokens that may come next, stop tokens included where the text may end; overwritten by `accept`. */
  readonly mask: TokenMask;
  /** The text is complete, nothing may follow, and no stop token is there to say so. */
  readonly isComplete: boolean;
  /** Tells of a sampled token that is no stop token. Throws EngineError if the mask forbids it. */
  accept(tokenId: number): Promise<void>;
  /** Frees its memory. Idempotent. */
  dispose(): void;
}
