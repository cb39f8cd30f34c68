/**
 * The base model of a run as files of this machine: a path as it is, a hub id fetched first. Layer 5.
 * A run keeps the commit that it began with, so a branch that moves on does not change it.
 */
import { createHash } from 'node:crypto';
import { readdir } from 'node:fs/promises';
import { join } from 'node:path';
import { ConfigError, messageOf } from '../../core/errors.ts';
import { hashFile } from '../../formats/file-facts.ts';
import { isGgufPath } from '../../formats/model-source.ts';
import { formatModelId, locateModel } from '../../hub/model-id.ts';
import type { HubOptions } from '../../hub/options.ts';
import { fetchSnapshot } from '../../hub/snapshot.ts';
import { formatValue } from '../../wire/errors.ts';

export interface BaseModel {
  /** Folder or .gguf file. */
  readonly path: string;
  /** Commit of the hub; null for a path. */
  readonly commit: string | null;
  /** Of the weights that checkpoints build on. */
  readonly sha256: string;
}

/** As registrations store it: an absolute path, or a hub id with its revision. Throws ConfigError on ambiguous text. */
export async function normalizeBaseModel(text: string): Promise<string> {
  const location = await locateModel(text);
  return location.kind === 'path' ? location.path : formatModelId(location.id);
}

/** `fetchBaseModel`, and what its weights are. Throws ConfigError if there are none. */
export async function findBaseModel(text: string, commit: string | null, hub: HubOptions): Promise<BaseModel> {
  const files = await fetchBaseModel(text, commit, hub);
  return { ...files, sha256: await hashBaseModel(files.path) };
}

/** Where a base model lies; one of the hub is fetched if need be, at `commit` in place of its revision. Throws as `fetchSnapshot` does. */
async function fetchBaseModel(
  text: string,
  commit: string | null,
  hub: HubOptions,
): Promise<Omit<BaseModel, 'sha256'>> {
  const location = await locateModel(text);
  if (location.kind === 'path') return { path: location.path, commit: null };
  return fetchSnapshot({ ...location.id, revision: commit ?? location.id.revision }, hub);
}

/**
 * SHA-256 of the weights that checkpoints build on: of the .gguf file or model.safetensors, or of the sorted `name hash` lines of a
 * sharded model. Throws ConfigError if there is none.
 */
export async function hashBaseModel(path: string): Promise<string> {
  if (isGgufPath(path)) return hashWeights(path);
  const all = await readdir(path).catch((cause: unknown) => {
    throw noBaseModel('a folder or .gguf file that can be read', path, cause);
  });
  const names = all.filter((name) => name.endsWith('.safetensors')).sort();
  if (names.length === 0) {
    throw noBaseModel('a folder that holds model.safetensors (a .gguf file is named itself)', path);
  }
  if (names.length === 1) return hashWeights(join(path, names[0]!));
  const lines: string[] = [];
  for (const name of names) lines.push(`${name} ${await hashWeights(join(path, name))}\n`);
  return createHash('sha256').update(lines.join('')).digest('hex');
}

async function hashWeights(path: string): Promise<string> {
  try {
    return await hashFile(path);
  } catch (cause) {
    throw new ConfigError(`base model: ${path} must be a file that can be read, got ${messageOf(cause)}`, {
      cause,
      details: { param: 'base_model' },
    });
  }
}

function noBaseModel(rule: string, path: string, cause?: unknown): ConfigError {
  return new ConfigError(
    `base model: must be ${rule}, got ${formatValue(path)}; ids of the hub have the form org/name`,
    {
      ...(cause !== undefined && { cause }),
      details: { param: 'base_model' },
    },
  );
}
