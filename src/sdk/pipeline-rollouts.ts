/**
 * The rollout side of a pipeline: workers, and the queue of groups that the trainer takes from. Layer 5.
 * A group counts as outstanding from its start until it is trained or dropped. At most (maxStaleness + 1) · minBatchSize are, and every
 * step takes at least minBatchSize in order of arrival: so only a group that takes longer than others can become stale. Its scenario is
 * rolled out once more, so that slow scenarios are not left out.
 */
import { isZeroVariance } from '../core/advantage.ts';
import { CollapseError, DataError, RolloutError } from '../core/errors.ts';
import { deriveSeed } from '../core/rng.ts';
import { type RolloutException, TrajectoryGroup } from '../core/trajectory.ts';
import { withDeadline } from './deadline.ts';
import { countCompletionTokens, describeException } from './gather-run.ts';
import type { Discard, PipelineMeter, ReadyGroup } from './pipeline-meter.ts';
import type { PipelineConfig } from './pipeline-options.ts';
import type { ScenarioBook } from './pipeline-state.ts';
import type { Changes, StageWatch } from './pipeline-watch.ts';

/** A share of failures is of so many rollouts. */
const FAILURE_WINDOW = 64;
/** Dropped groups of one step whose trajectories are kept for the log. */
const MAX_LOGGED_DISCARDS = 64;

export interface PipelineParts<S> {
  readonly config: PipelineConfig<S>;
  readonly book: ScenarioBook<S>;
  readonly meter: PipelineMeter;
  readonly watch: StageWatch;
  readonly changes: Changes;
}

export class RolloutPool<S> {
  readonly #parts: PipelineParts<S>;
  readonly #controller = new AbortController();
  readonly #queue: ReadyGroup[] = [];
  /** The newest failures, true, and successes of rollouts. */
  readonly #outcomes: boolean[] = [];
  #step: number;
  #rolling = 0;
  #inTraining = 0;
  #failures = 0;
  #equalInARow = 0;
  #dropped: TrajectoryGroup[] = [];

  constructor(parts: PipelineParts<S>, step: number) {
    this.#parts = parts;
    this.#step = step;
  }

  get signal(): AbortSignal {
    return this.#controller.signal;
  }

  get queued(): number {
    return this.#queue.length;
  }

  get outstanding(): number {
    return this.#queue.length + this.#rolling + this.#inTraining;
  }

  /** Ends workers, and waits of `take`; what is rolled out now counts as not begun. */
  stop(reason: Error): void {
    this.#controller.abort(reason);
    this.#parts.changes.notify();
  }

