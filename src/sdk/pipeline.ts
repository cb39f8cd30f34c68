/**
 * `PipelineTrainer`: rollouts go on while the policy is trained and evaluated. Layer 5.
 * Rollouts then meet a policy that is up to `maxStaleness` steps old; the losses weigh tokens by the ratio of both policies.
 */
import { AbortedError, ConfigError } from '../core/errors.ts';
import type { CallOptions } from './call.ts';
import { type PipelineConfig, type PipelineOptions, readPipelineOptions } from './pipeline-options.ts';
import { openPipelineRun, type PipelineResult, type PipelineRun, type PipelineStatus } from './pipeline-run.ts';

/**
 * Trains a model to a step. Its place in the scenarios is kept with the model (`readState`): a run that was stopped or killed goes on with
 * what it had not trained yet, and trains nothing twice.
 */
export class PipelineTrainer<S> {
  readonly #config: PipelineConfig<S>;
  #run: PipelineRun<S> | undefined;
  #isRunning = false;
  #isStopRequested = false;

  /** Throws ConfigError on unknown and senseless options. */
  constructor(options: PipelineOptions<S>) {
    this.#config = readPipelineOptions(options);
  }

  /**
   * Resolves when the model has `untilStep`, scenarios end, or `requestStop` was called. Rejects with RolloutError past `maxExceptions`,
   * CollapseError, StallError, AbortedError when the signal fires, and whatever the `train` call throws.
   */
  async run({ signal }: CallOptions = {}): Promise<PipelineResult> {
    if (this.#isRunning) throw new ConfigError('PipelineTrainer: may run once at a time, got a second call of run');
    this.#isRunning = true;
    const stop = (): void => this.requestStop();
    const onAbort = (): void =>
      this.#run?.fail(new AbortedError('pipeline: aborted by the caller', { cause: signal?.reason }));
    try {
      if (signal?.aborted) throw new AbortedError('pipeline: aborted by the caller', { cause: signal.reason });
      this.#run = await openPipelineRun(this.#config, signal);
      signal?.addEventListener('abort', onAbort, { once: true });
      if (signal?.aborted) onAbort();
      if (this.#isStopRequested) this.#run.requestStop();
      if (this.#config.stopOnSigint) process.once('SIGINT', stop);
      return await this.#run.run();
    } finally {
      process.removeListener('SIGINT', stop);
      signal?.removeEventListener('abort', onAbort);
      this.#isRunning = false;
      this.#isStopRequested = false;
    }
  }

  /** Ends the run after the step under way. Rollouts under way are given up; a later run begins them again. */
  requestStop(): void {
    this.#isStopRequested = true;
    this.#run?.requestStop();
  }

  /** What every stage does at the moment; undefined before the first run. */
  status(): PipelineStatus | undefined {
    return this.#run?.status();
  }
}
