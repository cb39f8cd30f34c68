/** A dataset in batches of one step each, over several epochs, in an order that the seed alone decides. Layer 5. */
import { ConfigError } from '../core/errors.ts';
import { refuseUnknownKeys, requireIntegers } from '../core/options.ts';
import { createRng, shuffle } from '../core/rng.ts';

export interface IterateDatasetOptions {
  /** Items of one step; default 1. The last step of an epoch may have fewer. */
  readonly groupsPerStep?: number;
  /** Passes over the items; default 1. Infinity is fine. */
  readonly epochs?: number;
  /** Where to go on, as `model.getStep()` says; default 0. The rest is exactly what an uninterrupted run would have seen. */
  readonly initialStep?: number;
  /** Of the order of each epoch; default 0. `null` keeps the order of the items. */
  readonly seed?: number | null;
}

export interface DatasetStep<T> {
  readonly items: readonly T[];
  /** Over all epochs, from 0. */
  readonly step: number;
  readonly epoch: number;
  /** Inside the epoch, from 0. */
  readonly epochStep: number;
}

/** `for (const { items, step } of iterateDataset(scenarios, { groupsPerStep: 8, initialStep: await model.getStep() }))`. */
export function* iterateDataset<T>(
  items: readonly T[],
  options: IterateDatasetOptions = {},
): Generator<DatasetStep<T>, void> {
  refuseUnknownKeys('iterateDataset', options, ['groupsPerStep', 'epochs', 'initialStep', 'seed']);
  const { groupsPerStep = 1, epochs = 1, initialStep = 0, seed = 0 } = options;
  requireIntegers('iterateDataset', { groupsPerStep }, 1);
  if (epochs !== Number.POSITIVE_INFINITY) requireIntegers('iterateDataset', { epochs }, 0);
  requireIntegers('iterateDataset', { initialStep }, 0);
  if (items.length === 0) throw new ConfigError('iterateDataset: needs at least one item, got none');
  const stepsPerEpoch = Math.ceil(items.length / groupsPerStep);
  for (let epoch = Math.floor(initialStep / stepsPerEpoch); epoch < epochs; epoch++) {
    const order = epochOrder(items, seed, epoch);
    const first = Math.max(0, initialStep - epoch * stepsPerEpoch);
    for (let epochStep = first; epochStep < stepsPerEpoch; epochStep++) {
      const start = epochStep * groupsPerStep;
      yield {
        items: order.slice(start, start + groupsPerStep),
        step: epoch * stepsPerEpoch + epochStep,
        epoch,
        epochStep,
      };
    }
  }
}

/** The items in the order of one epoch. */
export function epochOrder<T>(items: readonly T[], seed: number | null, epoch: number): readonly T[] {
  return seed === null ? items : shuffle(items, createRng(seed, 'dataset-order', epoch));
}
