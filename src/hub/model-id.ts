/**
 * What a user may write as a base model: a path of this machine, or an id of the hub. Layer 2. No network.
 * Ids have the form `org/name[@revision][:file.gguf]`. What could be both an id and a folder that exists is refused.
 */
import { homedir } from 'node:os';
import { isAbsolute, join, resolve } from 'node:path';
import { ConfigError } from '../core/errors.ts';
import { isPresent } from '../formats/atomic-files.ts';

export interface HubModelId {
  /** `org/name` */
  readonly repo: string;
  /** Branch, tag or commit. */
  readonly revision: string;
  /** One GGUF file of the repository; null: the safetensors model at its root. */
  readonly file: string | null;
}

export type ModelLocation =
  /** Absolute path of a folder or a .gguf file, which need not exist. */
  { readonly kind: 'path'; readonly path: string } | { readonly kind: 'hub'; readonly id: HubModelId };

const defaultRevision = 'main';
const namePattern = String.raw`[A-Za-z0-9_](?:[\w.-]*[A-Za-z0-9_])?`;
const idPattern = new RegExp(`^(${namePattern}/${namePattern})(?:@([^:@]+))?(?::(.+))?$`);
const commitPattern = /^[0-9a-f]{40}$/;

/** Tells path and hub id apart. Throws ConfigError if the text may be either, or is an id that cannot be. */
export async function locateModel(text: string): Promise<ModelLocation> {
  const match = idPattern.exec(text);
  const isBareId = match !== null && match[2] === undefined && match[3] === undefined;
  // `models/tiny.gguf` is a file, since an id names a file behind a colon.
  if (match === null || (isBareId && text.endsWith('.gguf'))) return { kind: 'path', path: toPath(text) };
  if (isBareId && (await isPresent(text))) {
    throw new ConfigError(
      `base model: must be either a path or an id of the hub, got ${text}, which is an id and also a folder here; ` +
        `write ./${text} for the folder, ${text}@${defaultRevision} for the hub`,
      { details: { param: 'base_model' } },
    );
  }
  const [, repo = '', revision = defaultRevision, file = null] = match;
  return { kind: 'hub', id: checkId({ repo, revision, file }, text) };
}

/** As the user would write it, with `revision` replaced by what it stands for. */
export function formatModelId(id: HubModelId): string {
  return `${id.repo}@${id.revision}${id.file === null ? '' : `:${id.file}`}`;
}

/** A full commit hash, whose content never changes. */
export function isCommit(revision: string): boolean {
  return commitPattern.test(revision);
}

/** Throws ConfigError unless a file of a repository stays inside the folder it is put into, whatever the platform. */
export function checkRelativePath(path: string, what: string): void {
  const parts = path.split(/[\\/]/);
  if (parts.some((part) => part === '' || part === '.' || part === '..' || /^[A-Za-z]:/.test(part))) {
    throw new ConfigError(`${what}: must be a relative path without '..', got ${JSON.stringify(path)}`);
  }
}

function checkId(id: HubModelId, text: string): HubModelId {
  const what = `base model ${text}`;
  if (id.repo.includes('--') || id.repo.includes('..')) {
    throw new ConfigError(`${what}: an id of the hub must not hold '--' or '..', got ${id.repo}`);
  }
  checkRelativePath(id.revision, `${what}: revision`);
  if (!/^[\w./+-]+$/.test(id.revision)) {
    throw new ConfigError(`${what}: revision must be a branch, tag or commit, got ${JSON.stringify(id.revision)}`);
  }
  if (id.file !== null) {
    checkRelativePath(id.file, `${what}: file`);
    if (!id.file.endsWith('.gguf')) {
      throw new ConfigError(`${what}: the file behind ':' must be a .gguf file, got ${JSON.stringify(id.file)}`);
    }
  }
  return id;
}

function toPath(text: string): string {
  if (text === '~' || text.startsWith('~/')) return join(homedir(), text.slice(1));
  return isAbsolute(text) ? text : resolve(text);
}
