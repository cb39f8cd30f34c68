/**
 * Trajectories as rows: one for each trajectory and one for what belongs to its whole group. Plain data, from and to the objects of `core/`
 * without loss. A run's own files hold the sampled ids and logprobs as well; those stay in the rows.
 */
import { DataError } from '../core/errors.ts';
import {
  type ChatChoice,
  type ChatMessage,
  isChoice,
  type RolloutException,
  Trajectory,
  TrajectoryGroup,
} from '../core/trajectory.ts';

/** What a run's files hold of a sampled turn. */
export interface SampledTokens {
  readonly policy_step: number;
  readonly temperature: number;
  readonly finish_reason: string;
  /** Null where the storage policy kept the text off the disk. */
  readonly token_ids: readonly number[] | null;
  readonly logprobs: readonly number[];
}

/** A message; a turn as a run's files have it; or a choice as a client returned it. */
export type RowEntry =
  | { readonly message: ChatMessage; readonly tokens?: SampledTokens | null }
  | { readonly choice: ChatChoice };

export interface RowHistory {
  readonly entries: readonly RowEntry[];
  readonly tools: readonly object[] | null;
}

/** Where a row comes from: the files of a run, or what the caller says. */
export interface RowPlace {
  readonly model: string;
  readonly split: string;
  /** The policy step that it was logged or trained at. */
  readonly step: number;
  /** Number of the group in its split and step, from 0. */
  readonly group: number;
}

type Metrics = Readonly<Record<string, number | boolean>>;
type Metadata = Readonly<Record<string, string | number | boolean | null>>;

export interface TrajectoryRow extends RowPlace, RowHistory {
  readonly kind: 'trajectory';
  /** Number of the trajectory in its group, from 0. */
  readonly trajectory: number;
  readonly reward: number;
  readonly turnRewards: readonly number[];
  readonly additionalHistories: readonly RowHistory[];
  readonly metrics: Metrics;
  readonly metadata: Metadata;
  readonly logs: readonly string[];
}

export interface GroupRow extends RowPlace {
  readonly kind: 'group';
  readonly exceptions: readonly RolloutException[];
  readonly metrics: Metrics;
  readonly metadata: Metadata;
  readonly logs: readonly string[];
}

export type Row = TrajectoryRow | GroupRow;

/** Rows of groups, in order: the trajectories of a group, then the group. */
export function toRows(groups: readonly TrajectoryGroup[], place: Omit<RowPlace, 'group'>): Row[] {
  return groups.flatMap((group, index): Row[] => {
    const { exceptions, metrics, metadata, logs } = group;
    const trajectories = group.trajectories.map((trajectory, number): TrajectoryRow => {
      const { reward, turnRewards, additionalHistories } = trajectory;
      return {
        kind: 'trajectory',
        ...place,
        group: index,
        trajectory: number,
        reward,
        turnRewards,
        ...toRowHistory(trajectory),
        additionalHistories: additionalHistories.map(toRowHistory),
        metrics: trajectory.metrics,
        metadata: trajectory.metadata,
        logs: trajectory.logs,
      };
    });
    return [...trajectories, { kind: 'group', ...place, group: index, exceptions, metrics, metadata, logs }];
  });
}

/**
 * The groups that rows describe, by model, split, step and number, in the order of their first rows. A turn of a run's files becomes a choice
 * without `art`: it can be read and logged, not trained again. Throws DataError for a trajectory that stands twice.
 */
export function toTrajectoryGroups(rows: readonly Row[]): TrajectoryGroup[] {
  const groups = new Map<string, { trajectories: Map<number, Trajectory>; row: GroupRow | undefined }>();
  for (const row of rows) {
    const key = JSON.stringify([row.model, row.split, row.step, row.group]);
    const group = groups.get(key) ?? { trajectories: new Map(), row: undefined };
    groups.set(key, group);
    if (row.kind === 'group') {
      if (group.row !== undefined) throw twice(row, 'the group');
      group.row = row;
    } else {
      if (group.trajectories.has(row.trajectory)) throw twice(row, `trajectory ${row.trajectory}`);
      group.trajectories.set(row.trajectory, toTrajectory(row));
    }
  }
  return [...groups.values()].map(({ trajectories, row }) => {
    const inOrder = [...trajectories].sort(([a], [b]) => a - b).map(([, trajectory]) => trajectory);
    return new TrajectoryGroup(inOrder, row);
  });
}

/** The messages of the main history, as a request has them. */
export function messagesOf({ entries }: RowHistory): ChatMessage[] {
  return entries.map((entry) => ('choice' in entry ? (entry.choice.message as ChatMessage) : entry.message));
}

/** Tokens that the policy sampled in all histories; null if one of them is not known. */
export function completionTokens(row: TrajectoryRow): number | null {
  let sum = 0;
  for (const entry of [row, ...row.additionalHistories].flatMap((history) => history.entries)) {
    if ('choice' in entry || entry.tokens === null) return null;
    sum += entry.tokens?.logprobs.length ?? 0;
  }
  return sum;
}

function toRowHistory(history: Pick<Trajectory, 'messagesAndChoices' | 'tools'>): RowHistory {
  const entries = history.messagesAndChoices.map((entry) => (isChoice(entry) ? { choice: entry } : { message: entry }));
  return { entries, tools: history.tools };
}

function toTrajectory(row: TrajectoryRow): Trajectory {
  return new Trajectory({
    ...fromRowHistory(row),
    additionalHistories: row.additionalHistories.map(fromRowHistory),
    reward: row.reward,
    turnRewards: row.turnRewards,
    metrics: row.metrics,
    metadata: row.metadata,
    logs: row.logs,
  });
}

function fromRowHistory({ entries, tools }: RowHistory): Pick<Trajectory, 'messagesAndChoices' | 'tools'> {
  return { messagesAndChoices: entries.map(fromEntry), tools };
}

function fromEntry(entry: RowEntry): ChatMessage | ChatChoice {
  if ('choice' in entry) return entry.choice;
  if (entry.tokens === undefined) return entry.message;
  return {
    index: 0,
    finish_reason: entry.tokens?.finish_reason ?? 'stop',
    message: entry.message as ChatChoice['message'],
  };
}

function twice({ model, split, step, group }: RowPlace, what: string): DataError {
  return new DataError(
    `trajectories: each must stand once, got ${what} twice in group ${group} of ${model}, split ${split}, step ${step}`,
  );
}
