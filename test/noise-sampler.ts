/** A policy that draws any allowed token, for tests of constraints without a model. */
import type { TextConstraint } from '../src/core/constraint.ts';
import { createRng, type Rng } from '../src/core/rng.ts';
import type { Tokenizer } from '../src/formats/tokenizer.ts';
import type { Grammars } from '../src/infer/constraint/grammars.ts';
import type { TokenMask } from '../src/infer/row-shaper.ts';

export interface Noise {
  readonly text: string;
  readonly ids: readonly number[];
  /** false: `maxTokens` came first. */
  readonly isEnded: boolean;
}

/** Every other draw is of what closes something, so that texts come to an end. */
export async function sampleNoise(
  grammars: Grammars,
  tokenizer: Tokenizer,
  constraint: TextConstraint,
  { seed, stopIds, maxTokens = 400 }: { seed: number; stopIds: readonly number[]; maxTokens?: number },
): Promise<Noise> {
  const rng = createRng('noise', seed);
  const matcher = await grammars.match(constraint, stopIds);
  const ids: number[] = [];
  try {
    while (!matcher.isComplete && ids.length < maxTokens) {
      const id = drawAllowed(matcher.mask, tokenizer, stopIds, rng);
      if (stopIds.includes(id)) return { text: tokenizer.decode(ids), ids, isEnded: true };
      ids.push(id);
      await matcher.accept(id);
    }
    return { text: tokenizer.decode(ids), ids, isEnded: matcher.isComplete };
  } finally {
    matcher.dispose();
  }
}

/** Ids whose bit is set. */
export function allowedIds(mask: TokenMask): number[] {
  const ids: number[] = [];
  for (let id = 0; id < mask.length * 32; id++) if ((mask[id >> 5]! >>> (id & 31)) & 1) ids.push(id);
  return ids;
}

function drawAllowed(mask: TokenMask, tokenizer: Tokenizer, stopIds: readonly number[], rng: Rng): number {
  const allowed = allowedIds(mask).filter((id) => id < tokenizer.vocabSize);
  const closing = allowed.filter((id) => stopIds.includes(id) || /^["}\]]/.test(tokenizer.tokenText(id)));
  const from = closing.length > 0 && rng.uniform() < 0.5 ? closing : allowed;
  return from[rng.integer(from.length)]!;
}
