/** Notices that a process stands still: it is asked when it is quiet, and has a limit to answer. Layer 4. */

export interface WatchdogOptions {
  /** Time from a question to any sign of life, milliseconds. */
  readonly limitMs: number;
  readonly ask: () => void;
  readonly onHang: () => void;
}

export interface Watchdog {
  /** Whatever the process says counts. */
  readonly heard: () => void;
  readonly stop: () => void;
}

/** Questions of a quiet process within one limit. */
const questionsPerLimit = 4;

/** Begins at once. Its timer keeps no program alive. */
export function createWatchdog({ limitMs, ask, onHang }: WatchdogOptions): Watchdog {
  const intervalMs = Math.max(1, limitMs / questionsPerLimit);
  let heardAt = performance.now();
  let askedAt: number | null = null;
  const check = (): void => {
    const now = performance.now();
    if (askedAt === null) {
      if (now - heardAt < intervalMs) return;
      askedAt = now;
      ask();
    } else if (now - askedAt >= limitMs) {
      // This process may be the one that stood still: what arrived meanwhile is read before `setImmediate`.
      setImmediate(() => {
        if (askedAt !== null) onHang();
      });
    }
  };
  const timer = setInterval(check, intervalMs);
  timer.unref();
  return {
    heard: () => {
      heardAt = performance.now();
      askedAt = null;
    },
    stop: () => clearInterval(timer),
  };
}
