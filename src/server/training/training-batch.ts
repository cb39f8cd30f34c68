/**
 * From trajectory groups to training sequences. Layer 5.
 * Token ids, logprobs and temperatures come from the completion records alone: nothing is tokenised here. Sequence rule: a turn whose prompt
 * repeats all ids so far extends the sequence; any other turn (a template that rewrites history, a sub-agent) starts a new one.
 */
import { type AdvantageKind, advantages, isZeroVariance } from '../../core/advantage.ts';
import { DataError } from '../../core/errors.ts';
import type { Datum } from '../../engines/engine.ts';
import type { WireGroup, WireTrajectory } from '../../wire/training.ts';
import type { CompletionRecord, CompletionStore } from '../inference/served-model.ts';

/** A datum and the policy step that sampled each token; −1 where the action mask is 0. */
export interface TrainingSequence {
  readonly datum: Datum;
  readonly samplingSteps: readonly number[];
  readonly actionTokens: number;
}

export interface BatchCounts {
  readonly groups: number;
  readonly trajectories: number;
  /** Groups that contribute at least one sequence. */
  readonly trainableGroups: number;
  /** Groups without signal: fewer than two trajectories, or all rewards equal. */
  readonly zeroVarianceGroups: number;
  /** Sequences beyond the first of their trajectory. */
  readonly rerenderedSequences: number;
  /** Choices skipped because the same sampled turn stands earlier in the batch. */
  readonly repeatedCompletions: number;
  /** Sequences longer than the engine's context, and trajectories that lost all of theirs. */
  readonly droppedSequences: number;
  readonly droppedTrajectories: number;
}

export interface TrainingBatch {
  /** The sequences of each trajectory that has any, in the order of the request. */
  readonly trajectories: readonly (readonly TrainingSequence[])[];
  readonly actionTokens: number;
  readonly counts: BatchCounts;
}

export interface BatchOptions {
  readonly advantage: AdvantageKind;
  /** As in `TrainConfig`; default 1. */
  readonly turnDiscount?: number;
  /** The engine's context: longer sequences are dropped. */
  readonly maxTokens: number;
}

/**
 * Builds the training sequences of one `train` call. Each sampled turn is trained once, however often it stands in the batch.
 * Throws DataError for a reward that is not finite, a trajectory without choices, and a completion that the store does not hold.
 */
export function buildTrainingBatch(
  groups: readonly WireGroup[],
  completions: Pick<CompletionStore, 'get'>,
  options: BatchOptions,
): TrainingBatch {
  const { turnDiscount = 1 } = options;
  const records = resolveCompletions(groups, completions);
  const counts = { trainableGroups: 0, zeroVarianceGroups: 0, rerenderedSequences: 0, repeatedCompletions: 0 };
  const dropped = { droppedSequences: 0, droppedTrajectories: 0 };
  const trained = new Set<CompletionRecord>();
  const kept: (readonly TrainingSequence[])[] = [];
  const rewards = groups.map((group) => group.trajectories.map((trajectory) => trajectory.reward));
  const trainable = groups.flatMap((_, index) => (isZeroVariance(rewards[index]!) ? [] : [index]));
  counts.zeroVarianceGroups = groups.length - trainable.length;
  const byGroup = advantages(
    trainable.map((index) => rewards[index]!),
    options.advantage,
  );
  for (const [position, groupIndex] of trainable.entries()) {
    const keptBefore = kept.length;
    for (const [index, advantage] of byGroup[position]!.entries()) {
      const turns = records[groupIndex]![index]!;
      const newTurns = turns.flatMap((record, k) => {
        if (trained.has(record)) return [];
        trained.add(record);
        return [{ record, advantage: advantage * turnDiscount ** (turns.length - 1 - k) }];
      });
      counts.repeatedCompletions += turns.length - newTurns.length;
      const sequences = buildSequences(newTurns);
      counts.rerenderedSequences += Math.max(0, sequences.length - 1);
      const fitting = sequences.filter((sequence) => sequence.datum.tokenIds.length <= options.maxTokens);
      dropped.droppedSequences += sequences.length - fitting.length;
      if (fitting.length > 0) kept.push(fitting);
      else if (sequences.length > 0) dropped.droppedTrajectories += 1;
    }
    if (kept.length > keptBefore) counts.trainableGroups += 1;
  }
  return {
    trajectories: kept,
    actionTokens: sum(kept.flat().map((sequence) => sequence.actionTokens)),
    counts: {
      groups: groups.length,
      trajectories: sum(groups.map((group) => group.trajectories.length)),
      ...counts,
      ...dropped,
    },
  };
}

