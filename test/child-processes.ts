/** Child processes by `ps`, for tests that end them or check that none is left. */
import { execFileSync } from 'node:child_process';
import { expect } from 'vitest';

/** Pids of the living children of a process, `ps` itself left out. */
export function childPids(parent: number): number[] {
  const rows = execFileSync('ps', ['-A', '-o', 'pid=,ppid=,stat=,comm='], { encoding: 'utf8' }).trim().split('\n');
  return rows.flatMap((row) => {
    const [pid, ppid, state, command] = row.trim().split(/\s+/);
    const isChild = Number(ppid) === parent && !state!.startsWith('Z') && command !== 'ps';
    return isChild ? [Number(pid)] : [];
  });
}

export function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch {
    return false;
  }
}

/** Fails if the process is still there after `timeout` milliseconds. */
export async function expectGone(pid: number, timeout: number): Promise<void> {
  await expect.poll(() => isAlive(pid), { timeout, interval: 20 }).toBe(false);
}
