/** A function that runs at most so many times at once, over all its callers. Layer 5. */
import pLimit, { type LimitFunction } from 'p-limit';
import { refuseUnknownKeys, requireIntegers } from '../core/options.ts';

export interface LimitConcurrencyOptions<A extends readonly unknown[]> {
  /** Calls with different keys do not wait for each other, as of different endpoints; default: one limit for all. */
  readonly deriveKey?: (...args: A) => string;
}

/**
 * The function with a limit on its calls in flight; further calls wait in order of arrival.
 * `limitConcurrency(askJudge, 4, { deriveKey: (model) => model })`: four at once of each model.
 */
export function limitConcurrency<A extends readonly unknown[], T>(
  work: (...args: A) => T | PromiseLike<T>,
  limit: number,
  options: LimitConcurrencyOptions<A> = {},
): (...args: A) => Promise<T> {
  refuseUnknownKeys('limitConcurrency', options, ['deriveKey']);
  requireIntegers('limitConcurrency', { limit }, 1);
  const limits = new Map<string, LimitFunction>();
  return async (...args) => {
    const key = options.deriveKey?.(...args) ?? '';
    const enter = limits.get(key) ?? pLimit(limit);
    limits.set(key, enter);
    try {
      return await enter(async () => work(...args));
    } finally {
      if (enter.activeCount === 0 && enter.pendingCount === 0) limits.delete(key); // keys of one call each must not add up
    }
  };
}
