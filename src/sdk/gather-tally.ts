/** Running counts and means of a gather, for its progress. Layer 5. */
import type { Trajectory } from '../core/trajectory.ts';

export interface GatherProgress {
  readonly groupsDone: number;
  readonly groupsTotal: number;
  readonly rolloutsDone: number;
  readonly rolloutsTotal: number;
  readonly exceptions: number;
  /** Over finished trajectories; 0 before the first. */
  readonly meanReward: number;
  /** Mean of every trajectory metric, over the trajectories that have it. */
  readonly meanMetrics: Readonly<Record<string, number>>;
  /** Sum of the trajectory metric `completion_tokens`; 0 where rollouts do not set it. */
  readonly completionTokens: number;
  readonly elapsedSeconds: number;
}

/** `rollouts_P`: rollouts of each group; a group is done when as many have finished. */
export class GatherTally {
  #rolloutsTotal: number;
  readonly #remaining_P: number[];
  readonly #startedAt = performance.now();
  readonly #metrics = new Map<string, { sum: number; count: number }>();
  #rolloutsDone = 0;
  readonly #exceptions: unknown[] = [];
  #trajectories = 0;
  #rewardSum = 0;

  constructor(rollouts_P: readonly number[]) {
    this.#remaining_P = [...rollouts_P];
    this.#rolloutsTotal = rollouts_P.reduce((sum, count) => sum + count, 0);
  }

  get rolloutsTotal(): number {
    return this.#rolloutsTotal;
  }

  /** Returns the index of the new group. */
  addGroup(rollouts: number): number {
    this.#rolloutsTotal += rollouts;
    return this.#remaining_P.push(rollouts) - 1;
  }

  addTrajectory(trajectory: Trajectory): void {
    this.#trajectories++;
    this.#rewardSum += trajectory.reward;
    for (const [name, value] of Object.entries(trajectory.metrics)) {
      const mean = this.#metrics.get(name) ?? { sum: 0, count: 0 };
      this.#metrics.set(name, { sum: mean.sum + Number(value), count: mean.count + 1 });
    }
  }

  /** Returns the number of failures so far. */
  addException(error: unknown): number {
    return this.#exceptions.push(error);
  }

  get firstException(): unknown {
    return this.#exceptions[0];
  }

  finishRollout(group: number): void {
    this.#rolloutsDone++;
    this.#remaining_P[group] = (this.#remaining_P[group] ?? 0) - 1;
  }

  progress(): GatherProgress {
    return {
      groupsDone: this.#remaining_P.filter((remaining) => remaining === 0).length,
      groupsTotal: this.#remaining_P.length,
      rolloutsDone: this.#rolloutsDone,
      rolloutsTotal: this.rolloutsTotal,
      exceptions: this.#exceptions.length,
      meanReward: this.#trajectories === 0 ? 0 : this.#rewardSum / this.#trajectories,
      meanMetrics: Object.fromEntries([...this.#metrics].map(([name, { sum, count }]) => [name, sum / count])),
      completionTokens: this.#metrics.get('completion_tokens')?.sum ?? 0,
      elapsedSeconds: (performance.now() - this.#startedAt) / 1000,
    };
  }
}
