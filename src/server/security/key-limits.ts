/** How much one key may ask for: requests a minute as a token bucket, and requests at the same time. Layer 5. Counted in memory. */
import { ApiError } from '../../core/errors.ts';
import type { StoredKey } from './keys.ts';

export interface KeyLimits {
  /** Takes one request's place; call the result once when its answer is complete. Throws ApiError 429 with `retry-after`. */
  readonly enter: (key: StoredKey) => () => void;
}

interface Use {
  tokens: number;
  filledAt: number;
  running: number;
}

/** `now` in milliseconds. */
export function createKeyLimits(now: () => number = () => performance.now()): KeyLimits {
  const uses = new Map<string, Use>();
  return {
    enter: (key) => {
      const { requests_per_minute: perMinute, max_concurrent: maxConcurrent } = key;
      const use = uses.get(key.id) ?? { tokens: burstOf(perMinute), filledAt: now(), running: 0 };
      uses.set(key.id, use);
      const perMs = perMinute / 60_000;
      const time = now();
      use.tokens = Math.min(burstOf(perMinute), use.tokens + (time - use.filledAt) * perMs);
      use.filledAt = time;
      if (use.tokens < 1) {
        const waitMs = (1 - use.tokens) / perMs;
        throw tooMany(key, `${perMinute} requests a minute`, waitMs);
      }
      if (use.running >= maxConcurrent) throw tooMany(key, `${maxConcurrent} requests at the same time`, 1_000);
      use.tokens -= 1;
      use.running += 1;
      let isDone = false;
      return () => {
        if (!isDone) use.running -= 1;
        isDone = true;
      };
    },
  };
}

/** Ten seconds' worth at once: a group of rollouts starts together. */
function burstOf(perMinute: number): number {
  return Math.max(1, perMinute / 6);
}

function tooMany({ name }: StoredKey, limit: string, waitMs: number): ApiError {
  const retryAfter = String(Math.max(1, Math.ceil(waitMs / 1000)));
  return new ApiError(`key ${name}: may send ${limit}, got more; try again in ${retryAfter} s`, 429, {
    details: { code: 'rate_limit_exceeded', retryAfter },
  });
}
