/**
 * `trajectories/<split>/<step>.jsonl`: what was rolled out, one trajectory a line. Layer 5.
 * Deterministic: no completion ids and no metric that a clock measured. Prompt ids are left out; they grow with the square of the turns.
 */
import { createHash } from 'node:crypto';
import { mkdir } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { readTextFile, toStorageError, writeFileAtomic } from '../../formats/atomic-files.ts';
import type { WireGroup, WireTrajectory } from '../../wire/training.ts';
import type { CompletionRecord, ServedModel } from '../inference/served-model.ts';
import type { StoragePolicy } from '../security/storage-policy.ts';
import { isMeasured } from './metric-files.ts';

export interface TrajectoryFileKey {
  readonly directory: string;
  readonly split: string;
  readonly step: number;
}

/** Writes the file, replacing one that an unfinished attempt at this step left. */
export async function writeTrajectories(key: TrajectoryFileKey, text: string): Promise<void> {
  const path = trajectoryPath(key);
  await mkdir(dirname(path), { recursive: true }).catch(async (error) => {
    throw await toStorageError(path, error);
  });
  await writeFileAtomic(path, [text]);
}

/** SHA-256 of what the file holds; null where there is none. */
export function hashData(text: string | null): string | null {
  return text === null ? null : createHash('sha256').update(text).digest('hex');
}

/** Adds to the file; content that it holds already is not added again. */
export async function addTrajectories(key: TrajectoryFileKey, text: string): Promise<void> {
  const present = (await readTextFile(trajectoryPath(key))) ?? '';
  if (text === '' || `\n${present}`.includes(`\n${text}`)) return;
  await writeTrajectories(key, present + text);
}

type TextSide = Pick<ServedModel, 'completions' | 'tokenizer'>;

/**
 * The lines of the groups, as far as the policy lets them be stored. A choice that the store does not hold (any more) is written with
 * `tokens: null`, one whose text redaction changes with `token_ids: null`.
 */
export function formatTrajectories(groups: readonly WireGroup[], model: TextSide, storage: StoragePolicy): string {
  const lines = groups.flatMap((group, groupIndex) => [
    ...group.trajectories.map((trajectory, trajectoryIndex) => ({
      group: groupIndex,
      trajectory: trajectoryIndex,
      ...(storage.isTextStored ? trajectoryLine(trajectory, model, storage) : numbersOf(trajectory)),
    })),
    { group: groupIndex, ...(storage.isTextStored ? groupLine(group, storage) : numbersOf(group)) },
  ]);
  return lines.map((line) => `${JSON.stringify(line)}\n`).join('');
}

/** What `store: 'none'` leaves: no text, and no names but those of metrics. */
function numbersOf(item: WireTrajectory | WireGroup): object {
  const metrics = stableMetrics(item.metrics);
  if (!('reward' in item)) return { exceptions: item.exceptions.length, metrics };
  return { reward: item.reward, ...turnRewardsOf(item), metrics };
}

function groupLine({ exceptions, metrics, metadata, logs }: WireGroup, { redact }: StoragePolicy): object {
  return {
    exceptions: redact(exceptions),
    metrics: stableMetrics(metrics),
    metadata: redact(metadata),
    logs: redact(logs),
  };
}

function trajectoryLine(trajectory: WireTrajectory, model: TextSide, storage: StoragePolicy): object {
  const { additional_histories: others } = trajectory;
  return {
    reward: trajectory.reward,
    ...turnRewardsOf(trajectory),
    metrics: stableMetrics(trajectory.metrics),
    metadata: storage.redact(trajectory.metadata),
    logs: storage.redact(trajectory.logs),
    ...historyLine(trajectory, model, storage),
    ...(others !== undefined && {
      additional_histories: others.map((history) => historyLine(history, model, storage)),
    }),
  };
}

function turnRewardsOf({ turn_rewards: rewards }: WireTrajectory): object {
  return rewards === undefined ? {} : { turn_rewards: rewards };
}

type WireHistory = Pick<WireTrajectory, 'entries' | 'tools'>;

function historyLine({ entries, tools }: WireHistory, model: TextSide, storage: StoragePolicy): object {
  return {
    ...(tools != null && { tools: storage.redact(tools) }),
    entries: entries.map((entry) => {
      const message = storage.redact(entry.message);
      if (!('choice' in entry)) return { message };
      const record = model.completions.get(entry.choice.completion_id, entry.choice.choice_index);
      return { message, tokens: record === undefined ? null : tokensLine(record, model, storage) };
    }),
  };
}

function tokensLine(record: CompletionRecord, { tokenizer }: TextSide, storage: StoragePolicy): object {
  return {
    policy_step: record.policyStep,
    temperature: record.temperature,
    finish_reason: record.finishReason,
    token_ids: storage.mayStoreTokens(() => tokenizer.decode(record.tokenIds)) ? record.tokenIds : null,
    logprobs: record.logprobs,
  };
}

function stableMetrics(metrics: Readonly<Record<string, number | boolean>>): Record<string, number | boolean> {
  return Object.fromEntries(Object.entries(metrics).filter(([name]) => !isMeasured(name)));
}

/** Where the file is; the split must be checked before. */
export function trajectoryPath({ directory, split, step }: TrajectoryFileKey): string {
  return join(directory, 'trajectories', split, `${String(step).padStart(4, '0')}.jsonl`);
}
