/**
 * How much memory this process and its children may still take. Layer 4.
 * Linux: what the kernel calls available, and what the control groups of this process leave (versions 1 and 2; file caches that can be
 * dropped do not count as used). Elsewhere the system does not tell, so that only the memory of the whole machine is a limit.
 */
import { readFile } from 'node:fs/promises';
import { totalmem } from 'node:os';
import { dirname, join } from 'node:path';

export interface AvailableMemory {
  readonly bytes: number;
  /** What sets the limit, for messages. */
  readonly limit: string;
}

/** `root` is the folder that holds `proc` and `sys`. */
export async function readAvailableMemory(root = '/'): Promise<AvailableMemory> {
  const meminfo = await readOptional(join(root, 'proc/meminfo'));
  const kilobytes = Number(/^MemAvailable:\s+(\d+) kB$/m.exec(meminfo)?.[1]);
  const machine = Number.isFinite(kilobytes)
    ? { bytes: kilobytes * 1024, limit: 'what this computer has left' }
    : { bytes: totalmem(), limit: 'the memory of this computer' };
  const groups = await Promise.all((await groupFolders(root)).map(readGroup));
  return [machine, ...groups].reduce((least, next) => (next.bytes < least.bytes ? next : least));
}

interface GroupFiles {
  readonly folder: string;
  readonly limit: string;
  readonly usage: string;
  /** Key in memory.stat of file caches that nothing used lately. */
  readonly droppable: string;
}

const version1 = { limit: 'memory.limit_in_bytes', usage: 'memory.usage_in_bytes', droppable: 'total_inactive_file' };
const version2 = { limit: 'memory.max', usage: 'memory.current', droppable: 'inactive_file' };

/** The groups of this process and all that hold them: each may have a limit. */
async function groupFolders(root: string): Promise<GroupFiles[]> {
  const lines = (await readOptional(join(root, 'proc/self/cgroup'))).split('\n');
  return lines.flatMap((line) => {
    const [, controllers = '', ...rest] = line.split(':');
    const path = rest.join(':');
    if (path === '') return [];
    if (controllers === '')
      return withParents(path).map((part) => ({ folder: join(root, 'sys/fs/cgroup', part), ...version2 }));
    if (!controllers.split(',').includes('memory')) return [];
    return withParents(path).map((part) => ({ folder: join(root, 'sys/fs/cgroup/memory', part), ...version1 }));
  });
}

/** A group is not seen under its own path from inside a container: then its files stand at the top, which is among the parents. */
function withParents(path: string): string[] {
  const parent = dirname(path);
  return parent === path ? [path] : [path, ...withParents(parent)];
}

async function readGroup({ folder, limit, usage, droppable }: GroupFiles): Promise<AvailableMemory> {
  const max = Number((await readOptional(join(folder, limit))).trim() || Number.NaN);
  const used = Number((await readOptional(join(folder, usage))).trim() || Number.NaN);
  if (!Number.isFinite(max) || !Number.isFinite(used)) return { bytes: Number.POSITIVE_INFINITY, limit: folder };
  const stat = await readOptional(join(folder, 'memory.stat'));
  const cached = Number(new RegExp(`^${droppable} (\\d+)$`, 'm').exec(stat)?.[1] ?? 0);
  return {
    bytes: Math.max(0, max - used + Math.min(cached, used)),
    limit: `the control group's ${join(folder, limit)}`,
  };
}

async function readOptional(path: string): Promise<string> {
  return readFile(path, 'utf8').catch(() => '');
}
