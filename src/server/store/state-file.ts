/** `state.json` of a run: a JSON object that users' programs keep with it, read and replaced whole. Layer 5. */
import { createHash } from 'node:crypto';
import { join } from 'node:path';
import { DataError } from '../../core/errors.ts';
import { isJsonObject } from '../../core/json.ts';
import { formatJson, isPresent, readJsonFile, writeFileAtomic } from '../../formats/atomic-files.ts';
import { refuse } from '../../wire/errors.ts';
import { maxStateBytes, type RunState, runState } from '../../wire/state.ts';

/** `{}` where nothing was written. Throws DataError if the file is damaged. */
export async function readState(runDirectory: string): Promise<RunState> {
  const path = join(runDirectory, 'state.json');
  if (!(await isPresent(path))) return {};
  const parsed = runState.safeParse(await readJsonFile(path));
  if (!parsed.success) throw new DataError(`${path}: must be a JSON object, got something else`);
  return parsed.data;
}

/** Replaces the state; a reader, and a crash, sees the old one or the new one. Throws ApiError 413 if it is too large. */
export async function writeState(runDirectory: string, state: RunState): Promise<{ readonly sha256: string }> {
  const text = formatJson(state);
  const bytes = Buffer.byteLength(JSON.stringify(state));
  if (bytes > maxStateBytes) {
    throw refuse(413, 'state_too_large', `state: must have at most ${maxStateBytes} bytes as JSON, got ${bytes}`);
  }
  await writeFileAtomic(join(runDirectory, 'state.json'), [text]);
  return { sha256: createHash('sha256').update(text).digest('hex') };
}

/** Objects are merged at every depth; everything else takes the place of what was there. */
export function mergeStates(state: RunState, patch: RunState): RunState {
  // Built from entries, so that a key like __proto__ is a key like any other.
  const merged = new Map(Object.entries(state));
  for (const [key, value] of Object.entries(patch)) {
    const old = merged.get(key);
    merged.set(key, isJsonObject(old) && isJsonObject(value) ? mergeStates(old, value) : value);
  }
  return Object.fromEntries(merged);
}
