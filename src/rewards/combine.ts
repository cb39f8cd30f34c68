/** Rewards made of rewards. Layer 5. Each is synchronous if all its parts are. */
import { ConfigError, DataError } from '../core/errors.ts';
import { refuseUnknownKeys } from '../core/options.ts';
import { checkReward, type Reward, type RewardResult, type RewardValue, type SyncReward } from './reward.ts';

/**
 * Σ weight·reward. Every part's own reward, without its weight, is the metric `reward/<name>`; its metrics are kept, those of a sum inside
 * as `reward/<name>/<part>`; turn rewards add up with their weights. Throws DataError that names the part for what is not finite.
 */
export function weightedSum<Scenario = unknown>(
  parts: Readonly<Record<string, readonly [weight: number, reward: SyncReward<Scenario>]>>,
): SyncReward<Scenario>;
export function weightedSum<Scenario = unknown>(
  parts: Readonly<Record<string, readonly [weight: number, reward: Reward<Scenario>]>>,
): Reward<Scenario>;
export function weightedSum<Scenario = unknown>(
  parts: Readonly<Record<string, readonly [weight: number, reward: Reward<Scenario>]>>,
): Reward<Scenario> {
  const entries = Object.entries(parts);
  if (entries.length === 0) throw new ConfigError('weightedSum: must have at least one part, got none');
  for (const [name, [weight]] of entries) {
    if (!Number.isFinite(weight)) throw new ConfigError(`weightedSum: weight of ${name} must be finite, got ${weight}`);
  }
  const weights = entries.map(([, [weight]]) => weight);
  return (trajectory, scenario) => {
    const values = entries.map(([, [, reward]]) => reward(trajectory, scenario));
    return whenAll(values, (settled) => {
      const results = settled.map((value, index) => checkReward(`reward ${entries[index]?.[0]}`, value, trajectory));
      return sum(
        entries.map(([name]) => name),
        weights,
        results,
      );
    });
  };
}

/** The reward held to [min, max]; the metric `reward_clipped` says whether it was outside. Turn rewards stay as they are. */
export function clipReward<Scenario = unknown>(
  reward: SyncReward<Scenario>,
  range: { readonly min?: number; readonly max?: number },
): SyncReward<Scenario>;
export function clipReward<Scenario = unknown>(
  reward: Reward<Scenario>,
  range: { readonly min?: number; readonly max?: number },
): Reward<Scenario>;
export function clipReward<Scenario = unknown>(
  reward: Reward<Scenario>,
  range: { readonly min?: number; readonly max?: number },
): Reward<Scenario> {
  refuseUnknownKeys('clipReward', range, ['min', 'max']);
  const { min = Number.NEGATIVE_INFINITY, max = Number.POSITIVE_INFINITY } = range;
  if (!(min <= max)) throw new ConfigError(`clipReward: min must not be above max, got ${min} and ${max}`);
  return (trajectory, scenario) =>
    whenAll([reward(trajectory, scenario)], ([value]) => {
      const result = checkReward('clipReward', value as RewardValue, trajectory);
      const clipped = Math.min(max, Math.max(min, result.reward));
      return { ...result, reward: clipped, metrics: { ...result.metrics, reward_clipped: clipped !== result.reward } };
    });
}

function sum(names: readonly string[], weights: readonly number[], results: readonly RewardResult[]): RewardResult {
  const metrics: Record<string, number | boolean> = {};
  let turnRewards: number[] | undefined;
  let total = 0;
  for (const [index, result] of results.entries()) {
    const name = names[index] as string;
    const weight = weights[index] as number;
    total += weight * result.reward;
    addMetric(metrics, `reward/${name}`, result.reward, name);
    for (const [metric, value] of Object.entries(result.metrics ?? {})) {
      addMetric(metrics, metric.replace(/^reward\//, `reward/${name}/`), value, name);
    }
    if (result.turnRewards === undefined) continue;
    const before = turnRewards;
    turnRewards = result.turnRewards.map((value, turn) => weight * value + (before?.[turn] ?? 0));
  }
  return { reward: total, metrics, ...(turnRewards !== undefined && { turnRewards }) };
}

function addMetric(
  metrics: Record<string, number | boolean>,
  key: string,
  value: number | boolean,
  part: string,
): void {
  if (key in metrics) throw new DataError(`weightedSum: metric ${key} must come from one part, got another of ${part}`);
  metrics[key] = value;
}

/** `then` of the values: at once if none is a promise. */
function whenAll(
  values: readonly (RewardValue | Promise<RewardValue>)[],
  then: (settled: readonly RewardValue[]) => RewardResult,
): RewardResult | Promise<RewardResult> {
  return values.some((value) => value instanceof Promise)
    ? Promise.all(values).then(then)
    : then(values as readonly RewardValue[]);
}
