/** Ctrl-C and SIGTERM for commands that run until then. Layer 6. */

const exitCodes = { SIGINT: 130, SIGTERM: 143 } as const;
/** One Ctrl-C may arrive twice, from the terminal and from what started this process; a person's second one comes later. */
const sameSignalMs = 500;

/** Fires at the first signal; the second one ends the process at once. */
export function createStopSignal(): AbortSignal {
  const stop = new AbortController();
  let firstAt = Number.NEGATIVE_INFINITY;
  for (const signal of ['SIGINT', 'SIGTERM'] as const) {
    process.on(signal, () => {
      const now = performance.now();
      if (!stop.signal.aborted) {
        firstAt = now;
        stop.abort();
      } else if (now - firstAt > sameSignalMs) process.exit(exitCodes[signal]);
    });
  }
  return stop.signal;
}
