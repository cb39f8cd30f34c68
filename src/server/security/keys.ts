/**
 * API keys: `<root>/keys.json`, mode 0600. Layer 5.
 * A key is 256 random bits, so its SHA-256 is enough: nothing that can be guessed stands behind the hash, and a slow hash (bcrypt,
 * argon2) would only slow every request. The file never holds a key. Once it holds any entry, revoked ones too, the server wants a key.
 */
import { createHash, randomBytes, timingSafeEqual } from 'node:crypto';
import { open, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { z } from 'zod';
import { ConfigError } from '../../core/errors.ts';
import { formatJson, isMissing, readJsonFile, readTextFile, replaceFileAtomic } from '../../formats/atomic-files.ts';
import { withFileLock } from '../store/file-lock.ts';
import { type Scope, scopes } from './caller.ts';

const storedKey = z.strictObject({
  id: z.string().regex(/^[0-9a-f]{12}$/),
  name: z.string(),
  scopes: z.array(z.enum(scopes)).min(1),
  sha256: z.string().regex(/^[0-9a-f]{64}$/),
  created_at: z.iso.datetime(),
  /** Null: never. */
  expires_at: z.iso.datetime().nullable(),
  /** Null: it is good. */
  revoked_at: z.iso.datetime().nullable(),
  requests_per_minute: z.int().min(1),
  max_concurrent: z.int().min(1),
});
export type StoredKey = z.infer<typeof storedKey>;

const keyFile = z.strictObject({ format_version: z.literal(1), keys: z.array(storedKey) });

/** A gather of a thousand rollouts fits; a runaway loop does not take the server from everybody else. */
export const defaultKeyLimits = { requestsPerMinute: 12_000, maxConcurrent: 1_024 } as const;

export interface NewKey {
  /** For people: who or what uses it. Letters, digits, dots, dashes, underscores; unique among the keys that are good. */
  readonly name: string;
  readonly scopes: readonly Scope[];
  readonly expiresAt?: Date;
  readonly requestsPerMinute?: number;
  readonly maxConcurrent?: number;
}

export interface CreatedKey {
  /** Shown once; only its hash is kept. */
  readonly key: string;
  readonly stored: StoredKey;
}

export interface KeyStore {
  /** Whether requests need a key. Stays true while the server runs, whatever becomes of the file. */
  readonly isRequired: () => boolean;
  /** The entry of a key that is good; undefined for any other text. Takes the same time wherever the texts differ. */
  readonly find: (key: string) => StoredKey | undefined;
  /** Whether the key of this entry is neither revoked nor expired. */
  readonly isGood: (id: string) => boolean;
  /** Reads the file again if it changed; looks at most once a second. Never throws: a damaged file leaves the keys as they were. */
  readonly refresh: () => Promise<void>;
}

const keyForm = /^art_([0-9a-f]{12})_[A-Za-z0-9_-]{43}$/;
const refreshMs = 1_000;

export function keysPath(root: string): string {
  return join(root, 'keys.json');
}

/** Adds a key. Throws ConfigError on a bad name, scope or limit, or a name that is taken. */
export async function createKey(root: string, init: NewKey): Promise<CreatedKey> {
  checkNewKey(init);
  const id = randomBytes(6).toString('hex');
  const key = `art_${id}_${randomBytes(32).toString('base64url')}`;
  const stored: StoredKey = {
    id,
    name: init.name,
    scopes: scopes.filter((scope) => init.scopes.includes(scope)),
    sha256: hashKey(key).toString('hex'),
    created_at: new Date().toISOString(),
    expires_at: init.expiresAt?.toISOString() ?? null,
    revoked_at: null,
    requests_per_minute: init.requestsPerMinute ?? defaultKeyLimits.requestsPerMinute,
    max_concurrent: init.maxConcurrent ?? defaultKeyLimits.maxConcurrent,
  };
  await changeKeys(root, (keys) => {
    if (keys.some((other) => other.name === init.name && isGood(other, Date.now()))) {
      throw new ConfigError(`keys: a name must be free, got ${init.name}; revoke that key first or take another name`);
    }
    return [...keys, stored];
  });
  return { key, stored };
}

/** All entries, revoked and expired ones too, oldest first. Throws ConfigError if the file is damaged. */
export async function listKeys(root: string): Promise<readonly StoredKey[]> {
  const path = keysPath(root);
  if ((await readTextFile(path)) === null) return [];
  const parsed = keyFile.safeParse(await readJsonFile(path));
  if (!parsed.success) throw new ConfigError(`${path}: ${z.prettifyError(parsed.error)}`);
  return parsed.data.keys;
}

/** Revokes a key by id or name; the entry stays, so that its uses in the audit log keep a name. Throws ConfigError if there is none. */
export async function revokeKey(root: string, idOrName: string): Promise<StoredKey> {
  let revoked: StoredKey | undefined;
  await changeKeys(root, (keys) => {
    const matches = (key: StoredKey): boolean => key.id === idOrName || key.name === idOrName;
    const found = keys.find((key) => matches(key) && key.revoked_at === null);
    if (found === undefined) {
      const good = keys.filter((key) => key.revoked_at === null).map((key) => `${key.name} (${key.id})`);
      throw new ConfigError(`keys: must be one of ${good.join(', ') || 'none'}, got ${JSON.stringify(idOrName)}`);
    }
    const entry: StoredKey = { ...found, revoked_at: new Date().toISOString() };
    revoked = entry;
    return keys.map((key) => (key === found ? entry : key));
  });
  return revoked!;
}

/** The keys of a folder as a running server sees them. Throws ConfigError if the file is damaged. */
export async function openKeys(root: string, onWarning: (message: string) => void): Promise<KeyStore> {
  const path = keysPath(root);
  let mark = await markOf(path);
  let keys = byId(await listKeys(root));
  let isRequired = keys.size > 0;
  let checkedAt = performance.now();
  let refreshing: Promise<void> | null = null;
  const read = async (): Promise<void> => {
    try {
      const newMark = await markOf(path);
      if (newMark === mark) return;
      keys = byId(await listKeys(root));
      mark = newMark;
      isRequired ||= keys.size > 0;
    } catch (error) {
      onWarning(`${path}: could not be read again, the keys stay as they were: ${String(error)}`);
    }
  };
  return {
    isRequired: () => isRequired,
    find: (key) => findKey(keys, key, Date.now()),
    isGood: (id) => {
      const entry = keys.get(id);
      return entry !== undefined && isGood(entry, Date.now());
    },
    refresh: async () => {
      if (refreshing === null && performance.now() - checkedAt >= refreshMs) {
        refreshing = read().finally(() => {
          checkedAt = performance.now();
          refreshing = null;
        });
      }
      await refreshing;
    },
  };
}

/** An entry as people and the audit log may see it. */
export function describeKey(key: StoredKey): Omit<StoredKey, 'sha256'> {
  const { sha256: _, ...rest } = key;
  return rest;
}

function isGood(key: StoredKey, now: number): boolean {
  return key.revoked_at === null && (key.expires_at === null || Date.parse(key.expires_at) > now);
}

/** The id is no secret, so the entry may be looked up by it; the hashes are compared in constant time, also where there is no entry. */
function findKey(keys: ReadonlyMap<string, StoredKey>, key: string, now: number): StoredKey | undefined {
  const id = keyForm.exec(key)?.[1];
  const entry = id === undefined ? undefined : keys.get(id);
  const expected = Buffer.from(entry?.sha256 ?? '0'.repeat(64), 'hex');
  const isEqual = timingSafeEqual(hashKey(key), expected);
  return entry !== undefined && isEqual && isGood(entry, now) ? entry : undefined;
}

function hashKey(key: string): Buffer {
  return createHash('sha256').update(key).digest();
}

function byId(keys: readonly StoredKey[]): ReadonlyMap<string, StoredKey> {
  return new Map(keys.map((key) => [key.id, key]));
}

/** Differs whenever the file was replaced: a rename brings a new inode, and an edit in place a new time or size. */
async function markOf(path: string): Promise<string> {
  try {
    const { ino, size, mtimeNs } = await stat(path, { bigint: true });
    return `${ino} ${size} ${mtimeNs}`;
  } catch (error) {
    if (isMissing(error)) return 'none';
    throw error;
  }
}

async function changeKeys(root: string, change: (keys: readonly StoredKey[]) => readonly StoredKey[]): Promise<void> {
  const path = keysPath(root);
  await withFileLock(path, async () => {
    const text = formatJson({ format_version: 1, keys: change(await listKeys(root)) });
    await replaceFileAtomic(path, async (temporary) => {
      const file = await open(temporary, 'wx', 0o600);
      try {
        await file.writeFile(text);
        await file.sync();
      } finally {
        await file.close();
      }
    });
  });
}

function checkNewKey(init: NewKey): void {
  if (!/^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$/.test(init.name)) {
    throw new ConfigError(
      `keys: a name must be 1–100 letters, digits, dots, dashes or underscores, got ${JSON.stringify(init.name)}`,
    );
  }
  const wrong = init.scopes.filter((scope) => !scopes.includes(scope));
  if (init.scopes.length === 0 || wrong.length > 0) {
    throw new ConfigError(`keys: scopes must be some of ${scopes.join(', ')}, got ${wrong.join(', ') || 'none'}`);
  }
  if (init.expiresAt !== undefined && !(init.expiresAt.getTime() > Date.now())) {
    throw new ConfigError(`keys: expiry must be a time to come, got ${String(init.expiresAt)}`);
  }
  for (const name of ['requestsPerMinute', 'maxConcurrent'] as const) {
    const value = init[name];
    if (value !== undefined && !(Number.isSafeInteger(value) && value >= 1)) {
      throw new ConfigError(`keys: ${name} must be an integer ≥ 1, got ${value}`);
    }
  }
}
