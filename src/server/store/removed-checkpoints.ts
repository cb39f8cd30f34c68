/**
 * `checkpoints/removed.jsonl`: manifests of checkpoints that were deleted or rolled back, one a line, written before they go. Layer 5.
 * Why: a key must train once although its checkpoint is gone, and a step number must never mean two policies.
 */
import { readFile, truncate } from 'node:fs/promises';
import { join } from 'node:path';
import { z } from 'zod';
import { CheckpointError } from '../../core/errors.ts';
import { appendFileAtomic, isMissing } from '../../formats/atomic-files.ts';
import { type CheckpointManifest, checkpointManifest } from './checkpoint-manifest.ts';

/** `rolledBack`: what the step taught is undone, so its key may train again; else it lives on in later steps. */
export const removalReasons = ['deleted', 'retention', 'rolledBack'] as const;
export type RemovalReason = (typeof removalReasons)[number];

const removedLine = z.strictObject({
  reason: z.enum(removalReasons),
  at: z.string(),
  manifest: checkpointManifest,
});

export interface RemovedCheckpoint {
  readonly reason: RemovalReason;
  readonly manifest: CheckpointManifest;
}

export interface RemovedCheckpoints {
  readonly list: () => readonly RemovedCheckpoint[];
  readonly add: (manifest: CheckpointManifest, reason: RemovalReason) => Promise<void>;
}

/** A last line without its end, which a killed process leaves, is cut off. Throws CheckpointError for any other that is no manifest. */
export async function openRemovedCheckpoints(checkpointsDirectory: string): Promise<RemovedCheckpoints> {
  const path = join(checkpointsDirectory, 'removed.jsonl');
  const removed = await readLines(path);
  return {
    list: () => removed,
    add: async (manifest, reason) => {
      await appendFileAtomic(path, `${JSON.stringify({ reason, at: new Date().toISOString(), manifest })}\n`);
      removed.push({ reason, manifest });
    },
  };
}

async function readLines(path: string): Promise<RemovedCheckpoint[]> {
  const bytes = await readFile(path).catch((error: unknown) => {
    if (isMissing(error)) return Buffer.alloc(0);
    throw error;
  });
  const wholeBytes = bytes.lastIndexOf(0x0a) + 1;
  if (wholeBytes < bytes.length) await truncate(path, wholeBytes);
  const lines = bytes.subarray(0, wholeBytes).toString('utf8').split('\n').slice(0, -1);
  return lines.map((line, index) => parseLine(line, `${path}:${index + 1}`));
}

function parseLine(line: string, where: string): RemovedCheckpoint {
  let json: unknown;
  try {
    json = JSON.parse(line);
  } catch (cause) {
    throw new CheckpointError(`${where}: must be JSON, got ${line.slice(0, 80)}`, { cause });
  }
  const parsed = removedLine.safeParse(json);
  if (!parsed.success) throw new CheckpointError(`${where}: ${z.prettifyError(parsed.error)}`);
  return parsed.data;
}
