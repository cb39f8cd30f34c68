/** `art keys`: API keys of the servers that keep their runs in a folder. Layer 6. A running server notices within a second. */
import { Command, InvalidArgumentError } from 'commander';
import { createAuditLog } from '../server/security/audit.ts';
import { type Scope, scopes } from '../server/security/caller.ts';
import {
  createKey,
  defaultKeyLimits,
  describeKey,
  listKeys,
  revokeKey,
  type StoredKey,
} from '../server/security/keys.ts';
import { parseDuration } from './duration.ts';

interface CreateOptions {
  readonly path: string;
  readonly name: string;
  readonly scopes: readonly Scope[];
  readonly expires?: number;
  readonly requestsPerMinute?: number;
  readonly maxConcurrent?: number;
}

const pathFlags = ['--path <directory>', 'folder of all runs', '.art'] as const;

/** Every change is in the audit log. */
export function createKeysCommand(): Command {
  return new Command('keys')
    .description('API keys of the server. Once there is one, every request needs one.')
    .addCommand(
      new Command('create')
        .description('Make a key and show it, once: only its hash is kept.')
        .requiredOption('--name <name>', 'who or what uses it')
        .option('--scopes <scopes>', `separated by commas: ${scopes.join(', ')}`, parseScopes, ['infer'])
        .option('--expires <duration>', 'how long it is good, as in 12h, 30d (default: for ever)', parseDuration)
        .option(
          '--requests-per-minute <count>',
          `more are answered 429 (default: ${defaultKeyLimits.requestsPerMinute})`,
          parseCount,
        )
        .option(
          '--max-concurrent <count>',
          `requests at the same time (default: ${defaultKeyLimits.maxConcurrent})`,
          parseCount,
        )
        .option(...pathFlags)
        .action(create),
    )
    .addCommand(
      new Command('list')
        .description('Print all keys, those that are revoked too; never the keys themselves.')
        .option(...pathFlags)
        .action(async ({ path }: { readonly path: string }) => console.log(formatKeys(await listKeys(path)))),
    )
    .addCommand(
      new Command('revoke')
        .description('Make a key worthless.')
        .argument('<key>', 'its name or id')
        .option(...pathFlags)
        .action(revoke),
    );
}

async function create(options: CreateOptions): Promise<void> {
  const { path, name, expires, requestsPerMinute, maxConcurrent } = options;
  const { key, stored } = await createKey(path, {
    name,
    scopes: options.scopes,
    ...(expires !== undefined && { expiresAt: new Date(Date.now() + expires) }),
    ...(requestsPerMinute !== undefined && { requestsPerMinute }),
    ...(maxConcurrent !== undefined && { maxConcurrent }),
  });
  await createAuditLog(path).append(
    { kind: 'local' },
    { what: 'key.create', target: `${stored.name} (${stored.id})`, after: describeKey(stored) },
    null,
  );
  console.error(`art: key ${stored.name} (${stored.id}), scopes ${stored.scopes.join(', ')}; it is not shown again`);
  console.log(key);
}

async function revoke(idOrName: string, { path }: { readonly path: string }): Promise<void> {
  const stored = await revokeKey(path, idOrName);
  const change = {
    what: 'key.revoke',
    target: `${stored.name} (${stored.id})`,
    before: { revoked_at: null },
    after: { revoked_at: stored.revoked_at },
  };
  await createAuditLog(path).append({ kind: 'local' }, change, null);
  console.log(`${stored.name} (${stored.id}) is revoked`);
}

/** One line a key. */
export function formatKeys(keys: readonly StoredKey[], now: number = Date.now()): string {
  if (keys.length === 0) return '(no keys: the server is open to this computer)';
  const rows = keys.map((key) => [
    key.id,
    key.name,
    key.scopes.join(','),
    key.created_at.slice(0, 10),
    stateOf(key, now),
  ]);
  const table = [['id', 'name', 'scopes', 'created', 'state'], ...rows];
  const widths = [0, 1, 2, 3].map((column) => Math.max(...table.map((row) => row[column]?.length ?? 0)));
  return table.map((row) => row.map((cell, column) => cell.padEnd(widths[column] ?? 0)).join('  ')).join('\n');
}

function stateOf({ revoked_at, expires_at }: StoredKey, now: number): string {
  if (revoked_at !== null) return `revoked ${revoked_at.slice(0, 16)}`;
  if (expires_at === null) return 'good';
  return `${Date.parse(expires_at) > now ? 'good until' : 'expired'} ${expires_at.slice(0, 16)}`;
}

function parseScopes(text: string): Scope[] {
  return text.split(',').map((name) => {
    const scope = scopes.find((candidate) => candidate === name.trim());
    if (scope === undefined) throw new InvalidArgumentError(`must be some of ${scopes.join(', ')}, got ${name}.`);
    return scope;
  });
}

function parseCount(text: string): number {
  if (!/^[1-9]\d{0,8}$/.test(text)) throw new InvalidArgumentError('must be a whole number from 1.');
  return Number(text);
}
