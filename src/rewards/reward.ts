/**
 * What a reward is: a function of a trajectory and its scenario. Layer 5.
 * It gives a number, or a number with metrics and the credit of single turns, at once or as a promise; `applyReward` writes it into trajectories.
 */
import { DataError } from '../core/errors.ts';
import { type ChatChoice, Trajectory, type TrajectoryGroup } from '../core/trajectory.ts';

export interface RewardResult {
  readonly reward: number;
  /** Land in the trajectory's metrics. */
  readonly metrics?: Readonly<Record<string, number | boolean>>;
  /** Credit of single turns beside `reward`: one for each choice of `trajectory.allChoices()`. */
  readonly turnRewards?: readonly number[];
}

export type RewardValue = number | RewardResult;

/** A reward; `Scenario` is what it needs to know of the scenario, if anything. */
export type Reward<Scenario = unknown> = (
  trajectory: Trajectory,
  scenario: Scenario,
) => RewardValue | Promise<RewardValue>;

/** A reward that needs not wait. */
export type SyncReward<Scenario = unknown> = (trajectory: Trajectory, scenario: Scenario) => RewardValue;

/** A value, or what gives it for a scenario. */
export type FromScenario<Value, Scenario> = Value | ((scenario: Scenario, trajectory: Trajectory) => Value);

export function resolveFrom<Value, Scenario>(
  given: FromScenario<Value, Scenario>,
  scenario: Scenario,
  trajectory: Trajectory,
): Value {
  return typeof given === 'function'
    ? (given as (scenario: Scenario, trajectory: Trajectory) => Value)(scenario, trajectory)
    : given;
}

/**
 * Rewards one trajectory, or each of a group, in place, and returns it: reward, metrics beside those that are there, turn rewards.
 * Throws DataError that names the reward for what is not finite, or has not one turn reward for each choice.
 */
export async function applyReward<Target extends Trajectory | TrajectoryGroup, Scenario = undefined>(
  target: Target,
  reward: Reward<Scenario>,
  ...[scenario]: undefined extends Scenario ? [scenario?: Scenario] : [scenario: Scenario]
): Promise<Target> {
  const trajectories: readonly Trajectory[] = target instanceof Trajectory ? [target] : target.trajectories;
  await Promise.all(
    trajectories.map(async (trajectory) => {
      const result = checkReward('reward', await reward(trajectory, scenario as Scenario), trajectory);
      trajectory.reward = result.reward;
      Object.assign(trajectory.metrics, result.metrics);
      if (result.turnRewards !== undefined) trajectory.turnRewards = [...result.turnRewards];
    }),
  );
  return target;
}

/** The result with everything in it finite. Throws DataError that names the reward. */
export function checkReward(name: string, value: RewardValue, trajectory: Trajectory): RewardResult {
  const result: RewardResult = typeof value === 'object' && value !== null ? value : { reward: value };
  if (!Number.isFinite(result.reward)) {
    throw new DataError(`${name}: must be a finite number, got ${String(result.reward)}`, {
      details: { reward: name },
    });
  }
  for (const [metric, number] of Object.entries(result.metrics ?? {})) {
    if (typeof number === 'number' ? !Number.isFinite(number) : typeof number !== 'boolean') {
      throw new DataError(`${name}: metric ${metric} must be a finite number, got ${String(number)}`);
    }
  }
  const { turnRewards } = result;
  if (turnRewards === undefined) return result;
  const turns = trajectory.allChoices().length;
  if (turnRewards.length !== turns || !turnRewards.every(Number.isFinite)) {
    throw new DataError(`${name}: turnRewards must be ${turns} finite numbers, got ${turnRewards.join(', ')}`);
  }
  return result;
}

/**
 * Credit of each turn by itself; the trajectory's own reward gets nothing of it. For a sum with what rewards the outcome.
 * Its mean is the metric `turn_reward`.
 */
export function perTurn<Scenario = unknown>(
  reward: (choice: ChatChoice, turn: number, trajectory: Trajectory, scenario: Scenario) => number,
): SyncReward<Scenario> {
  return (trajectory, scenario) => {
    const turnRewards = trajectory.allChoices().map((choice, turn) => reward(choice, turn, trajectory, scenario));
    const sum = turnRewards.reduce((total, value) => total + value, 0);
    return {
      reward: 0,
      turnRewards,
      metrics: { turn_reward: turnRewards.length === 0 ? 0 : sum / turnRewards.length },
    };
  };
}

/** Text of the last turn: of the last choice, or of the last assistant message where nothing was sampled; empty without any. */
export function lastText(trajectory: Trajectory): string {
  const choice = trajectory.messagesAndChoices.findLast((entry) => 'message' in entry && 'finish_reason' in entry);
  const message = trajectory.messages().findLast(({ role }) => role === 'assistant');
  return textOf(choice === undefined ? message?.content : (choice as ChatChoice).message.content);
}

/** Texts of all turns that were sampled. */
export function sampledTexts(trajectory: Trajectory): string[] {
  return trajectory.allChoices().map(({ message }) => textOf(message.content));
}

function textOf(content: unknown): string {
  if (typeof content === 'string') return content;
  if (!Array.isArray(content)) return '';
  return content.map((part: { text?: unknown }) => (typeof part?.text === 'string' ? part.text : '')).join('');
}
