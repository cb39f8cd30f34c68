/** Who waits for what, and since when: every wait of a pipeline has a name, and none lasts for ever unnoticed. Layer 5. */
import { AbortedError, StallError } from '../core/errors.ts';

export interface StageStatus {
  /** `trainer`, `worker 3`, `evaluation`. */
  readonly stage: string;
  /** What it does or waits for. */
  readonly what: string;
  readonly seconds: number;
}

/** The stages of a run that are doing something. */
export class StageWatch {
  readonly #stages = new Map<string, { readonly what: string; readonly since: number }>();
  #movedAt = performance.now();

  /** Names what a stage does while `work` lasts. */
  async during<T>(stage: string, what: string, work: () => Promise<T>): Promise<T> {
    const outer = this.#stages.get(stage);
    this.touch();
    this.#stages.set(stage, { what, since: performance.now() });
    try {
      return await work();
    } finally {
      this.touch();
      if (outer === undefined) this.#stages.delete(stage);
      else this.#stages.set(stage, outer);
    }
  }

  /** Something moved. */
  touch(): void {
    this.#movedAt = performance.now();
  }

  stages(): StageStatus[] {
    const now = performance.now();
    return [...this.#stages].map(([stage, { what, since }]) => ({ stage, what, seconds: (now - since) / 1000 }));
  }

  /** Calls `onStall` once when nothing has moved for `limitMs`; returns what ends the watch. */
  start(limitMs: number, onStall: (error: StallError) => void): () => void {
    this.touch();
    const timer = setInterval(
      () => {
        if (performance.now() - this.#movedAt < limitMs) return;
        clearInterval(timer);
        onStall(this.#stalled(limitMs));
      },
      Math.min(limitMs / 4, 10_000),
    );
    return () => clearInterval(timer);
  }

  #stalled(limitMs: number): StallError {
    const stages = this.stages();
    const described = stages.map(({ stage, what, seconds }) => `${stage}: ${what}, for ${seconds.toFixed(1)} s`);
    return new StallError(`pipeline: must move within ${limitMs} ms (stallTimeoutMs), but ${described.join('; ')}`, {
      details: { stages },
    });
  }
}

/** Wakes those who wait for any change; they look for themselves whether it is the one they need. */
export class Changes {
  #waiting: (() => void)[] = [];

  notify(): void {
    for (const wake of this.#waiting.splice(0)) wake();
  }

  /** Resolves when `isReady`; throws the signal's reason, which whoever fires it tells by `notify`. */
  async until(isReady: () => boolean, signal?: AbortSignal): Promise<void> {
    while (!isReady()) {
      throwReason(signal);
      await new Promise<void>((resolve) => this.#waiting.push(resolve));
    }
    throwReason(signal);
  }
}

function throwReason(signal: AbortSignal | undefined): void {
  if (!signal?.aborted) return;
  throw signal.reason instanceof Error ? signal.reason : new AbortedError(`pipeline: stopped (${signal.reason})`);
}
