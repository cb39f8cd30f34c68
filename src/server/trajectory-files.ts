/**
 * `trajectories/<split>/<step>.jsonl`: what was rolled out, one trajectory a line. Layer 5.
 * Deterministic: no completion ids and no metric that a clock measured. Prompt ids are left out; they grow with the square of the turns.
 */
import { mkdir } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { readTextFile, toStorageError, writeFileAtomic } from '../formats/atomic-files.ts';
import type { WireGroup, WireTrajectory } from '../wire/training.ts';
import { isMeasured } from './metric-files.ts';
import type { CompletionStore } from './served-model.ts';

export interface TrajectoryFileKey {
  readonly directory: string;
  readonly split: string;
  readonly step: number;
}

/** Writes the file, replacing one that an unfinished attempt at this step left. */
export async function writeTrajectories(key: TrajectoryFileKey, text: string): Promise<void> {
  const path = pathOf(key);
  await mkdir(dirname(path), { recursive: true }).catch(async (error) => {
    throw await toStorageError(path, error);
  });
  await writeFileAtomic(path, [text]);
}

/** Adds to the file; content that it holds already is not added again. */
export async function addTrajectories(key: TrajectoryFileKey, text: string): Promise<void> {
  const present = (await readTextFile(pathOf(key))) ?? '';
  if (text === '' || `\n${present}`.includes(`\n${text}`)) return;
  await writeTrajectories(key, present + text);
}

/** The lines of the groups. A choice that the store does not hold (any more) is written with `tokens: null`. */
export function formatTrajectories(groups: readonly WireGroup[], completions: Pick<CompletionStore, 'get'>): string {
  const lines = groups.flatMap((group, groupIndex) => [
    ...group.trajectories.map((trajectory, trajectoryIndex) => ({
      group: groupIndex,
      trajectory: trajectoryIndex,
      ...trajectoryLine(trajectory, completions),
    })),
    {
      group: groupIndex,
      exceptions: group.exceptions,
      metrics: stableMetrics(group.metrics),
      metadata: group.metadata,
      logs: group.logs,
    },
  ]);
  return lines.map((line) => `${JSON.stringify(line)}\n`).join('');
}

function trajectoryLine(trajectory: WireTrajectory, completions: Pick<CompletionStore, 'get'>): object {
  return {
    reward: trajectory.reward,
    metrics: stableMetrics(trajectory.metrics),
    metadata: trajectory.metadata,
    logs: trajectory.logs,
    entries: trajectory.entries.map((entry) => {
      if (!('choice' in entry)) return { message: entry.message };
      const record = completions.get(entry.choice.completion_id, entry.choice.choice_index);
      return {
        message: entry.message,
        tokens:
          record === undefined
            ? null
            : {
                policy_step: record.policyStep,
                temperature: record.temperature,
                finish_reason: record.finishReason,
                token_ids: record.tokenIds,
                logprobs: record.logprobs,
              },
      };
    }),
  };
}

function stableMetrics(metrics: Readonly<Record<string, number | boolean>>): Record<string, number | boolean> {
  return Object.fromEntries(Object.entries(metrics).filter(([name]) => !isMeasured(name)));
}

function pathOf({ directory, split, step }: TrajectoryFileKey): string {
  return join(directory, 'trajectories', split, `${String(step).padStart(4, '0')}.jsonl`);
}
