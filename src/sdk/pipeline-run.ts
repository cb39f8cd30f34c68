/** One run of a pipeline: rollouts, training and evaluation side by side. Layer 5. */
import { setMaxListeners } from 'node:events';
import { AbortedError, messageOf } from '../core/errors.ts';
import type { TrainableModel } from './model.ts';
import { PipelineEvaluator } from './pipeline-evaluation.ts';
import { PipelineMeter, type ReadyGroup } from './pipeline-meter.ts';
import type { PipelineConfig } from './pipeline-options.ts';
import { RolloutPool } from './pipeline-rollouts.ts';
import { ScenarioBook } from './pipeline-state.ts';
import { Changes, type StageStatus, StageWatch } from './pipeline-watch.ts';

export interface PipelineResult {
  /** The model's. */
  readonly step: number;
  /** Why the run ended: the step was reached, scenarios ended, or `requestStop` was called. */
  readonly reason: 'untilStep' | 'scenarios' | 'stopped';
  readonly trainedGroups: number;
  readonly discardedGroups: { readonly stale: number; readonly zeroVariance: number; readonly failed: number };
  readonly evaluations: number;
}

export interface PipelineStatus {
  readonly step: number;
  /** Groups that lie ready. */
  readonly queuedGroups: number;
  /** Groups that are rolled out, lie ready, or are trained. */
  readonly outstandingGroups: number;
  readonly stages: readonly StageStatus[];
}

/** Made by `openPipelineRun`. */
export class PipelineRun<S> {
  readonly #config: PipelineConfig<S>;
  readonly #book: ScenarioBook<S>;
  readonly #meter = new PipelineMeter();
  readonly #watch = new StageWatch();
  readonly #changes = new Changes();
  readonly #pool: RolloutPool<S>;
  readonly #evaluator: PipelineEvaluator<S>;
  /** Fires when the run fails or is aborted. */
  readonly #controller = new AbortController();
  #step: number;
  #isStopping = false;
  /** Logs of the step before, under way. */
  #logs: Promise<void> = Promise.resolve();

