/** Waits that have a limit and say what they waited for. Layer 0. */
import { AbortedError, type ArtError } from './errors.ts';

export interface WaitOptions {
  readonly limitMs: number;
  /** The error when the limit has passed. */
  readonly onLimit: () => ArtError;
  /** What is waited for; for the error when the signal fires. */
  readonly what: string;
  readonly signal?: AbortSignal | undefined;
}

/** Settles as `work` does, or rejects at the limit or when the signal fires; `work` itself goes on. */
export async function waitFor<T>(work: Promise<T>, { limitMs, onLimit, what, signal }: WaitOptions): Promise<T> {
  const abortedError = (): AbortedError =>
    new AbortedError(`${what}: its caller stopped waiting`, { cause: signal?.reason });
  if (signal?.aborted) throw abortedError();
  let giveUp: (() => void) | undefined;
  let timer: ReturnType<typeof setTimeout> | undefined;
  const end = new Promise<never>((_resolve, reject) => {
    giveUp = () => reject(abortedError());
    signal?.addEventListener('abort', giveUp, { once: true });
    timer = setTimeout(() => reject(onLimit()), limitMs);
  });
  work.catch(() => undefined); // Who stopped waiting does not hear of a later failure.
  try {
    return await Promise.race([work, end]);
  } finally {
    clearTimeout(timer);
    if (giveUp !== undefined) signal?.removeEventListener('abort', giveUp);
  }
}

/** Resolves after `ms`, or at once when the signal fires. */
export async function pause(ms: number, signal?: AbortSignal): Promise<void> {
  if (signal?.aborted) return;
  await new Promise<void>((resolve) => {
    const wake = (): void => {
      clearTimeout(timer);
      signal?.removeEventListener('abort', wake);
      resolve();
    };
    const timer = setTimeout(wake, ms);
    signal?.addEventListener('abort', wake, { once: true });
  });
}
