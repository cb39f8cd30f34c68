/** A backend in memory whose steps take as long as a test says: for tests of training loops without a server. */
import { createRng } from '../../src/core/rng.ts';
import type { ChatChoice, TrajectoryGroup } from '../../src/core/trajectory.ts';
import type { Backend, Loggable, LogOptions, TrainResult } from '../../src/index.ts';
import { withDeadline } from '../../src/sdk/deadline.ts';

export interface TrainCall {
  readonly fromStep: number;
  readonly scenarios: readonly number[];
  readonly stalenesses: readonly number[];
}

export interface LoggedRow {
  readonly split: string | undefined;
  readonly step: number | undefined;
  readonly metrics: Readonly<Record<string, number>>;
  readonly entries: number;
}

export interface ScriptedBackendOptions {
  readonly trainMs?: () => number;
  /** Before a step is published; what it throws fails the call. */
  readonly beforePublish?: (fromStep: number) => void | Promise<void>;
  /** Policies that stay servable; default 2. */
  readonly servedPolicies?: number;
}

const sleep = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms));

export class ScriptedBackend {
  step = 0;
  readonly calls: TrainCall[] = [];
  readonly rows: LoggedRow[] = [];
  state: Record<string, unknown> = {};
  readonly #options: ScriptedBackendOptions;
  #running: Promise<unknown> | undefined;

  constructor(options: ScriptedBackendOptions = {}) {
    this.#options = options;
  }

  /** What the newest policy, or a served one, samples. Throws as a server does for a policy that is not served any more. */
  sample(step: number = this.step): ChatChoice {
    const { servedPolicies = 2 } = this.#options;
    if (step > this.step || step <= this.step - servedPolicies) throw new Error(`step ${step} is not served`);
    return {
      ...{ index: 0, finish_reason: 'stop', message: { role: 'assistant', content: 'yes' } },
      art: { completion_id: 'c', policy_step: step, completion_tokens: 5 },
    };
  }

  /** A client that is told to stop waits no longer; the step goes on, as on a server. */
  async train(
    _model: unknown,
    groups: readonly TrajectoryGroup[],
    _options: unknown,
    { signal }: { signal?: AbortSignal } = {},
  ): Promise<TrainResult> {
    const step = this.#trainStep(groups).finally(() => {
      this.#running = undefined;
    });
    this.#running = step.catch(() => undefined);
    if (signal === undefined) return step;
    return withDeadline({ what: 'scripted training', timeoutMs: 0, signal }, () => step);
  }

  async #trainStep(groups: readonly TrajectoryGroup[]): Promise<TrainResult> {
    const fromStep = this.step;
    const oldest = (group: TrajectoryGroup): number =>
      Math.min(...group.trajectories.flatMap((t) => t.allChoices().map((choice) => choice.art?.policy_step ?? 0)));
    await sleep(this.#options.trainMs?.() ?? 0);
    await this.#options.beforePublish?.(fromStep);
    this.calls.push({
      fromStep,
      scenarios: groups.map((group) => Number(group.metadata.index)),
      stalenesses: groups.map((group) => fromStep - oldest(group)),
    });
    this.step++;
    return { step: this.step, metrics: { 'loss/train': 0 }, checkpointPath: '', adapterSha256: '' };
  }

  async log(_model: unknown, entries: Loggable, { split, step, metrics = {} }: LogOptions = {}): Promise<void> {
    this.rows.push({ split, step, metrics, entries: [...entries].length });
  }

  listJobs = async ({ state }: { state?: string } = {}): Promise<readonly { id: string }[]> =>
    state === 'running' && this.#running !== undefined ? [{ id: 'job' }] : [];
  followJob = async (): Promise<unknown> => this.#running;
  getStep = async (): Promise<number> => this.step;
  register = async () => ({ baseURL: 'http://scripted', apiKey: 'none', modelName: 'scripted' });
  readState = async (): Promise<Record<string, unknown>> => structuredClone(this.state);
  mergeState = async (_model: unknown, patch: Record<string, unknown>): Promise<Record<string, unknown>> => {
    this.state = { ...this.state, ...structuredClone(patch) };
    return this.state;
  };

  asBackend(): Backend {
    return this as unknown as Backend;
  }
}

/** Milliseconds from 0 to `most`, by a seed. */
export function delays(seed: number, most: number): () => number {
  const rng = createRng('delays', seed);
  return () => rng.integer(most + 1);
}
