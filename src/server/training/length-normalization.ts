/**
 * What a token's loss is divided by. Layer 5. A token's weight in the loss is `tokenWeights` × the scale of its update. `part` divides by the
 * action tokens of the update (BNPO); `token` by those of the whole batch, in equal shares of the updates (DAPO, arXiv 2503.14476).
 */
import type { LengthNormalization } from '../../core/train-config.ts';

interface UpdateSize {
  /** Action tokens of the update, and of the whole batch, which is cut into so many parts. */
  readonly partTokens: number;
  readonly batchTokens: number;
  readonly parts: number;
}

/** `ForwardBackwardRequest.scale` of one update. */
export function updateScale(
  normalization: LengthNormalization,
  { partTokens, batchTokens, parts }: UpdateSize,
): number {
  return normalization === 'part' ? 1 / partTokens : parts / batchTokens;
}
