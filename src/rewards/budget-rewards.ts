/** Rewards of what a trajectory used up: length, time, money. Layer 5. A metric that is needed and missing is an error, never a 0. */
import { ConfigError, DataError } from '../core/errors.ts';
import { refuseUnknownKeys } from '../core/options.ts';
import { type TokenPrices, tokenCost } from '../core/token-cost.ts';
import type { Trajectory } from '../core/trajectory.ts';
import { type SyncReward, sampledTexts } from './reward.ts';

/** What is measured: sampled characters, a metric of the trajectory, or your own function. */
export type Measure = 'characters' | { readonly metric: string } | ((trajectory: Trajectory) => number);

/**
 * 0 up to `target`, from there linear to −1 at `limit` and beyond: DAPO's soft penalty of length.
 * `measure`: default the characters that were sampled; `{ metric: 'completion_tokens' }` for tokens.
 */
export function lengthPenalty<Scenario = unknown>(options: {
  readonly target: number;
  readonly limit: number;
  readonly measure?: Measure;
}): SyncReward<Scenario> {
  refuseUnknownKeys('lengthPenalty', options, ['target', 'limit', 'measure']);
  const { measure = 'characters' } = options;
  const share = rampUp('lengthPenalty', options.target, options.limit);
  return (trajectory) => 0 - share(measured('lengthPenalty', measure, trajectory));
}

/** 1 up to `target` seconds, from there linear to 0 at `limit`. `measure`: default the metric `duration`, which `finish()` sets. */
export function latencyReward<Scenario = unknown>(options: {
  readonly target: number;
  readonly limit: number;
  readonly measure?: Measure;
}): SyncReward<Scenario> {
  refuseUnknownKeys('latencyReward', options, ['target', 'limit', 'measure']);
  const { measure = { metric: 'duration' } } = options;
  const share = rampUp('latencyReward', options.target, options.limit);
  return (trajectory) => 1 - share(measured('latencyReward', measure, trajectory));
}

/**
 * 1 up to `target`, from there linear to 0 at `limit`, in money. What it cost: `measure`, or with `prices` the metrics `prompt_tokens` and
 * `completion_tokens`. The metric `cost` says how much.
 */
export function costReward<Scenario = unknown>(
  options: { readonly target: number; readonly limit: number } & (
    | { readonly measure: Measure }
    | { readonly prices: TokenPrices }
  ),
): SyncReward<Scenario> {
  refuseUnknownKeys('costReward', options, ['target', 'limit', 'measure', 'prices']);
  const share = rampUp('costReward', options.target, options.limit);
  return (trajectory) => {
    const read = (metric: string): number => measured('costReward', { metric }, trajectory);
    const cost =
      'prices' in options
        ? tokenCost(
            { promptTokens: read('prompt_tokens'), completionTokens: read('completion_tokens') },
            options.prices,
          )
        : measured('costReward', options.measure, trajectory);
    return { reward: 1 - share(cost), metrics: { cost } };
  };
}

/** 0 up to `target`, 1 from `limit` on, linear between. */
function rampUp(what: string, target: number, limit: number): (value: number) => number {
  if (!(Number.isFinite(target) && Number.isFinite(limit) && target >= 0 && target < limit)) {
    throw new ConfigError(`${what}: target must be at least 0 and below limit, got ${target} and ${limit}`);
  }
  return (value) => Math.min(1, Math.max(0, (value - target) / (limit - target)));
}

/** What a trajectory used, by the measure. Throws DataError that names the metric that is missing. */
export function measured(what: string, measure: Measure, trajectory: Trajectory): number {
  if (measure === 'characters') return sampledTexts(trajectory).reduce((sum, text) => sum + text.length, 0);
  if (typeof measure === 'function') {
    const value = measure(trajectory);
    if (!Number.isFinite(value)) throw new DataError(`${what}: measure must give a finite number, got ${value}`);
    return value;
  }
  const value = trajectory.metrics[measure.metric];
  if (typeof value !== 'number' || !Number.isFinite(value)) {
    throw new DataError(`${what}: the trajectory must have the metric ${measure.metric}, got ${String(value)}`);
  }
  return value;
}
