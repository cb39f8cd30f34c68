/**
 * Brings an engine to the newest checkpoint: loads it, serves it, proves it. Layer 5.
 * So begins a run, so ends a step that failed, and so goes on an engine that died; the first time there is none, it is step 0's.
 */
import { CheckpointError, messageOf } from '../../core/errors.ts';
import type { Engine } from '../../engines/engine.ts';
import type { Tokenizer } from '../../formats/tokenizer.ts';
import type { CheckpointStore, StoredCheckpoint } from '../store/checkpoints.ts';
import { createSerialQueue, type SerialQueue } from '../store/serial-queue.ts';
import { createProbeIds, proveServed } from './served-proof.ts';

export interface PolicyLoaderOptions {
  readonly checkpoints: CheckpointStore;
  readonly tokenizer: Pick<Tokenizer, 'encode'>;
  readonly probeTolerance: number;
  readonly origin: { readonly baseModel: string; readonly baseModelSha256: string; readonly packageVersion: string };
  readonly onWarning: (message: string) => void;
}

export interface LoadedPolicy {
  readonly newest: StoredCheckpoint;
  readonly maxPositions: number;
  readonly probeIds: readonly number[];
  readonly servedLogprobs: readonly number[];
}

export class PolicyLoader {
  /** A checkpoint that is being committed is waited for: the engine must not go back behind it. */
  readonly commits: SerialQueue = createSerialQueue();
  readonly #options: PolicyLoaderOptions;
  /** The step before the newest, while it is servable too. */
  #previousStep: number | null = null;
  #newestStep: number | null = null;

  constructor(options: PolicyLoaderOptions) {
    this.#options = options;
  }

  /** For a fresh engine, which serves nothing yet: also the step before the newest, if it was servable. */
  async recover(engine: Engine): Promise<LoadedPolicy> {
    const { newest, isLoaded } = await this.#newest(engine);
    const previous = this.#options.checkpoints
      .list()
      .find(({ manifest }) => manifest.step === this.#previousStep && manifest.step < newest.manifest.step);
    if (previous !== undefined) await this.#servePrevious(engine, previous);
    if (!isLoaded) await engine.doLoad({ directory: newest.directory });
    return await this.#serve(engine, newest);
  }

  /** For an engine that holds, or serves, what is not committed. */
  async restore(engine: Engine): Promise<LoadedPolicy> {
    const { newest } = await this.#newest(engine);
    await engine.doLoad({ directory: newest.directory });
    return await this.#serve(engine, newest);
  }

  /** A step was committed, and is served. */
  noteStep(step: number): void {
    if (step === this.#newestStep) return;
    this.#previousStep = this.#newestStep;
    this.#newestStep = step;
  }

  /** A new run's first checkpoint is made of what the engine holds already. */
  async #newest(engine: Engine): Promise<{ readonly newest: StoredCheckpoint; readonly isLoaded: boolean }> {
    const { checkpoints, origin } = this.#options;
    const newest = await this.commits(async () => checkpoints.newest());
    if (newest !== undefined) return { newest, isLoaded: false };
    const first = { step: 0, parentStep: null, idempotencyKey: null, config: null, history: [], timings: [] };
    const made = await checkpoints.commit({ ...first, ...origin }, (directory) => engine.doSave({ directory }));
    return { newest: made, isLoaded: true };
  }

  async #servePrevious(engine: Engine, { directory, manifest }: StoredCheckpoint): Promise<void> {
    try {
      await engine.doLoad({ directory });
    } catch (error) {
      if (!(error instanceof CheckpointError)) throw error;
      this.#options.onWarning(`step ${manifest.step}: is not served any more (${messageOf(error)})`);
      return;
    }
    await engine.doPublish({ step: manifest.step });
  }

  async #serve(engine: Engine, newest: StoredCheckpoint): Promise<LoadedPolicy> {
    const { step } = newest.manifest;
    const { tokenizer, probeTolerance } = this.#options;
    await engine.doPublish({ step });
    const { maxPositions } = await engine.doInfo();
    const probeIds = createProbeIds(tokenizer, maxPositions);
    const servedLogprobs = await proveServed(engine, probeIds, step, probeTolerance);
    this.noteStep(step);
    return { newest, maxPositions, probeIds, servedLogprobs };
  }
}
