/** Metrics of trajectories, by the names of Python ART, where it has the metric. Layer 0: the server and a model without one compute the same. */
import { average, standardDeviation } from './advantage.ts';
import { DataError } from './errors.ts';

export type Metrics = Record<string, number>;

interface Measured {
  readonly metrics: Readonly<Record<string, number | boolean>>;
}

/** A group as this file reads it: of the SDK or of the wire. */
export interface MeasuredGroup extends Measured {
  readonly trajectories: readonly (Measured & { readonly reward: number })[];
  readonly exceptions: readonly unknown[];
}

/**
 * Reward, its spread, failures, and the means of what users recorded, under `<split>/`. Without trajectories there is no reward.
 * Throws DataError if a user's metric has a name that is computed here.
 */
export function trajectoryMetrics(split: string, groups: readonly MeasuredGroup[]): Metrics {
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

function meansByKey(owners: readonly Measured[], prefix: string): Metrics {
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
