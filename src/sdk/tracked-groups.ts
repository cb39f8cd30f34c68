/** Trajectories as trackers get them: a copy made when they are logged, without texts unless these are asked for. Layer 5. */
import {
  type ChatChoice,
  type ChatMessage,
  type History,
  isChoice,
  type Trajectory,
  type TrajectoryGroup,
} from '../core/trajectory.ts';

/** One message. */
export interface TrackedMessage {
  /** Whether a model sampled it; else the agent sent it. */
  readonly isSampled: boolean;
  /** The step that sampled it; null for what the agent sent, and for models without steps. */
  readonly policyStep: number | null;
  readonly message: Readonly<Record<string, unknown>>;
}

/** A conversation with the tools that the agent had. */
export interface TrackedHistory {
  readonly messages: readonly TrackedMessage[];
  readonly tools: readonly object[] | null;
}

/** Texts of a trajectory: what users, tools and the policy said, and what the agent noted. */
export interface TrackedTexts {
  /** The main history first, then the additional ones. */
  readonly histories: readonly TrackedHistory[];
  readonly metadata: Readonly<Record<string, string | number | boolean | null>>;
  readonly logs: readonly string[];
}

export interface TrackedTrajectory {
  readonly reward: number;
  readonly turnRewards: readonly number[];
  readonly metrics: Readonly<Record<string, number>>;
  /** Sampled turns over all histories. */
  readonly turns: number;
  /** Null unless the tracker asks for texts. */
  readonly texts: TrackedTexts | null;
}

export interface TrackedGroup {
  readonly trajectories: readonly TrackedTrajectory[];
  /** Names of errors; their messages are texts. */
  readonly exceptions: readonly { readonly type: string; readonly message: string | null }[];
  readonly metrics: Readonly<Record<string, number>>;
}

/** Copies groups, so that what the caller changes later is not sent. */
export function trackGroups(groups: readonly TrajectoryGroup[], hasTexts: boolean): TrackedGroup[] {
  return groups.map((group) => ({
    trajectories: group.trajectories.map((trajectory) => trackTrajectory(trajectory, hasTexts)),
    exceptions: group.exceptions.map(({ type, message }) => ({ type, message: hasTexts ? message : null })),
    metrics: toNumbers(group.metrics),
  }));
}

function trackTrajectory(trajectory: Trajectory, hasTexts: boolean): TrackedTrajectory {
  const { reward, turnRewards, metrics } = trajectory;
  return {
    reward,
    turnRewards: [...turnRewards],
    metrics: toNumbers(metrics),
    turns: trajectory.allChoices().length,
    texts: hasTexts ? trackTexts(trajectory) : null,
  };
}

function trackTexts(trajectory: Trajectory): TrackedTexts {
  const { metadata, logs, additionalHistories } = trajectory;
  const histories = [trajectory, ...additionalHistories].map(trackHistory);
  return { histories, metadata: { ...metadata }, logs: [...logs] };
}

function trackHistory({ messagesAndChoices, tools }: History): TrackedHistory {
  return { messages: messagesAndChoices.map(trackMessage), tools: tools === null ? null : copy(tools) };
}

function trackMessage(entry: ChatMessage | ChatChoice): TrackedMessage {
  if (!isChoice(entry)) return { isSampled: false, policyStep: null, message: copy(entry) };
  return { isSampled: true, policyStep: entry.art?.policy_step ?? null, message: copy({ ...entry.message }) };
}

function toNumbers(metrics: Readonly<Record<string, number | boolean>>): Record<string, number> {
  return Object.fromEntries(Object.entries(metrics).map(([name, value]) => [name, Number(value)]));
}

function copy<T>(value: T): T {
  return JSON.parse(JSON.stringify(value));
}
