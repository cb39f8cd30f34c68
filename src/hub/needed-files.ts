/**
 * Which files of a repository a model needs. Layer 2.
 * A safetensors model: configuration, tokenizer, chat template, weights and their index, at the root. A GGUF model: that one file.
 * Left out: weights in pickles (`pytorch_model.bin`), which run code when they are read.
 */
import { join } from 'node:path';
import { ConfigError } from '../core/errors.ts';
import { isPresent, readJsonFile, readTextFile } from '../formats/atomic-files.ts';
import { formatModelId, type HubModelId } from './model-id.ts';

const requiredTexts = ['config.json', 'tokenizer.json'];
const optionalTexts = ['generation_config.json', 'tokenizer_config.json', 'chat_template.jinja'];
const weightsFile = 'model.safetensors';
const indexFile = 'model.safetensors.index.json';

/** Files to fetch first: small, and the index names the rest. Throws ConfigError if the repository has no model of a kind that is read. */
export function chooseFirstFiles(id: HubModelId, paths: readonly string[]): string[] {
  const what = `base model ${formatModelId(id)}`;
  const ggufs = paths.filter((path) => path.endsWith('.gguf'));
  if (id.file !== null) {
    if (paths.includes(id.file)) return [id.file];
    throw new ConfigError(`${what}: must be one of ${list(ggufs)}, got ${id.file}`);
  }
  const weights = [weightsFile, indexFile].find((path) => paths.includes(path));
  if (weights === undefined && ggufs.length > 0) {
    throw new ConfigError(
      `${what}: has GGUF files only, so one must be named, as in ${id.repo}:${ggufs[0]}; it has ${list(ggufs)}`,
    );
  }
  const missing = requiredTexts.filter((path) => !paths.includes(path));
  if (weights === undefined) missing.push(weightsFile);
  if (missing.length > 0) {
    throw new ConfigError(`${what}: must have ${missing.join(', ')}; its files are ${list(paths)}`);
  }
  return [
    ...requiredTexts,
    ...optionalTexts.filter((path) => paths.includes(path)),
    ...(weights === indexFile ? [indexFile] : []),
  ];
}

/** The large files, once the first ones lie in `snapshot`. Throws ConfigError or DataError on an index that names what is not there. */
export async function chooseWeightFiles(
  id: HubModelId,
  snapshot: string,
  paths: readonly string[] | null,
): Promise<string[]> {
  if (id.file !== null) return [];
  const isSharded = paths === null ? !(await isPresent(join(snapshot, weightsFile))) : !paths.includes(weightsFile);
  if (!isSharded) return [weightsFile];
  const path = join(snapshot, indexFile);
  const map = ((await readJsonFile(path)) as { weight_map?: Readonly<Record<string, unknown>> } | null)?.weight_map;
  const shards = [...new Set(Object.values(map ?? {}))].filter((shard) => typeof shard === 'string');
  if (shards.length === 0) throw new ConfigError(`${path}: must name shards in weight_map, got none`);
  const absent = paths === null ? undefined : shards.find((shard) => !paths.includes(shard));
  if (absent !== undefined) {
    throw new ConfigError(
      `base model ${formatModelId(id)}: every shard of ${indexFile} must be a file, missing ${absent}`,
    );
  }
  return shards.sort();
}

/** Names of required files that a snapshot lacks, as far as the files alone can tell. */
export async function listMissing(id: HubModelId, snapshot: string): Promise<string[]> {
  const isMissing = async (path: string): Promise<boolean> => !(await isPresent(join(snapshot, path)));
  if (id.file !== null) return (await isMissing(id.file)) ? [id.file] : [];
  const hasIndex = (await readTextFile(join(snapshot, indexFile))) !== null;
  const weights = hasIndex ? await chooseWeightFiles(id, snapshot, null) : [weightsFile];
  const missing: string[] = [];
  for (const path of [...requiredTexts, ...weights]) if (await isMissing(path)) missing.push(path);
  return missing;
}

function list(paths: readonly string[]): string {
  const shown = paths.slice(0, 12).join(', ');
  return paths.length > 12 ? `${shown} and ${paths.length - 12} more` : shown || 'none';
}
