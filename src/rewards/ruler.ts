/**
 * RULER: relative scores of a group's trajectories by a judge. Layer 5.
 * A group's failure is its own: it is a JudgeError, or null where that is asked for, and never touches other groups.
 */
import { DataError, JudgeError } from '../core/errors.ts';
import { refuseUnknownKeys } from '../core/options.ts';
import { type ChatChoice, type ChatMessage, Trajectory, TrajectoryGroup } from '../core/trajectory.ts';
import { type JudgeModel, resolveJudge } from './judge.ts';
import { JudgeHealth } from './judge-health.ts';
import type { JudgedTrajectory } from './judge-view.ts';
import { judgeTrajectories, type TrajectoryScore } from './ruler-judging.ts';
import { type JudgingOptions, judgingOptions } from './ruler-options.ts';

export interface RulerOptions extends JudgingOptions<JudgedTrajectory> {
  readonly judgeModel: JudgeModel;
  /** The tools of trajectories that have none of their own. */
  readonly tools?: readonly object[] | null;
}

export interface RulerGroupOptions extends JudgingOptions<Trajectory> {
  /** A judge that fails gives null in place of a JudgeError; default false. */
  readonly swallowExceptions?: boolean;
}

/**
 * Scores of trajectories of the same goal, in their order: `messageLists` are lists of messages, or trajectories.
 * Throws JudgeError if the judge gives no usable scores, DataError for one that is too long to show, ConfigError for wrong options.
 */
export async function ruler(
  messageLists: readonly (JudgedTrajectory | readonly (ChatMessage | ChatChoice)[])[],
  options: RulerOptions,
): Promise<TrajectoryScore[]> {
  const { judgeModel, tools = null, ...judging } = options;
  refuseUnknownKeys('ruler', judging, judgingOptions);
  const items = messageLists.map((entry): JudgedTrajectory => {
    const item = 'messagesAndChoices' in entry ? entry : { messagesAndChoices: entry };
    return { ...item, messagesAndChoices: item.messagesAndChoices, tools: item.tools ?? tools };
  });
  return judgeTrajectories(items, resolveJudge(judgeModel), judging);
}

/**
 * The group with scores of a judge as rewards: a new group with new trajectories, whose metric `ruler_score` is the score,
 * `independent_reward` the reward that was set before, and whose logs have the explanation. For `afterEach` of a gather.
 * Throws as `ruler` does; with `swallowExceptions`, a judge that fails and a trajectory that is too long give null.
 */
export function rulerScoreGroup(
  group: TrajectoryGroup,
  judgeModel: JudgeModel,
  options?: RulerGroupOptions & { readonly swallowExceptions?: false },
): Promise<TrajectoryGroup>;
export function rulerScoreGroup(
  group: TrajectoryGroup,
  judgeModel: JudgeModel,
  options: RulerGroupOptions,
): Promise<TrajectoryGroup | null>;
export async function rulerScoreGroup(
  group: TrajectoryGroup,
  judgeModel: JudgeModel,
  options: RulerGroupOptions = {},
): Promise<TrajectoryGroup | null> {
  const { swallowExceptions = false, health, ...judging } = options;
  refuseUnknownKeys('rulerScoreGroup', judging, judgingOptions);
  const own = new JudgeHealth();
  try {
    const scores = await judgeTrajectories(group.trajectories, resolveJudge(judgeModel), { ...judging, health: own });
    return scoredGroup(group, scores, own);
  } catch (error) {
    if (swallowExceptions && (error instanceof JudgeError || error instanceof DataError)) return null;
    throw error;
  } finally {
    health?.add(own);
  }
}

function scoredGroup(group: TrajectoryGroup, scores: readonly TrajectoryScore[], health: JudgeHealth): TrajectoryGroup {
  const trajectories = group.trajectories.map((trajectory, index) => {
    const { score, explanation } = scores[index] as TrajectoryScore;
    return new Trajectory({
      ...trajectory,
      reward: score,
      metrics: {
        ...trajectory.metrics,
        ...(trajectory.isRewardSet && { independent_reward: trajectory.reward }),
        ruler_score: score,
      },
      logs: explanation === '' ? trajectory.logs : [...trajectory.logs, `RULER: ${explanation}`],
    });
  });
  const { calls, reasks, promptTokens, completionTokens, cost, spread, agreement } = health.report();
  const metrics = {
    ...group.metrics,
    ruler_calls: calls,
    ruler_reasks: reasks,
    ruler_prompt_tokens: promptTokens,
    ruler_completion_tokens: completionTokens,
    ruler_spread: spread,
    ...(cost !== null && { ruler_cost: cost }),
    ...(agreement !== null && { ruler_mean_absolute_difference: agreement.meanAbsoluteDifference }),
  };
  const { exceptions, metadata, logs } = group;
  return new TrajectoryGroup(trajectories, { exceptions, metadata, logs, metrics });
}
