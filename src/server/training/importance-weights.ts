/**
 * What makes up for a sampler that is not the policy in training. Layer 5. μ sampled a token, π_old is the trainer as the call begins, and
 * k = π_old / μ. Each rule multiplies the advantage of a token, so that terms beside the loss (entropy, KL) keep all tokens:
 *   importanceCap   min(k, cap)                      truncated importance sampling; Yao et al. 2025, "Your efficient RL framework secretly
 *                                                    brings you off-policy RL training"
 *   importanceMask  k inside [min, max], else 0      masked importance sampling; IcePop (Ling team 2025)
 *   sequenceMask    1 where the geometric mean of k over the trajectory is inside [min, max], else 0
 * With a cap or mask on tokens the ratio of the loss is π / π_old, and k stands beside it. CISPO's weight is π / μ and holds k already: the
 * cap bounds its clip range, masks are 0 or 1. What a mask leaves out stays in what losses are divided by.
 */
import type { RatioRange, TrainConfig } from '../../core/train-config.ts';
import type { Datum, LossConfig } from '../../engines/engine.ts';
import type { Scores } from './score-sequences.ts';
import type { Metrics } from './train-metrics.ts';
import type { TrainingSequence } from './training-batch.ts';

export type Correction = Pick<TrainConfig, 'importanceCap' | 'importanceMask' | 'sequenceMask'>;

/** The loss under a cap, as far as its own clip range holds it. */
export function capLoss(loss: LossConfig, { importanceCap: cap }: Correction): LossConfig {
  return loss.name === 'cispo' && cap !== null ? { ...loss, clipHigh: Math.min(loss.clipHigh, cap) } : loss;
}

/** Whether k must stand beside the loss. */
function isAnchored(loss: LossConfig, { importanceCap, importanceMask }: Correction): boolean {
  return loss.name !== 'cispo' && (importanceCap !== null || importanceMask !== null);
}

/** Whether `correctImportance` has anything to do, and π_old must be known for it. */
export function needsCorrection(loss: LossConfig, correction: Correction): boolean {
  return isAnchored(loss, correction) || correction.importanceMask !== null || correction.sequenceMask !== null;
}

export interface Corrected {
  readonly data: ReadonlyMap<TrainingSequence, Datum>;
  /** Shares of action tokens and of trajectories that masks took out. */
  readonly metrics: Metrics;
}

/** The data of trajectories under the rules above; `data` are theirs so far. */
export function correctImportance(
  trajectories: readonly (readonly TrainingSequence[])[],
  data: ReadonlyMap<TrainingSequence, Datum>,
  oldLogprobs: Scores,
  loss: LossConfig,
  correction: Correction,
): Corrected {
  const { importanceCap, importanceMask, sequenceMask } = correction;
  const isBeside = isAnchored(loss, correction);
  const corrected = new Map<TrainingSequence, Datum>();
  const counts = { tokens: 0, maskedTokens: 0, cappedTokens: 0, maskedTrajectories: 0 };
  for (const sequences of trajectories) {
    const isOut = sequenceMask !== null && !isInside(geometricMean(sequences, oldLogprobs), sequenceMask);
    if (isOut) counts.maskedTrajectories += 1;
    for (const sequence of sequences) {
      const datum = data.get(sequence)!;
      const old = oldLogprobs.get(sequence)!;
      const [advantages, anchors] = [[...datum.advantages], [...datum.samplingLogprobs]];
      for (const [t, isAction] of datum.actionMask.entries()) {
        if (isAction === 0) continue;
        const ratio = Math.exp(old[t]! - datum.samplingLogprobs[t]!);
        const isMasked = isOut || (importanceMask !== null && !isInside(ratio, importanceMask));
        const capped = Math.min(ratio, importanceCap ?? Number.POSITIVE_INFINITY);
        counts.tokens += 1;
        if (isMasked) counts.maskedTokens += 1;
        else if (isBeside && capped < ratio) counts.cappedTokens += 1;
        if (isMasked) advantages[t] = 0;
        else if (isBeside) advantages[t]! *= capped;
        // A ratio that overflows would make 0 × Infinity of what is masked.
        if (isBeside || isMasked) anchors[t] = old[t]!;
      }
      corrected.set(sequence, { ...datum, advantages, samplingLogprobs: anchors });
    }
  }
  return { data: corrected, metrics: shares(counts, trajectories.length, correction, isBeside) };
}

function shares(
  counts: {
    readonly tokens: number;
    readonly maskedTokens: number;
    readonly cappedTokens: number;
    readonly maskedTrajectories: number;
  },
  trajectories: number,
  { importanceCap, importanceMask, sequenceMask }: Correction,
  isBeside: boolean,
): Metrics {
  if (counts.tokens === 0) return {};
  return {
    ...((importanceMask !== null || sequenceMask !== null) && {
      'loss/masked_token_fraction': counts.maskedTokens / counts.tokens,
    }),
    ...(sequenceMask !== null && { 'loss/masked_trajectory_fraction': counts.maskedTrajectories / trajectories }),
    ...(isBeside && importanceCap !== null && { 'loss/capped_token_fraction': counts.cappedTokens / counts.tokens }),
  };
}

function isInside(ratio: number, [min, max]: RatioRange): boolean {
  return ratio >= min && ratio <= max;
}

/** Of π_old / μ over the action tokens of one trajectory. */
function geometricMean(sequences: readonly TrainingSequence[], oldLogprobs: Scores): number {
  return Math.exp(meanLogRatio(sequences, oldLogprobs, (sequence) => sequence.datum.samplingLogprobs));
}

/** Mean of scores − `anchor` over the action tokens of one trajectory. */
export function meanLogRatio(
  sequences: readonly TrainingSequence[],
  scores: Scores,
  anchor: (sequence: TrainingSequence) => readonly number[],
): number {
  let sum = 0;
  let tokens = 0;
  for (const sequence of sequences) {
    const [logprobs, anchors] = [scores.get(sequence)!, anchor(sequence)];
    for (const [t, isAction] of sequence.datum.actionMask.entries()) {
      if (isAction === 0) continue;
      sum += logprobs[t]! - anchors[t]!;
      tokens += 1;
    }
  }
  return sum / tokens;
}
