/** `art purge`: the trash, listed or deleted for good. Layer 6. No server is needed. */
import { Command } from 'commander';
import { ConfigError } from '../core/errors.ts';
import { createAuditLog } from '../server/security/audit.ts';
import { listTrash, purge, type TrashItem } from '../server/store/trash.ts';
import { parseDuration } from './duration.ts';

interface PurgeOptions {
  readonly path: string;
  readonly project?: string;
  readonly olderThan?: number;
  readonly yes?: boolean;
}

/** Without `--yes` it only says what it would delete. */
export function createPurgeCommand(): Command {
  return new Command('purge')
    .description('Delete for good what was deleted: without --yes it is only listed.')
    .argument('[id]', 'one thing in the trash (default: all of it)')
    .option('--path <directory>', 'folder of all runs', '.art')
    .option('--project <project>', 'only the trash of this project')
    .option('--older-than <duration>', 'only what was deleted at least so long ago, as in 30d', parseDuration)
    .option('--yes', 'delete it; nothing can bring it back')
    .action(runPurge);
}

async function runPurge(id: string | undefined, options: PurgeOptions): Promise<void> {
  const { path, project, olderThan, yes } = options;
  if (id !== undefined && olderThan !== undefined) {
    throw new ConfigError('purge: takes either an id or --older-than, got both');
  }
  if (yes !== true) {
    const items = (await listTrash(path, project)).filter((item) => isChosen(item, id, olderThan ?? 0));
    console.log(items.length === 0 ? '(nothing in the trash)' : items.map(formatItem).join('\n'));
    if (items.length > 0) console.error('art: nothing was deleted; --yes deletes these for good');
    return;
  }
  const gone = await purge(path, project, id === undefined ? { olderThanMs: olderThan ?? 0 } : { id });
  const audit = createAuditLog(path);
  for (const item of gone) {
    const change = { what: 'trash.purge', target: `${item.project}/${item.name}`, before: item, after: null };
    await audit.append({ kind: 'local' }, change, null);
  }
  console.log(
    gone.length === 0 ? '(nothing in the trash)' : gone.map((item) => `gone: ${formatItem(item)}`).join('\n'),
  );
}

function isChosen(item: TrashItem, id: string | undefined, olderThanMs: number): boolean {
  return id === undefined ? Date.now() - Date.parse(item.deleted_at) >= olderThanMs : item.id === id;
}

function formatItem({ id, project, kind, name, deleted_at, deleted_by }: TrashItem): string {
  const by = deleted_by.kind === 'local' ? 'local' : `key ${deleted_by.name}`;
  return `${id}  ${kind} ${project}/${name}  deleted ${deleted_at.slice(0, 16)} by ${by}`;
}
