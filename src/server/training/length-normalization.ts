/**
 * What a token's loss is divided by. Layer 5, pure. N action tokens and M trajectories of the batch, n those of one trajectory over all its
 * sequences, L `maxCompletionTokens`; a batch that is cut into P updates gives each P times its share, so that updates keep their size.
 *   part: 1 / action tokens of the update (BNPO); token: 1 / N (DAPO, arXiv 2503.14476); trajectory: 1 / (M·n) (GRPO, arXiv
 *   2402.03300); constant: 1 / (M·L) (Dr. GRPO, arXiv 2503.20783).
 * The first two are a scale alone. The last two weigh tokens by N / (M·n) and N / (M·L), under the scale of `token`.
 */
import { average } from '../../core/advantage.ts';
import type { LengthNormalization } from '../../core/train-config.ts';
import type { TrainingSequence } from './sequences.ts';

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

/** The sequences of each trajectory with the weights that the normalisation gives their tokens. */
export function weighTokens(
  trajectories: readonly (readonly TrainingSequence[])[],
  normalization: LengthNormalization,
  maxCompletionTokens: number | null,
): readonly (readonly TrainingSequence[])[] {
  if (normalization === 'part' || normalization === 'token') return trajectories;
  const lengths = trajectories.map((sequences) => sequences.reduce((sum, { actionTokens }) => sum + actionTokens, 0));
  const mean = average(lengths);
  return trajectories.map((sequences, index) => {
    const weight = mean / (normalization === 'trajectory' ? lengths[index]! : maxCompletionTokens!);
    return sequences.map((sequence) => weigh(sequence, weight));
  });
}

function weigh(sequence: TrainingSequence, weight: number): TrainingSequence {
  const tokenWeights = sequence.datum.actionMask.map((mask) => mask * weight);
  return { ...sequence, datum: { ...sequence.datum, tokenWeights } };
}
