/**
 * Metrics of trajectories and of the tokens of a training step. Layer 5. Names as in Python ART, where it has the metric.
 * mismatchKl is the k3 estimator of KL(sampler ‖ trainer) at equal weights: mean(ρ − 1 − ln ρ), ρ = exp(training − sampling).
 */
import { average, standardDeviation } from '../../core/advantage.ts';
import { DataError } from '../../core/errors.ts';
import type { LossConfig } from '../../engines/engine.ts';
import type { WireGroup } from '../../wire/training.ts';
import type { BatchCounts, TrainingBatch, TrainingSequence } from './training-batch.ts';

export type Metrics = Record<string, number>;

/**
 * Reward, its spread, failures, and the means of what users recorded, under `<split>/`. Without trajectories there is no reward.
 * Throws DataError if a user's metric has a name that is computed here.
 */
export function trajectoryMetrics(split: string, groups: readonly WireGroup[]): Metrics {
  const trajectories = groups.flatMap((group) => group.trajectories);
  const exceptions = groups.flatMap((group) => group.exceptions).length;
  const metrics: Metrics = {};
  if (trajectories.length > 0) {
    const spreads = groups
      .filter((group) => group.trajectories.length > 1)
      .map((group) => standardDeviation(group.trajectories.map((trajectory) => trajectory.reward)));
    metrics[`${split}/reward`] = average(trajectories.map((trajectory) => trajectory.reward));
    metrics[`${split}/reward_std_dev`] = average(spreads);
  }
  if (trajectories.length + exceptions > 0) {
    metrics[`${split}/exception_rate`] = exceptions / (trajectories.length + exceptions);
  }
  addMetrics(metrics, meansByKey(trajectories, `${split}/`));
  addMetrics(metrics, meansByKey(groups, `${split}/group/`));
  return metrics;
}

/** Adds `source` to `target`; throws DataError instead of replacing a metric. */
export function addMetrics(target: Metrics, source: Readonly<Metrics>): void {
  for (const [name, value] of Object.entries(source)) {
    if (Object.hasOwn(target, name)) {
      throw new DataError(
        `metric ${name}: the name is taken by a metric that is computed already; give yours another name`,
      );
    }
    target[name] = value;
  }
}

/** Prefixes names without a section: `accuracy` becomes `val/accuracy`, `costs/judge` stays. */
export function qualifyMetrics(split: string, metrics: Readonly<Metrics>): Metrics {
  return Object.fromEntries(
    Object.entries(metrics).map(([name, value]) => [name.includes('/') ? name : `${split}/${name}`, value]),
  );
}

function meansByKey(
  owners: readonly { readonly metrics: Readonly<Record<string, number | boolean>> }[],
  prefix: string,
): Metrics {
  const values = new Map<string, number[]>();
  for (const owner of owners) {
    for (const [key, value] of Object.entries(owner.metrics)) {
      const name = prefix + key;
      const list = values.get(name) ?? [];
      list.push(Number(value));
      values.set(name, list);
    }
  }
  return Object.fromEntries([...values].map(([name, list]) => [name, average(list)]));
}

/** Counts of the batch as `data/…` and `discarded/…`. */
export function batchMetrics(batch: TrainingBatch): Metrics {
  const counts: BatchCounts = batch.counts;
  return {
    'data/step_num_scenarios': counts.groups,
    'data/step_num_trajectories': counts.trajectories,
    'data/step_num_groups_submitted': counts.groups,
    'data/step_num_groups_trainable': counts.trainableGroups,
    'data/step_trainable_assistant_tokens': batch.actionTokens,
    'data/step_num_datums': batch.trajectories.flat().length,
    'data/step_num_rerendered_sequences': counts.rerenderedSequences,
    'data/step_num_repeated_completions': counts.repeatedCompletions,
    'data/step_num_dropped_sequences': counts.droppedSequences,
    'data/step_num_dropped_trajectories': counts.droppedTrajectories,
    'discarded/step/zero_variance_groups': counts.zeroVarianceGroups,
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

/** Whether the loss's clip takes effect on a token. */
export function isClipped(loss: LossConfig, ratio: number, advantage: number): boolean {
  switch (loss.name) {
    case 'cispo':
      return ratio < loss.clipLow || ratio > loss.clipHigh;
    case 'ppo':
      return (advantage > 0 && ratio > 1 + loss.clipHigh) || (advantage < 0 && ratio < 1 - loss.clipLow);
    case 'crossEntropy':
      return false;
  }
}

/** Collects importance ratios and mismatch over all forward passes of a step. */
export interface RatioCollector {
  /** `mismatchStep`: tokens sampled at this step met the very weights that sampled them; null if the weights have changed since. */
  readonly add: (
    sequence: TrainingSequence,
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
    add: ({ datum, samplingSteps }, trainingLogprobs, loss, mismatchStep) => {
      for (const [t, isAction] of datum.actionMask.entries()) {
        if (isAction === 0) continue;
        const logRatio = trainingLogprobs[t]! - datum.samplingLogprobs[t]!;
        ratios.push(Math.exp(logRatio));
        if (isClipped(loss, Math.exp(logRatio), datum.advantages[t]!)) clippedTokens += 1;
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
