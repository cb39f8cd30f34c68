/** Ctrl-C as an AbortSignal: the first one asks the job to stop cleanly, the second one ends the process. */

export interface StopSignal {
  readonly signal: AbortSignal;
  /** Removes the handlers. */
  dispose(): void;
}

const SIGNALS = ['SIGINT', 'SIGTERM', 'SIGHUP'] as const;
const EXIT_CODE = 130;

/** Also fires when the process that started this one through `scripts/run.mjs` is gone. `onStop` runs once, on the first signal. */
export function createStopSignal(onStop: (reason: string) => void): StopSignal {
  const controller = new AbortController();
  const stop = (reason: string): void => {
    if (controller.signal.aborted) process.exit(EXIT_CODE);
    onStop(reason);
    controller.abort(new Error(reason));
  };
  const onDisconnect = (): void => stop('the starting process ended');
  for (const name of SIGNALS) process.on(name, stop);
  process.once('disconnect', onDisconnect);
  process.channel?.unref(); // listening for `disconnect` must not keep the process alive
  return {
    signal: controller.signal,
    dispose: () => {
      for (const name of SIGNALS) process.off(name, stop);
      process.off('disconnect', onDisconnect);
    },
  };
}
