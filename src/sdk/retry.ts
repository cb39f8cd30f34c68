/**
 * Trying again what may fail by chance: a judge's endpoint, a tool, a whole rollout. Layer 5.
 * Never for `train` calls: they carry an idempotency key of their own and are sent again where that is safe.
 */
import { AbortedError, ConfigError } from '../core/errors.ts';
import { refuseUnknownKeys, requireIntegers } from '../core/options.ts';
import { pause } from '../core/wait.ts';

export interface RetryOptions {
  /** Calls in all; default 3. */
  readonly maxAttempts?: number;
  /** Before the second attempt; default 250. */
  readonly delayMs?: number;
  /** Each further wait is so many times as long; default 2. */
  readonly backoffFactor?: number;
  /** No wait is longer; default 30,000. */
  readonly maxDelayMs?: number;
  /** Which failures are worth another attempt; default all but AbortedError. */
  readonly retryOn?: (error: unknown) => boolean;
  /** Before each wait. `attempt` is the one that failed, from 1. */
  readonly onRetry?: (error: unknown, attempt: number) => void;
  /** Ends the waiting: no further attempt begins. */
  readonly signal?: AbortSignal | undefined;
}

const OPTION_NAMES = ['maxAttempts', 'delayMs', 'backoffFactor', 'maxDelayMs', 'retryOn', 'onRetry', 'signal'];

/**
 * The function with retries around it: `const ask = retry(askJudge); await ask(messages)`. The last failure is thrown as it is.
 * Throws AbortedError, with the last failure as its cause, when the signal fires.
 */
export function retry<A extends readonly unknown[], T>(
  work: (...args: A) => T | PromiseLike<T>,
  options: RetryOptions = {},
): (...args: A) => Promise<T> {
  refuseUnknownKeys('retry', options, OPTION_NAMES);
  const { maxAttempts = 3, delayMs = 250, backoffFactor = 2, maxDelayMs = 30_000 } = options;
  const { retryOn = isWorthRetrying, onRetry, signal } = options;
  requireIntegers('retry', { maxAttempts }, 1);
  if (!(delayMs >= 0 && maxDelayMs >= 0)) {
    throw new ConfigError(`retry: delays must not be negative, got delayMs ${delayMs}, maxDelayMs ${maxDelayMs}`);
  }
  if (!(backoffFactor >= 1)) throw new ConfigError(`retry: backoffFactor must be at least 1, got ${backoffFactor}`);
  return async (...args) => {
    for (let attempt = 1; ; attempt++) {
      throwIfStopped(signal, attempt, undefined);
      try {
        return await work(...args);
      } catch (error) {
        throwIfStopped(signal, attempt, error);
        if (attempt === maxAttempts || !retryOn(error)) throw error;
        onRetry?.(error, attempt);
        await pause(Math.min(delayMs * backoffFactor ** (attempt - 1), maxDelayMs), signal);
        throwIfStopped(signal, attempt, error);
      }
    }
  };
}

function isWorthRetrying(error: unknown): boolean {
  return !(error instanceof AbortedError);
}

function throwIfStopped(signal: AbortSignal | undefined, attempt: number, error: unknown): void {
  if (signal?.aborted) {
    throw new AbortedError(`retry: aborted by the caller in attempt ${attempt}`, { cause: error ?? signal.reason });
  }
}
