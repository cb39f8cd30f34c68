/**
 * Metrics of the tokens of a training step; those of trajectories are in core/trajectory-metrics.ts. Layer 5. Names as in Python ART, where it has the metric.
 * mismatchKl is the k3 estimator of KL(sampler ‖ trainer) at equal weights: mean(ρ − 1 − ln ρ), ρ = exp(training − sampling).
 */
import { average } from '../../core/advantage.ts';
import type { Metrics } from '../../core/trajectory-metrics.ts';
import type { Datum, LossConfig } from '../../engines/engine.ts';
import type { TrainingBatch, TrainingSequence } from './training-batch.ts';

export { addMetrics, type Metrics, qualifyMetrics, trajectoryMetrics } from '../../core/trajectory-metrics.ts';

/** Counts of the batch as `data/…` and `discarded/…`. */
export function batchMetrics(batch: TrainingBatch): Metrics {
  const { counts, meanOverlongPenalty } = batch;
  return {
    'data/step_num_scenarios': counts.groups,
    'data/step_num_trajectories': counts.trajectories,
    'data/step_num_additional_histories': counts.additionalHistories,
    'data/step_num_groups_submitted': counts.groups,
    'data/step_num_groups_trainable': counts.trainableGroups,
    'data/step_trainable_assistant_tokens': batch.actionTokens,
    'data/step_num_datums': batch.trajectories.flat().length,
    'data/step_num_rerendered_sequences': counts.rerenderedSequences,
    'data/step_num_repeated_completions': counts.repeatedCompletions,
    'data/step_num_dropped_sequences': counts.droppedSequences,
    'data/step_num_dropped_trajectories': counts.droppedTrajectories,
    'data/step_num_masked_trajectories': counts.maskedTrajectories,
    'data/step_num_clipped_advantages': counts.clippedTurns,
    ...(meanOverlongPenalty !== null && { 'data/step_overlong_penalty': meanOverlongPenalty }),
    'discarded/step/zero_variance_groups': counts.zeroVarianceGroups,
    'discarded/rate/zero_variance_groups': counts.groups === 0 ? 0 : counts.zeroVarianceGroups / counts.groups,
  };
}

/** Age of the behaviour policy over action tokens, in steps before `step`. Empty if nothing is trained. */
export function stalenessMetrics(batch: TrainingBatch, step: number): Metrics {
  const ages = batch.trajectories
    .flat()
    .flatMap((sequence) => sequence.samplingSteps.filter((samplingStep) => samplingStep >= 0))
    .map((samplingStep) => step - samplingStep);
  if (ages.length === 0) return {};
  return {
    'offpolicy/token_weighted_policy_age_steps': average(ages),
    'offpolicy/token_weighted_policy_age_steps_p95': percentile(ages, 0.95),
  };
}

/** Quantile `q` in [0, 1] by linear interpolation between order statistics (numpy's default). `values` must not be empty. */
export function percentile(values: readonly number[], q: number): number {
  const sorted = Float64Array.from(values).sort();
  const position = (sorted.length - 1) * q;
  const below = Math.floor(position);
  const lower = sorted[below]!;
  const upper = sorted[Math.min(below + 1, sorted.length - 1)]!;
  return lower + (upper - lower) * (position - below);
}

/** Whether the loss's clip takes effect on a token; `ratio` is that of its trajectory for GSPO. */
export function isClipped(loss: LossConfig, ratio: number, advantage: number): boolean {
  switch (loss.name) {
    case 'cispo':
      return ratio < loss.clipLow || ratio > loss.clipHigh;
    case 'ppo':
    case 'gspo':
      return (advantage > 0 && ratio > 1 + loss.clipHigh) || (advantage < 0 && ratio < 1 - loss.clipLow);
    case 'importanceSampling':
    case 'crossEntropy':
    case 'forwardKlTopK':
    case 'reverseKlTopK':
      return false;
  }
}

/** Collects importance ratios and mismatch over all forward passes of a step. */
export interface RatioCollector {
  /** `mismatchStep`: tokens sampled at this step met the very weights that sampled them; null if the weights have changed since. */
  readonly add: (
    sequence: TrainingSequence,
    /** What the loss was given for it. */
    lossDatum: Datum,
    trainingLogprobs: readonly number[],
    loss: LossConfig,
    mismatchStep: number | null,
  ) => void;
  readonly metrics: () => Metrics;
}

/** Keeps one ratio for each action token and pass, for the percentiles. Without tokens it has no metrics. */
export function createRatioCollector(): RatioCollector {
  const ratios: number[] = [];
  let clippedTokens = 0;
  let mismatchTokens = 0;
  let mismatchSum = 0;
  let mismatchMaxAbs = 0;
  return {
    add: ({ datum, samplingSteps }, lossDatum, trainingLogprobs, loss, mismatchStep) => {
      for (const [t, isAction] of datum.actionMask.entries()) {
        if (isAction === 0) continue;
        const logRatio = trainingLogprobs[t]! - datum.samplingLogprobs[t]!;
        ratios.push(Math.exp(logRatio));
        const lossLogRatio = lossDatum.sequenceLogRatio ?? trainingLogprobs[t]! - lossDatum.samplingLogprobs[t]!;
        if (isClipped(loss, Math.exp(lossLogRatio), lossDatum.advantages[t]!)) clippedTokens += 1;
        if (samplingSteps[t] !== mismatchStep) continue;
        mismatchTokens += 1;
        mismatchSum += Math.expm1(logRatio) - logRatio;
        mismatchMaxAbs = Math.max(mismatchMaxAbs, Math.abs(logRatio));
      }
    },
    metrics: () => ({
      ...(ratios.length > 0 && {
        'loss/importance_ratio_mean': average(ratios),
        'loss/importance_ratio_p95': percentile(ratios, 0.95),
        'loss/importance_ratio_p99': percentile(ratios, 0.99),
        'loss/clipped_token_fraction': clippedTokens / ratios.length,
      }),
      ...(mismatchTokens > 0 && {
        'loss/mismatch_kl': mismatchSum / mismatchTokens,
        'loss/mismatch_max_abs': mismatchMaxAbs,
      }),
    }),
  };
}
