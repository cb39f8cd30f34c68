/** What a pipeline counts and times between two steps, by the names of Python ART, where it has the metric. Layer 5. */
import { average } from '../core/advantage.ts';
import type { TrajectoryGroup } from '../core/trajectory.ts';

export type Discard = 'stale' | 'zero_variance' | 'failed';

/** A group that may be trained on. */
export interface ReadyGroup {
  /** Number of its scenario in the run. */
  readonly index: number;
  readonly group: TrajectoryGroup;
  /** Oldest policy step that sampled for it. */
  readonly initialStep: number;
  readonly tokens: number;
}

/** What `onStep` is told. */
export interface PipelineStep {
  readonly step: number;
  readonly groups: number;
  /** Of the `train` call, and of the pipeline. */
  readonly metrics: Readonly<Record<string, number>>;
}

/** Counters of a run. */
export class PipelineMeter {
  readonly discarded: Record<Discard, number> = { stale: 0, zero_variance: 0, failed: 0 };
  trainedGroups = 0;
  #rewards: number[] = [];
  #seconds = new Map<string, number>();
  #tokens = 0;
  #discardedBefore: Record<Discard, number> = { ...this.discarded };
  #steppedAt = performance.now();

  /** Adds to a time of the step; `actor` and `…_wait` may be more than the wall's, since workers run side by side. */
  addSeconds(name: 'actor' | 'put_wait' | 'take_wait' | 'evaluation_wait' | 'train_call', seconds: number): void {
    this.#seconds.set(name, (this.#seconds.get(name) ?? 0) + seconds);
  }

  /** Any group that came back, kept or not. */
  addGroup(group: TrajectoryGroup, tokens: number): void {
    this.#tokens += tokens;
    for (const { reward } of group) this.#rewards.push(reward);
  }

  /** The metrics since the last step, for the batch that was trained from `fromStep`. */
  finishStep(
    batch: readonly ReadyGroup[],
    fromStep: number,
    queue: { readonly queued: number; readonly outstanding: number },
  ): Record<string, number> {
    const now = performance.now();
    const wall = (now - this.#steppedAt) / 1000;
    const seconds = (name: string): number => this.#seconds.get(name) ?? 0;
    const ages = batch.map(({ initialStep }) => fromStep - initialStep);
    const batchTokens = batch.reduce((sum, { tokens }) => sum + tokens, 0);
    this.trainedGroups += batch.length;
    const metrics: Record<string, number> = {
      'queue/groups': queue.queued,
      'queue/outstanding_groups': queue.outstanding,
      'queue/put_wait_s': seconds('put_wait'),
      'queue/take_wait_s': seconds('take_wait'),
      'offpolicy/group_age_steps': average(ages),
      'offpolicy/group_age_steps_max': Math.max(...ages),
      'time/step_wall_s': wall,
      'time/step_actor_s': seconds('actor'),
      'time/step_train_call_s': seconds('train_call'),
      'time/actor_idle_s': seconds('put_wait'),
      'time/trainer_idle_s': seconds('take_wait') + seconds('evaluation_wait'),
      'throughput/avg_actor_tok_per_s': this.#tokens / wall,
      'throughput/accepted_train_tok_per_s': batchTokens / wall,
      ...(this.#rewards.length > 0 && { 'pipeline/reward': average(this.#rewards) }),
      ...this.#discardMetrics(),
    };
    this.#rewards = [];
    this.#seconds = new Map();
    this.#tokens = 0;
    this.#discardedBefore = { ...this.discarded };
    this.#steppedAt = now;
    return metrics;
  }

  #discardMetrics(): Record<string, number> {
    const { stale, zero_variance: zeroVariance, failed } = this.discarded;
    const all = this.trainedGroups + stale + zeroVariance + failed;
    return {
      // The server counts groups without variance of its own calls under `discarded/step`.
      'discarded/step/stale_groups': stale - this.#discardedBefore.stale,
      'discarded/step/failed_groups': failed - this.#discardedBefore.failed,
      'discarded/cum/stale_groups': stale,
      'discarded/cum/failed_groups': failed,
      'discarded/cum/zero_variance_groups': zeroVariance,
      'discarded/rate/stale_groups': stale / all,
      'discarded/rate/zero_variance_groups': zeroVariance / all,
    };
  }
}