  /** One worker, until scenarios end or the pool stops. Rejects with what ends the run. */
  async work(worker: number): Promise<void> {
    const { book, changes, watch, meter } = this.#parts;
    const stage = `worker ${worker}`;
    while (!this.signal.aborted && !book.isExhausted) {
      if (!this.#hasRoom()) {
        const startedAt = performance.now();
        const wait = (): Promise<void> => changes.until(() => this.#hasRoom() || this.signal.aborted, this.signal);
        await watch.during(stage, 'waits for the trainer to take groups', wait).catch(() => {});
        meter.addSeconds('put_wait', (performance.now() - startedAt) / 1000);
        continue;
      }
      const next = book.take();
      if (next === undefined) break;
      this.#rolling++;
      try {
        await watch.during(stage, `rolls out scenario ${next.index}`, () => this.#rollOut(next.index, next.scenario));
      } finally {
        this.#rolling--;
        changes.notify();
      }
    }
    changes.notify();
  }

  /** The next batch: as many as there are, at least minBatchSize but at the end of the scenarios; [] when there is no more. */
  async take(): Promise<readonly ReadyGroup[]> {
    const { config, changes, watch, meter, book } = this.#parts;
    const isEnd = (): boolean => book.isExhausted && this.#rolling === 0;
    const isReady = (): boolean => this.#queue.length >= config.minBatchSize || isEnd() || this.signal.aborted;
    const startedAt = performance.now();
    const what = `waits for ${config.minBatchSize} groups`;
    await watch.during('trainer', what, () => changes.until(isReady));
    meter.addSeconds('take_wait', (performance.now() - startedAt) / 1000);
    if (this.signal.aborted) return [];
    const batch = this.#queue.splice(0, config.maxBatchSize);
    this.#inTraining = batch.length;
    return batch;
  }

  /** The batch was trained, and `step` is served. */
  finish(batch: readonly ReadyGroup[], step: number): void {
    const { book, changes } = this.#parts;
    this.#step = step;
    this.#inTraining = 0;
    for (const { index } of batch) book.finish(index);
    for (const ready of this.#queue.splice(0)) {
      if (this.#isStale(ready)) this.#drop(ready, 'stale');
      else this.#queue.push(ready);
    }
    changes.notify();
  }

  /** Dropped groups since the last call, for the log. */
  takeDropped(): TrajectoryGroup[] {
    const dropped = this.#dropped;
    this.#dropped = [];
    return dropped;
  }

  #hasRoom(): boolean {
    const { maxStaleness, minBatchSize, maxQueuedGroups } = this.#parts.config;
    return this.outstanding < (maxStaleness + 1) * minBatchSize && this.#queue.length + this.#rolling < maxQueuedGroups;
  }

  async #rollOut(index: number, scenario: S): Promise<void> {
    const { config, meter } = this.#parts;
    const startedStep = this.#step;
    const startedAt = performance.now();
    const what = `rollout of scenario ${index}`;
    const seed = deriveSeed(config.seed, 'scenario', index);
    const group: unknown = await withDeadline(
      { what, timeoutMs: config.rolloutTimeoutMs, signal: this.signal },
      async (signal) => config.rollout(scenario, { signal, index, seed }),
    ).catch((error: unknown) => new TrajectoryGroup([], { exceptions: [describeException(error)] }));
    meter.addSeconds('actor', (performance.now() - startedAt) / 1000);
    if (this.signal.aborted) return;
    if (!(group instanceof TrajectoryGroup)) {
      throw new DataError(`pipeline: rollout must give a TrajectoryGroup, got ${typeof group}`);
    }
    this.#receive(index, group, startedStep);
  }

  #receive(index: number, group: TrajectoryGroup, startedStep: number): void {
    const { meter, config } = this.#parts;
    this.#noteOutcomes(group);
    const initialStep = recordPolicySteps(group, startedStep, this.#step);
    const tokens = countTokens(group);
    meter.addGroup(group, tokens);
    const ready: ReadyGroup = { index, group, initialStep, tokens };
    if (group.length === 0) {
      this.#drop(ready, 'failed');
    } else if (isZeroVariance(group.trajectories.map(({ reward }) => reward))) {
      this.#drop(ready, 'zero_variance');
      if (++this.#equalInARow >= config.collapseAfter) throw collapsed(this.#equalInARow, group);
    } else {
      this.#equalInARow = 0;
      if (this.#isStale(ready)) this.#drop(ready, 'stale');
      else this.#queue.push(ready);
    }
  }

  #isStale({ initialStep }: ReadyGroup): boolean {
    return this.#step - initialStep > this.#parts.config.maxStaleness;
  }

  #drop({ index, group }: ReadyGroup, why: Discard): void {
    const { meter, book, changes } = this.#parts;
    meter.discarded[why]++;
    if (why === 'stale') book.giveBack(index);
    else book.finish(index);
    if (this.#dropped.length < MAX_LOGGED_DISCARDS) this.#dropped.push(group);
    changes.notify();
  }

  /** Throws RolloutError past `maxExceptions`. */
  #noteOutcomes(group: TrajectoryGroup): void {
    const { maxExceptions } = this.#parts.config;
    this.#failures += group.exceptions.length;
    this.#outcomes.push(...group.trajectories.map(() => false), ...group.exceptions.map(() => true));
    this.#outcomes.splice(0, this.#outcomes.length - FAILURE_WINDOW);
    const isShare = maxExceptions < 1 && maxExceptions > 0;
    const failures = isShare ? this.#outcomes.filter(Boolean).length : this.#failures;
    const allowed = isShare ? Math.floor(maxExceptions * FAILURE_WINDOW) : maxExceptions;
    const last = group.exceptions.at(-1);
    if (failures > allowed && last !== undefined) throw tooManyFailures(failures, allowed, isShare, last);
  }
}

/** Writes the policy steps into each trajectory's metadata; returns the oldest. */
function recordPolicySteps(group: TrajectoryGroup, startedStep: number, finishedStep: number): number {
  let oldest = startedStep;
  for (const trajectory of group) {
    const steps = trajectory.allChoices().flatMap(({ art }) => (art === undefined ? [] : [art.policy_step]));
    const initial = steps.length === 0 ? startedStep : Math.min(...steps);
    trajectory.metadata.initial_policy_step = initial;
    trajectory.metadata.final_policy_step = steps.length === 0 ? finishedStep : Math.max(...steps);
    oldest = Math.min(oldest, initial);
  }
  return oldest;
}

function countTokens(group: TrajectoryGroup): number {
  let tokens = 0;
  for (const trajectory of group) {
    countCompletionTokens(trajectory);
    tokens += Number(trajectory.metrics.completion_tokens ?? 0);
  }
  return tokens;
}

function tooManyFailures(count: number, allowed: number, isShare: boolean, last: RolloutException): RolloutError {
  const of = isShare ? `of the latest ${FAILURE_WINDOW} rollouts` : 'rollouts';
  return new RolloutError(
    `pipeline: at most ${allowed} ${of} may fail (maxExceptions), got ${count}; the last with ${last.type}: ${last.message}`,
    { details: { exceptions: count, allowed } },
  );
}

function collapsed(groups: number, { trajectories }: TrajectoryGroup): CollapseError {
  return new CollapseError(
    `pipeline: ${groups} groups in a row had equal rewards throughout (the last ${trajectories[0]?.reward}), so nothing is learnt. ` +
      'If all fail, make scenarios easier or give partial reward; if all succeed, make them harder; if the policy always answers alike, ' +
      'go back to an earlier checkpoint and raise temperature or entropyBonus, or lower learningRate (collapseAfter)',
    { details: { groups } },
  );
}