/** The sampled turns of every trajectory, [group][trajectory][turn]; checks all groups, also those that are skipped later. */
function resolveCompletions(
  groups: readonly WireGroup[],
  completions: Pick<CompletionStore, 'get'>,
): CompletionRecord[][][] {
  // One object per sampled turn, so that identity tells repeats apart even if the store copies.
  const known = new Map<string, CompletionRecord>();
  return groups.map((group, groupIndex) =>
    group.trajectories.map((trajectory, trajectoryIndex) => {
      const where = `groups[${groupIndex}].trajectories[${trajectoryIndex}]`;
      if (!Number.isFinite(trajectory.reward)) {
        throw new DataError(`${where}.reward: must be a finite number, got ${trajectory.reward}`);
      }
      const turns = resolveTurns(trajectory, where, completions, known);
      if (turns.length === 0) {
        throw new DataError(
          `${where}: must hold at least one choice that the policy sampled, got ${trajectory.entries.length} plain messages. ` +
            'Only choices are trained: push the choice that the chat completion returned, not a copy of its message; ' +
            'a rollout that ended before its first turn belongs into the exceptions of its group',
        );
      }
      return turns;
    }),
  );
}

function resolveTurns(
  trajectory: WireTrajectory,
  where: string,
  completions: Pick<CompletionStore, 'get'>,
  known: Map<string, CompletionRecord>,
): CompletionRecord[] {
  const turns: CompletionRecord[] = [];
  for (const [entryIndex, entry] of trajectory.entries.entries()) {
    if (!('choice' in entry)) continue;
    const { completion_id: completionId, choice_index: choiceIndex } = entry.choice;
    const key = `${choiceIndex} ${completionId}`;
    const record = known.get(key) ?? completions.get(completionId, choiceIndex);
    if (record === undefined) {
      throw new DataError(
        `${where}.entries[${entryIndex}].choice: must name a turn that this server sampled and still holds, got completion ` +
          `${completionId}, choice ${choiceIndex}. Of sampled turns the newest are kept, as many as the log in the run folder holds: ` +
          'roll out again, train sooner after the rollouts, or let the server keep more of them',
      );
    }
    checkRecord(record, `${where}.entries[${entryIndex}]`);
    known.set(key, record);
    turns.push(record);
  }
  return turns;
}

function checkRecord(record: CompletionRecord, where: string): void {
  if (record.promptIds.length === 0) throw new DataError(`${where}: a sampled turn needs a prompt, got 0 prompt ids`);
  if (record.logprobs.length !== record.tokenIds.length) {
    throw new DataError(
      `${where}: needs one logprob per sampled token, got ${record.logprobs.length} for ${record.tokenIds.length} tokens`,
    );
  }
  const bad = record.logprobs.find((logprob) => !Number.isFinite(logprob));
  if (bad !== undefined) throw new DataError(`${where}: sampling logprobs must be finite, got ${bad}`);
}

interface CreditedTurn {
  readonly record: CompletionRecord;
  readonly advantage: number;
}

/** Cuts the turns of one trajectory into sequences; those without a sampled token are left out. */
function buildSequences(turns: readonly CreditedTurn[]): TrainingSequence[] {
  const writers: SequenceWriter[] = [];
  for (const { record, advantage } of turns) {
    let writer = writers.at(-1);
    if (writer === undefined || !isPrefix(writer.tokenIds, record.promptIds)) {
      writer = createSequenceWriter();
      writers.push(writer);
    }
    writer.append(record, advantage);
  }
  return writers.map((writer) => writer.finish()).filter((sequence) => sequence.actionTokens > 0);
}

interface SequenceWriter {
  readonly tokenIds: readonly number[];
  readonly append: (turn: CompletionRecord, advantage: number) => void;
  readonly finish: () => TrainingSequence;
}

function createSequenceWriter(): SequenceWriter {
  const tokenIds: number[] = [];
  const actionMask: number[] = [];
  const samplingLogprobs: number[] = [];
  const advantages: number[] = [];
  const temperatures: number[] = [];
  const samplingSteps: number[] = [];
  return {
    tokenIds,
    append: (turn, advantage) => {
      for (let t = tokenIds.length; t < turn.promptIds.length; t++) {
        tokenIds.push(turn.promptIds[t]!);
        actionMask.push(0);
        samplingLogprobs.push(0);
        advantages.push(0);
        temperatures.push(1);
        samplingSteps.push(-1);
      }
      for (const [t, tokenId] of turn.tokenIds.entries()) {
        tokenIds.push(tokenId);
        actionMask.push(1);
        samplingLogprobs.push(turn.logprobs[t]!);
        advantages.push(advantage);
        // Greedy logprobs are reported at temperature 1.
        temperatures.push(turn.temperature === 0 ? 1 : turn.temperature);
        samplingSteps.push(turn.policyStep);
      }
    },
    finish: () => ({
      datum: { tokenIds, actionMask, samplingLogprobs, advantages, temperatures },
      samplingSteps,
      actionTokens: sum(actionMask),
    }),
  };
}

function isPrefix(prefix: readonly number[], ids: readonly number[]): boolean {
  return prefix.length <= ids.length && prefix.every((id, t) => id === ids[t]);
}

function sum(values: readonly number[]): number {
  return values.reduce((total, value) => total + value, 0);
}
