/** Where trackers that write files put them. Layer 6. */
import { ConfigError } from '../core/errors.ts';

export function checkDirectory(what: string, directory: unknown): void {
  if (typeof directory !== 'string' || directory === '') {
    throw new ConfigError(`${what}: directory must be a path, got ${JSON.stringify(directory)}`);
  }
}

/** A name as one folder of every file system: other characters than letters, digits, dots, dashes and underscores become `_`. */
export function toFolderName(name: string): string {
  const safe = name.replaceAll(/[^\w.-]/g, '_');
  return /^\.*$/.test(safe) ? `_${safe}` : safe;
}
