/** The evaluation side of a pipeline: beside training, one at a time, each on the policy of one step. Layer 5. */
import { messageOf } from '../core/errors.ts';
import { type Trajectory, TrajectoryGroup } from '../core/trajectory.ts';
import { withDeadline } from './deadline.ts';
import type { Loggable } from './encode.ts';
import type { EvaluationResult, PipelineConfig } from './pipeline-options.ts';
import type { Changes, StageWatch } from './pipeline-watch.ts';

export class PipelineEvaluator<S> {
  /** The step whose evaluation ended last, well or not. */
  lastFinished: number | null;
  readonly #config: PipelineConfig<S>;
  readonly #watch: StageWatch;
  readonly #changes: Changes;
  #running: { readonly step: number; readonly done: Promise<void> } | null = null;
  readonly #controller = new AbortController();
  finished = 0;

  constructor(config: PipelineConfig<S>, lastStep: number | null, watch: StageWatch, changes: Changes) {
    this.#config = config;
    this.lastFinished = lastStep;
    this.#watch = watch;
    this.#changes = changes;
  }

  isDue(step: number, isStart: boolean): boolean {
    const { evaluate, evaluateAtStart, evaluateEvery, untilStep } = this.#config;
    const last = this.runningStep ?? this.lastFinished;
    if (evaluate === undefined || last === step) return false;
    if (isStart && last === null) return evaluateAtStart;
    // More than one interval: a run that was killed lost the evaluation that was under way.
    return step >= untilStep || Math.floor(step / evaluateEvery) > Math.floor((last ?? 0) / evaluateEvery);
  }

  /** Begins one; the one before must have ended. */
  start(step: number): void {
    const done = this.#evaluate(step).finally(() => {
      this.#running = null;
      if (!this.#controller.signal.aborted) this.lastFinished = step;
      this.#changes.notify();
    });
    this.#running = { step, done };
  }

  /** Whether none is under way, or one whose policy is still served when the engine has this step. */
  leavesRoomFor(step: number): boolean {
    return this.#running === null || this.#running.step > step - this.#config.servedPolicies;
  }

  /** The step that is evaluated now. */
  get runningStep(): number | null {
    return this.#running?.step ?? null;
  }

  stop(reason: Error): void {
    this.#controller.abort(reason);
  }

  async settled(): Promise<void> {
    await this.#running?.done;
  }

  async #evaluate(step: number): Promise<void> {
    const { evaluate, evaluationTimeoutMs: timeoutMs, model, onWarning } = this.#config;
    const what = `evaluation of step ${step}`;
    const { signal } = this.#controller;
    try {
      await this.#watch.during('evaluation', `evaluates step ${step}`, () =>
        withDeadline({ what, timeoutMs, signal }, async (stop) => {
          const modelName = model.getInferenceName(step);
          const result = await evaluate?.({ step, modelName, signal: stop });
          for (const [split, entries] of Object.entries(bySplit(result))) await model.log(entries, { split, step });
        }),
      );
      this.finished++;
    } catch (error) {
      if (!signal.aborted) onWarning(`pipeline: ${what} failed (${messageOf(error)}); training goes on`);
    }
  }
}

function bySplit(result: EvaluationResult): Readonly<Record<string, Loggable>> {
  if (result === undefined) return {};
  if (result instanceof TrajectoryGroup) return { val: result };
  if (Array.isArray(result)) return result.length === 0 ? {} : { val: result as readonly Trajectory[] };
  return result as Readonly<Record<string, Loggable>>;
}
