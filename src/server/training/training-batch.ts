/**
 * From trajectory groups to training sequences. Layer 5.
 * Token ids, logprobs and temperatures come from the completion records alone: nothing is tokenised here. The steps: turns are looked up
 * (resolve-turns.ts), rewards shaped (overlong.ts), turns credited (credit.ts), joined (sequences.ts), weighed (length-normalization.ts).
 */
import { type AdvantageKind, average } from '../../core/advantage.ts';
import type { LengthNormalization, OverlongOptions } from '../../core/train-config.ts';
import type { WireGroup } from '../../wire/training.ts';
import type { CompletionRecord, CompletionStore } from '../inference/served-model.ts';
import { creditTurns } from './credit.ts';
import { weighTokens } from './length-normalization.ts';
import { isCutShort, overlongPenalty, sampledLength } from './overlong.ts';
import { type ResolvedTrajectory, resolveTurns } from './resolve-turns.ts';
import { buildSequences, type CreditedTurn, type TrainingSequence } from './sequences.ts';

export type { TrainingSequence } from './sequences.ts';

export interface BatchCounts {
  readonly groups: number;
  readonly trajectories: number;
  /** Groups that contribute at least one sequence. */
  readonly trainableGroups: number;
  /** Groups without signal: fewer than two trajectories, or all rewards equal. */
  readonly zeroVarianceGroups: number;
  /** Histories beyond the main one of each trajectory. */
  readonly additionalHistories: number;
  /** Turns that had to start a sequence although they are not the first of their history. */
  readonly rerenderedSequences: number;
  /** Choices skipped because the same sampled turn stands earlier in the batch. */
  readonly repeatedCompletions: number;
  /** Sequences longer than the engine's context, and trajectories that lost all of theirs. */
  readonly droppedSequences: number;
  readonly droppedTrajectories: number;
  /** Trajectories that are not trained because a token limit ended them. */
  readonly maskedTrajectories: number;
  /** Turns whose advantage `maxAdvantage` held. */
  readonly clippedTurns: number;
}

export interface TrainingBatch {
  /** The sequences of each trajectory that has any, in the order of the request. */
  readonly trajectories: readonly (readonly TrainingSequence[])[];
  readonly actionTokens: number;
  readonly counts: BatchCounts;
  /** Mean over all trajectories of what `overlong` took off their rewards; null where it takes nothing. */
  readonly meanOverlongPenalty: number | null;
}

/** As in `TrainConfig`, where what its loss leaves open is filled in. */
export interface BatchOptions {
  readonly advantage: AdvantageKind;
  /** Default 1. */
  readonly turnDiscount?: number;
  /** Default null, as are the next ones. */
  readonly maxAdvantage?: number | null;
  readonly overlong?: OverlongOptions | null;
  readonly maxCompletionTokens?: number | null;
  /** Default `part`. */
  readonly lengthNormalization?: LengthNormalization;
  /** The engine's context: longer sequences are dropped. */
  readonly maxTokens: number;
}

/**
 * Builds the training sequences of one `train` call. Each sampled turn is trained once, however often it stands in the batch.
 * Throws DataError as `resolveTurns` does.
 */
export function buildTrainingBatch(
  groups: readonly WireGroup[],
  completions: Pick<CompletionStore, 'get'>,
  options: BatchOptions,
): TrainingBatch {
  const { turnDiscount = 1, maxAdvantage = null, overlong = null, maxCompletionTokens = null } = options;
  const resolved = resolveTurns(groups, completions);
  const penalties = resolved.map((group) => group.map((trajectory) => penaltyOf(trajectory, options)));
  const credit = creditTurns(
    resolved.map((group, g) =>
      group.map(({ reward, histories, turnRewards }, i) => ({
        reward: reward + penalties[g]![i]!,
        turns_H: histories.map((turns) => turns.length),
        turnRewards,
      })),
    ),
    { advantage: options.advantage, turnDiscount, maxAdvantage },
  );
  const counts = { trainableGroups: 0, maskedTrajectories: 0 };
  const collector = createCollector(options.maxTokens);
  for (const [g, group] of resolved.entries()) {
    const advantages = credit.advantages[g];
    if (!advantages) continue;
    const keptBefore = collector.kept.length;
    for (const [i, { histories }] of group.entries()) {
      if (overlong?.mask && isCutShort(histories)) counts.maskedTrajectories += 1;
      else collector.add(histories, advantages[i]!);
    }
    if (collector.kept.length > keptBefore) counts.trainableGroups += 1;
  }
  const { kept } = collector;
  const all = resolved.flat();
  return {
    trajectories: weighTokens(kept, options.lengthNormalization ?? 'part', maxCompletionTokens),
    actionTokens: kept.flat().reduce((sum, sequence) => sum + sequence.actionTokens, 0),
    counts: {
      groups: groups.length,
      trajectories: all.length,
      zeroVarianceGroups: credit.advantages.filter((group) => group === null).length,
      additionalHistories: all.reduce((sum, { histories }) => sum + histories.length - 1, 0),
      clippedTurns: credit.clippedTurns,
      ...counts,
      ...collector.counts,
    },
    meanOverlongPenalty: overlong && overlong.bufferTokens > 0 ? average(penalties.flat()) : null,
  };
}

function penaltyOf({ histories }: ResolvedTrajectory, { overlong, maxCompletionTokens: most }: BatchOptions): number {
  return overlong && most ? overlongPenalty(sampledLength(histories), overlong, most) : 0;
}

interface Collector {
  readonly kept: (readonly TrainingSequence[])[];
  readonly counts: Pick<
    BatchCounts,
    'rerenderedSequences' | 'repeatedCompletions' | 'droppedSequences' | 'droppedTrajectories'
  >;
  /** `advantages`: [history][turn]. */
  readonly add: (
    histories: readonly (readonly CompletionRecord[])[],
    advantages: readonly (readonly number[])[],
  ) => void;
}

/** Collects the sequences of trajectories, none longer than `maxTokens` and no turn twice. */
function createCollector(maxTokens: number): Collector {
  const trained = new Set<CompletionRecord>();
  const kept: (readonly TrainingSequence[])[] = [];
  const counts = { rerenderedSequences: 0, repeatedCompletions: 0, droppedSequences: 0, droppedTrajectories: 0 };
  return {
    kept,
    counts,
    add: (histories, advantages) => {
      const newTurns = histories.flatMap((records, h) => {
        let isFirst = true;
        return records.flatMap((record, k): CreditedTurn[] => {
          if (trained.has(record)) {
            counts.repeatedCompletions += 1;
            return [];
          }
          trained.add(record);
          const turn = { record, advantage: advantages[h]![k]!, isFirst };
          isFirst = false;
          return [turn];
        });
      });
      const { sequences, rerendered } = buildSequences(newTurns);
      counts.rerenderedSequences += rerendered;
      const fitting = sequences.filter((sequence) => sequence.datum.tokenIds.length <= maxTokens);
      counts.droppedSequences += sequences.length - fitting.length;
      if (fitting.length > 0) kept.push(fitting);
      else if (sequences.length > 0) counts.droppedTrajectories += 1;
    },
  };
}
