/**
 * Scores on disk, found by all that went into them. Layer 5.
 * One file an entry, `<sha256 of the request>.json`, written whole or not at all. An entry that does not check out is a miss.
 */
import { randomUUID } from 'node:crypto';
import { mkdir, readFile, rename, rm, writeFile } from 'node:fs/promises';
import { homedir } from 'node:os';
import { join } from 'node:path';
import { z } from 'zod';
import { canonicalJson } from '../core/json.ts';
import { sha256 } from './json.ts';
import type { JudgeScore } from './judge-reply.ts';

const entry = z.strictObject({
  format: z.literal(1),
  key: z.string(),
  scores: z.record(z.string(), z.strictObject({ score: z.number().min(0).max(1), explanation: z.string() })),
  /** SHA-256 of the canonical JSON of `scores`. */
  checksum: z.string(),
});

/** `agent-reinforcement-trainer/judge` in the user's cache folder. */
export function defaultCacheDirectory(): string {
  return join(process.env.XDG_CACHE_HOME ?? join(homedir(), '.cache'), 'agent-reinforcement-trainer', 'judge');
}

/** The scores of exactly these ids, or null. */
export async function readCached(
  directory: string,
  key: string,
  ids: readonly string[],
): Promise<Map<string, JudgeScore> | null> {
  let text: string;
  try {
    text = await readFile(join(directory, `${key}.json`), 'utf8');
  } catch {
    return null;
  }
  const parsed = entry.safeParse(parseOrNull(text));
  if (!parsed.success) return null;
  const { scores, checksum } = parsed.data;
  const isWhole = parsed.data.key === key && checksum === sha256(canonicalJson(scores));
  const isComplete = Object.keys(scores).length === ids.length && ids.every((id) => scores[id] !== undefined);
  return isWhole && isComplete ? new Map(Object.entries(scores)) : null;
}

/** Whether the entry is on disk; a folder that cannot be written fails no judging. */
export async function writeCached(
  directory: string,
  key: string,
  scores: ReadonlyMap<string, JudgeScore>,
): Promise<boolean> {
  const plain = Object.fromEntries(scores);
  const text = JSON.stringify({ format: 1, key, scores: plain, checksum: sha256(canonicalJson(plain)) });
  const temporary = join(directory, `${key}.${randomUUID()}.tmp`);
  try {
    await mkdir(directory, { recursive: true, mode: 0o700 });
    await writeFile(temporary, text, { mode: 0o600 });
    await rename(temporary, join(directory, `${key}.json`));
    return true;
  } catch {
    await rm(temporary, { force: true }).catch(() => undefined);
    return false;
  }
}

function parseOrNull(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}
