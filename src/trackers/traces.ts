/**
 * Trajectories as traces: one span for each rollout, below it one for each sampled turn where texts are sent. Layer 6, no I/O.
 * Ids are hashes of what is sent, so that a batch that is sent again has the same ids.
 */
import { createHash } from 'node:crypto';
import type { TrackedHistory, TrackedTrajectory } from '../sdk/tracked-groups.ts';
import type { TrackerRow, TrackerRun, TrackerTrajectories } from '../sdk/tracker.ts';

type Message = Readonly<Record<string, unknown>>;

export interface TracedTurn {
  /** 64 hexadecimal digits. */
  readonly id: string;
  /** The policy, as in `agent-001@3`; of a model without steps its name. */
  readonly model: string;
  /** The whole conversation before the turn. */
  readonly before: readonly Message[];
  /** What is new since the turn before it. */
  readonly input: readonly Message[];
  readonly output: Message;
  readonly tools: readonly object[] | null;
}

export interface TracedTrajectory {
  /** 64 hexadecimal digits, of which traces and spans take a part. */
  readonly id: string;
  readonly startMs: number;
  readonly endMs: number;
  /** Numbers that say which trajectory it is, and its metrics; no texts. */
  readonly facts: Readonly<Record<string, number | string>>;
  /** The reward and the metrics. */
  readonly scores: Readonly<Record<string, number>>;
  readonly trajectory: TrackedTrajectory;
  readonly turns: readonly TracedTurn[];
}

/** What of a run names its traces. */
export type RunNames = Pick<TrackerRun, 'project' | 'name'>;

/** The trajectories of a batch, in order. */
export function traceTrajectories(run: RunNames, batch: TrackerTrajectories): TracedTrajectory[] {
  const { step, split, recordedAt, groups } = batch;
  const endMs = recordedAt.getTime();
  return groups.flatMap((group, groupIndex) =>
    group.trajectories.map((trajectory, index) => {
      const id = deriveId(run.project, run.name, split, step, endMs, groupIndex, index);
      const { reward, metrics, turns, turnRewards, texts } = trajectory;
      const where = { project: run.project, name: run.name, step, split, group: groupIndex, index };
      const seconds = Number.isFinite(metrics.duration) ? Math.max(0, metrics.duration!) : 0;
      const turnScores = turnRewards.map((value, turn): [string, number] => [`reward/turn/${turn}`, value]);
      return {
        id,
        startMs: endMs - seconds * 1000,
        endMs,
        facts: { ...where, turns, failures_in_group: group.exceptions.length },
        scores: { ...metrics, reward, ...Object.fromEntries(turnScores) },
        trajectory,
        turns: (texts?.histories ?? []).flatMap((history, place) => traceTurns(run.name, `${id} ${place}`, history)),
      };
    }),
  );
}

/** Id of the trace that stands for a row of metrics. */
export function rowId(run: RunNames, { step, split, recordedAt, metrics }: TrackerRow): string {
  return deriveId(run.project, run.name, split, step, recordedAt.getTime(), JSON.stringify(metrics));
}

/** Another id, of the same content each time. */
export function deriveId(...parts: readonly (string | number)[]): string {
  return createHash('sha256').update(JSON.stringify(parts)).digest('hex');
}

/** A UUID from the start of an id (version 8: its bits are the maker's). */
export function toUuid(id: string): string {
  const variant = ((Number.parseInt(id[16]!, 16) & 3) | 8).toString(16);
  return [id.slice(0, 8), id.slice(8, 12), `8${id.slice(13, 16)}`, variant + id.slice(17, 20), id.slice(20, 32)].join(
    '-',
  );
}

/** A value that JSON has, or its name: `NaN`, `Infinity`, `-Infinity`. */
export function toJsonNumber(value: number): number | string {
  return Number.isFinite(value) ? value : String(value);
}

function traceTurns(name: string, id: string, { messages, tools }: TrackedHistory): TracedTurn[] {
  const turns: TracedTurn[] = [];
  let begin = 0;
  for (const [end, { isSampled, policyStep, message }] of messages.entries()) {
    if (!isSampled) continue;
    const before = messages.slice(0, end).map((entry) => entry.message);
    const turn = {
      id: deriveId(id, end),
      model: policyStep === null ? name : `${name}@${policyStep}`,
      before,
      input: before.slice(begin),
    };
    turns.push({ ...turn, output: message, tools });
    begin = end + 1;
  }
  return turns;
}
