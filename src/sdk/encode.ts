/** Trajectories in wire form. Layer 5. A sampled turn travels by reference: the server that sampled it holds its ids and logprobs. */
import { DataError } from '../core/errors.ts';
import {
  type ChatChoice,
  type ChatMessage,
  type History,
  isChoice,
  Trajectory,
  TrajectoryGroup,
} from '../core/trajectory.ts';
import type { WireGroup, WireTrajectory } from '../wire/training.ts';

/** What may be logged: groups, or trajectories, which count as one group. */
export type Loggable = TrajectoryGroup | readonly TrajectoryGroup[] | readonly Trajectory[];

/** What is logged as groups: trajectories alone are one. Throws DataError for a mixture. */
export function toGroups(entries: Loggable): readonly TrajectoryGroup[] {
  const list: readonly unknown[] = entries instanceof TrajectoryGroup ? [entries] : entries;
  if (list.every((entry) => entry instanceof TrajectoryGroup)) return list;
  if (list.every((entry) => entry instanceof Trajectory)) return [new TrajectoryGroup(list)];
  const odd = list.find((entry) => !(entry instanceof TrajectoryGroup || entry instanceof Trajectory));
  throw new DataError(
    `log: entries must be all Trajectory or all TrajectoryGroup objects, got ${odd === undefined ? 'both' : describe(odd)}`,
  );
}

/** Groups for training: every choice must come from our server. Throws DataError that names the group and the trajectory. */
export function encodeTrainGroups(groups: readonly TrajectoryGroup[], needsReward = true): WireGroup[] {
  return groups.map((group, index) => {
    if (!(group instanceof TrajectoryGroup)) {
      throw new DataError(`train: groups must be TrajectoryGroup objects, got ${describe(group)} at ${index}`);
    }
    return encodeGroup(group, (trajectory, position) => {
      const where = `train: group ${index}, trajectory ${position}`;
      const choices = trajectory.allChoices();
      if (choices.length === 0) {
        throw new DataError(
          `${where}: needs at least one sampled choice; push \`completion.choices[0]\`, not its message, to messagesAndChoices`,
        );
      }
      if (choices.some((choice) => choice.art === undefined)) {
        throw new DataError(
          `${where}: every choice must be sampled from the model in training, got one without \`art\` (another endpoint's?)`,
        );
      }
      if (needsReward && !trajectory.isRewardSet) {
        throw new DataError(`${where}: reward must be set, if only to 0; assign trajectory.reward`);
      }
      return encodeTrajectory(trajectory, where);
    });
  });
}

/**
 * Groups for logging: choices of any endpoint, which keep their text only where they are not ours. Where a reward was never set, 0 stands in
 * the row and the metric `reward_unset` says so.
 */
export function encodeLogGroups(entries: Loggable): WireGroup[] {
  const encode = (group: TrajectoryGroup): WireGroup =>
    encodeGroup(group, (trajectory, position) => {
      const wire = encodeTrajectory(trajectory, `log: trajectory ${position}`);
      return trajectory.isRewardSet ? wire : { ...wire, metrics: { ...wire.metrics, reward_unset: 1 } };
    });
  return toGroups(entries).map(encode);
}

function encodeGroup(
  group: TrajectoryGroup,
  encode: (trajectory: Trajectory, position: number) => WireTrajectory,
): WireGroup {
  return {
    trajectories: group.trajectories.map(encode),
    exceptions: group.exceptions.map(({ type, message, stack }) => ({
      type,
      message,
      ...(stack !== undefined && { stack }),
    })),
    metrics: group.metrics,
    metadata: group.metadata,
    logs: group.logs,
  };
}

function encodeTrajectory(trajectory: Trajectory, where: string): WireTrajectory {
  if (!Number.isFinite(trajectory.reward)) {
    throw new DataError(`${where}: reward must be finite, got ${trajectory.reward}`);
  }
  for (const [name, value] of Object.entries(trajectory.metrics)) {
    if (typeof value === 'number' && !Number.isFinite(value)) {
      throw new DataError(`${where}: metric ${name} must be finite, got ${value}`);
    }
  }
  const { additionalHistories, turnRewards } = trajectory;
  checkTurnRewards(trajectory, where);
  return {
    ...encodeHistory(trajectory),
    ...(additionalHistories.length > 0 && { additional_histories: additionalHistories.map(encodeHistory) }),
    reward: trajectory.reward,
    ...(turnRewards.length > 0 && { turn_rewards: turnRewards }),
    metrics: trajectory.metrics,
    metadata: trajectory.metadata,
    logs: trajectory.logs,
  };
}

function checkTurnRewards(trajectory: Trajectory, where: string): void {
  const { turnRewards } = trajectory;
  const choices = trajectory.allChoices().length;
  if (turnRewards.length !== 0 && turnRewards.length !== choices) {
    throw new DataError(
      `${where}: turnRewards must be empty or have one number for each of ${choices} choices, got ${turnRewards.length}`,
    );
  }
  const odd = turnRewards.find((reward) => !Number.isFinite(reward));
  if (odd !== undefined) throw new DataError(`${where}: turnRewards must be finite, got ${odd}`);
}

function encodeHistory({ messagesAndChoices, tools }: History): Pick<WireTrajectory, 'entries' | 'tools'> {
  return {
    entries: messagesAndChoices.map(encodeEntry),
    ...(tools !== null && { tools: tools.map((tool) => ({ ...tool })) }),
  };
}

function encodeEntry(entry: ChatMessage | ChatChoice): WireTrajectory['entries'][number] {
  if (!isChoice(entry)) return { message: entry };
  const message = { ...entry.message };
  if (entry.art === undefined) return { message };
  return { message, choice: { completion_id: entry.art.completion_id, choice_index: entry.index } };
}

function describe(value: unknown): string {
  return value === null ? 'null' : typeof value === 'object' ? value.constructor.name : typeof value;
}
