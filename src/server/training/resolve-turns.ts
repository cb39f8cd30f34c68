/** Looks the sampled turns of trajectories up. Layer 5. Every rule of the request that needs the turns is checked here, before anything trains. */
import { DataError } from '../../core/errors.ts';
import type { WireGroup, WireTrajectory } from '../../wire/training.ts';
import type { CompletionRecord, CompletionStore } from '../inference/served-model.ts';

export interface ResolvedTrajectory {
  readonly reward: number;
  /** Sampled turns, [history][turn]: of the main history, then of the additional ones. */
  readonly histories: readonly (readonly CompletionRecord[])[];
  /** In the same shape; null = none. */
  readonly turnRewards: readonly (readonly number[])[] | null;
}

type Completions = Pick<CompletionStore, 'get'>;

/**
 * The turns of all groups, also of those that are skipped later. Throws DataError for a reward that is not finite, a trajectory without
 * choices, a completion that the store does not hold, and turn rewards that are not one a choice or that a part of a group lacks.
 */
export function resolveTurns(groups: readonly WireGroup[], completions: Completions): ResolvedTrajectory[][] {
  // One object per sampled turn, so that identity tells repeats apart even if the store copies.
  const known = new Map<string, CompletionRecord>();
  return groups.map((group, groupIndex) => {
    const resolved = group.trajectories.map((trajectory, index) =>
      resolveTrajectory(trajectory, `groups[${groupIndex}].trajectories[${index}]`, completions, known),
    );
    const without = resolved.findIndex(({ turnRewards }) => turnRewards === null);
    if (without >= 0 && resolved.some(({ turnRewards }) => turnRewards !== null)) {
      throw new DataError(
        `groups[${groupIndex}]: all trajectories of a group must have turn rewards, or none, got none in trajectories[${without}]`,
      );
    }
    return resolved;
  });
}

function resolveTrajectory(
  trajectory: WireTrajectory,
  where: string,
  completions: Completions,
  known: Map<string, CompletionRecord>,
): ResolvedTrajectory {
  const { reward, entries, additional_histories: additional = [] } = trajectory;
  if (!Number.isFinite(reward)) throw new DataError(`${where}.reward: must be a finite number, got ${reward}`);
  const histories = [
    resolveEntries(entries, where, completions, known),
    ...additional.map((history, index) =>
      resolveEntries(history.entries, `${where}.additional_histories[${index}]`, completions, known),
    ),
  ];
  if (histories.every((turns) => turns.length === 0)) {
    throw new DataError(
      `${where}: must hold at least one choice that the policy sampled, got ${entries.length} plain messages. ` +
        'Only choices are trained: push the choice that the chat completion returned, not a copy of its message; ' +
        'a rollout that ended before its first turn belongs into the exceptions of its group',
    );
  }
  return { reward, histories, turnRewards: splitTurnRewards(trajectory.turn_rewards, histories, where) };
}

function splitTurnRewards(
  turnRewards: readonly number[] | undefined,
  histories: readonly (readonly CompletionRecord[])[],
  where: string,
): number[][] | null {
  if (turnRewards === undefined || turnRewards.length === 0) return null;
  const choices = histories.flat().length;
  if (turnRewards.length !== choices) {
    throw new DataError(
      `${where}.turn_rewards: must be one for each of ${choices} choices of all histories, got ${turnRewards.length}`,
    );
  }
  const odd = turnRewards.find((reward) => !Number.isFinite(reward));
  if (odd !== undefined) throw new DataError(`${where}.turn_rewards: must be finite numbers, got ${odd}`);
  let taken = 0;
  return histories.map(({ length }) => {
    taken += length;
    return turnRewards.slice(taken - length, taken);
  });
}

function resolveEntries(
  entries: WireTrajectory['entries'],
  where: string,
  completions: Completions,
  known: Map<string, CompletionRecord>,
): CompletionRecord[] {
  const turns: CompletionRecord[] = [];
  for (const [entryIndex, entry] of entries.entries()) {
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
