/** Bounded, cancellable waits. Layer 5. A wait that ends early throws AbortedError and names what it waited for. */
import { setMaxListeners } from 'node:events';
import { AbortedError } from '../core/errors.ts';

export interface DeadlineOptions {
  /** What is waited for, as in `registration of model agent-001`. */
  readonly what: string;
  /** 0 = no limit. */
  readonly timeoutMs: number;
  readonly signal?: AbortSignal | undefined;
}

/**
 * Runs `work` with a signal that fires on the caller's signal or after `timeoutMs`, and stops waiting when it fires, even if `work` does not.
 * `restart` (second argument of `work`) sets the clock back to zero: for streams, whose limit is the silence between two events.
 */
export async function withDeadline<T>(
  options: DeadlineOptions,
  work: (signal: AbortSignal, restart: () => void) => Promise<T>,
): Promise<T> {
  const { what, timeoutMs, signal } = options;
  const controller = new AbortController();
  setMaxListeners(0, controller.signal); // a long rollout makes many calls with it
  let timer: NodeJS.Timeout | undefined;
  const stopped = new Promise<never>((_resolve, reject) => {
    controller.signal.addEventListener('abort', () => reject(controller.signal.reason), { once: true });
  });
  stopped.catch(() => {}); // the race below reports it; this one only keeps Node from calling it unhandled
  const restart = (): void => {
    clearTimeout(timer);
    if (timeoutMs > 0 && !controller.signal.aborted) {
      const error = new AbortedError(`${what}: nothing within ${timeoutMs} ms`, { details: { isDeadline: true } });
      timer = setTimeout(() => controller.abort(error), timeoutMs);
    }
  };
  const onAbort = (): void =>
    controller.abort(new AbortedError(`${what}: aborted by the caller`, { cause: signal?.reason }));
  if (signal?.aborted) onAbort();
  signal?.addEventListener('abort', onAbort, { once: true });
  restart();
  try {
    return controller.signal.aborted ? await stopped : await Promise.race([work(controller.signal, restart), stopped]);
  } finally {
    clearTimeout(timer);
    signal?.removeEventListener('abort', onAbort);
  }
}