  constructor(config: PipelineConfig<S>, book: ScenarioBook<S>, step: number, lastEvaluation: number | null) {
    this.#config = config;
    this.#book = book;
    this.#step = step;
    const parts = { config, book, meter: this.#meter, watch: this.#watch, changes: this.#changes };
    this.#pool = new RolloutPool(parts, step);
    this.#evaluator = new PipelineEvaluator(config, lastEvaluation, this.#watch, this.#changes);
    setMaxListeners(0, this.#pool.signal, this.#controller.signal); // one for each rollout under way is no leak
  }

  status(): PipelineStatus {
    const { queued, outstanding } = this.#pool;
    return { step: this.#step, queuedGroups: queued, outstandingGroups: outstanding, stages: this.#watch.stages() };
  }

  /** The running step ends as it would; rollouts and evaluation are given up. */
  requestStop(): void {
    this.#isStopping = true;
    this.#pool.stop(new AbortedError('pipeline: requestStop was called'));
    this.#evaluator.stop(new AbortedError('pipeline: requestStop was called'));
    this.#changes.notify();
  }

  /** Ends everything; `run` rejects with the error. The first one stays. */
  fail(error: Error): void {
    this.#controller.abort(error);
    this.#pool.stop(error);
    this.#evaluator.stop(error);
    this.#changes.notify();
  }

  async run(): Promise<PipelineResult> {
    const unwatch = this.#watch.start(this.#config.stallTimeoutMs, (error) => this.fail(error));
    const failed = new Promise<never>((_resolve, reject) => {
      this.#controller.signal.addEventListener('abort', () => reject(this.#controller.signal.reason), { once: true });
    });
    failed.catch(() => {});
    const workers = Array.from({ length: this.#config.workers }, (_, worker) => this.#pool.work(worker));
    for (const work of workers) work.catch((error: unknown) => this.fail(toError(error)));
    try {
      if (this.#controller.signal.aborted) throw this.#controller.signal.reason;
      await Promise.race([this.#train(), failed]);
      this.#pool.stop(new AbortedError('pipeline: the run has ended'));
      await Promise.race([this.#finish(), failed]);
    } catch (error) {
      this.fail(toError(error));
      throw this.#controller.signal.reason;
    } finally {
      unwatch();
      await Promise.allSettled([...workers, this.#evaluator.settled()]);
    }
    return this.#result();
  }

  async #train(): Promise<void> {
    await this.#evaluateIfDue(true);
    while (this.#step < this.#config.untilStep && !this.#isStopping) {
      const batch = await this.#pool.take();
      if (batch.length === 0) return;
      await this.#waitForEvaluation(() => this.#evaluator.leavesRoomFor(this.#step + 1));
      if (this.#isStopping) return;
      await this.#trainStep(batch);
      await this.#evaluateIfDue(false);
    }
  }

  async #trainStep(batch: readonly ReadyGroup[]): Promise<void> {
    const { model, onStep, trainOptionsOf } = this.#config;
    const fromStep = this.#step;
    const { signal } = this.#controller;
    const startedAt = performance.now();
    await this.#watch.during('trainer', `writes the state before step ${fromStep + 1}`, () => this.#saveState(batch));
    const groups = batch.map(({ group }) => group);
    const result = await this.#watch.during('trainer', `trains step ${fromStep + 1} on ${batch.length} groups`, () =>
      model.backend().train(model, groups, trainOptionsOf(fromStep), {
        signal,
        onProgress: () => this.#watch.touch(),
      }),
    );
    this.#meter.addSeconds('train_call', (performance.now() - startedAt) / 1000);
    this.#step = result.step;
    this.#pool.finish(batch, result.step);
    const measured = this.#meter.finishStep(batch, fromStep, this.#pool);
    const own = Object.entries(measured).filter(([name]) => !(name in result.metrics));
    await this.#watch.during('trainer', 'waits for the log of the step before', () => this.#logs);
    this.#logs = this.#log(result.step, Object.fromEntries(own));
    onStep?.({ step: result.step, groups: batch.length, metrics: { ...measured, ...result.metrics } });
  }

  /** What it cannot log is a warning. */
  async #log(step: number, metrics: Readonly<Record<string, number>>): Promise<void> {
    const { model, onWarning } = this.#config;
    const { signal } = this.#controller;
    const dropped = this.#pool.takeDropped();
    try {
      await model.log([], { split: 'train', step, metrics, signal });
      if (dropped.length > 0) await model.log(dropped, { split: 'discarded', step, signal });
    } catch (error) {
      if (!signal.aborted) onWarning(`pipeline: metrics of step ${step} were not logged (${messageOf(error)})`);
    }
  }

  async #saveState(batch: readonly ReadyGroup[]): Promise<void> {
    const { model, stateKey } = this.#config;
    if (stateKey === null) return;
    const pending = { step: this.#step, scenarios: batch.map(({ index }) => index) };
    const state = this.#book.state(pending, this.#evaluator.lastFinished);
    await model.backend().mergeState(model, { [stateKey]: state }, { signal: this.#controller.signal });
  }

  async #waitForEvaluation(isReady: () => boolean): Promise<void> {
    if (isReady()) return;
    const startedAt = performance.now();
    const what = `waits for the evaluation of step ${this.#evaluator.runningStep}`;
    await this.#watch.during('trainer', what, () => this.#changes.until(isReady, this.#controller.signal));
    this.#meter.addSeconds('evaluation_wait', (performance.now() - startedAt) / 1000);
  }

  /** One at a time: the next waits for the one before. */
  async #evaluateIfDue(isStart: boolean): Promise<void> {
    if (!this.#evaluator.isDue(this.#step, isStart)) return;
    await this.#waitForEvaluation(() => this.#evaluator.runningStep === null);
    if (!this.#isStopping) this.#evaluator.start(this.#step);
  }

  /** After the last step: its evaluation, its log, and a state without anything pending. */
  async #finish(): Promise<void> {
    await this.#watch.during('trainer', 'waits for the last evaluation', () => this.#evaluator.settled());
    await this.#watch.during('trainer', 'waits for the last log', () => this.#logs);
    await this.#watch.during('trainer', 'writes the last state', () => this.#saveState([]));
  }

  #result(): PipelineResult {
    const { stale, zero_variance: zeroVariance, failed } = this.#meter.discarded;
    const isReached = this.#step >= this.#config.untilStep;
    return {
      step: this.#step,
      reason: isReached ? 'untilStep' : this.#isStopping ? 'stopped' : 'scenarios',
      trainedGroups: this.#meter.trainedGroups,
      discardedGroups: { stale, zeroVariance, failed },
      evaluations: this.#evaluator.finished,
    };
  }
}

/** Reads where the run before stopped. */
export async function openPipelineRun<S>(config: PipelineConfig<S>, signal?: AbortSignal): Promise<PipelineRun<S>> {
  const { model, scenarios, seed, epochs, stateKey } = config;
  await followRunningJobs(model, signal);
  const step = await model.getStep({ signal });
  const book = new ScenarioBook(scenarios, seed, epochs);
  const state = stateKey === null ? undefined : (await model.backend().readState(model, { signal }))[stateKey];
  const resumed = state === undefined || stateKey === null ? undefined : book.resume(state, step, stateKey);
  return new PipelineRun(config, book, step, resumed?.lastEvaluation ?? null);
}

/** A step that a killed run began may still be under way on the server: only when it has ended does the model's step tell. */
async function followRunningJobs(model: TrainableModel, signal: AbortSignal | undefined): Promise<void> {
  const backend = model.backend();
  for (const state of ['running', 'queued'] as const) {
    const jobs = await backend.listJobs({ model: model.name, state, signal });
    for (const { id } of jobs) await backend.followJob(id, { signal });
  }
}

function toError(error: unknown): Error {
  return error instanceof Error ? error : new Error(String(error));
}
