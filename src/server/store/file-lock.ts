/**
 * Short work on a file that the server and commands share, one process at a time. Layer 5.
 * The lock is `<path>.lock` with a process id; that of a dead process is taken over. Waiting has a limit.
 */
import { randomUUID } from 'node:crypto';
import { link, mkdir, readFile, rename, rm, writeFile } from 'node:fs/promises';
import { dirname } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { AbortedError } from '../../core/errors.ts';
import { isMissing, toStorageError } from '../../formats/atomic-files.ts';
import { isProcessRunning } from '../../formats/lock-holder.ts';

const pollMs = 20;
const waitMs = 10_000;

/** What this process does on each path, one after another: its own id in a lock file says nothing. */
const chains = new Map<string, Promise<unknown>>();

/** Runs `work` while no other caller with this path does, in this process or another. Throws AbortedError naming who holds the lock. */
export async function withFileLock<T>(path: string, work: () => Promise<T>): Promise<T> {
  const before = chains.get(path) ?? Promise.resolve();
  const run = before.then(() => lockAndWork(path, work));
  const settled = run.catch(() => {});
  chains.set(path, settled);
  try {
    return await run;
  } finally {
    if (chains.get(path) === settled) chains.delete(path);
  }
}

async function lockAndWork<T>(path: string, work: () => Promise<T>): Promise<T> {
  const lock = `${path}.lock`;
  try {
    await mkdir(dirname(path), { recursive: true });
    const deadline = performance.now() + waitMs;
    while (!(await createLock(lock))) {
      const holder = await readPid(lock);
      if (holder === null) continue;
      if (holder === 0 || holder === process.pid || !isProcessRunning(holder)) await takeAway(lock, holder);
      else if (performance.now() < deadline) await sleep(pollMs);
      else {
        throw new AbortedError(
          `${path}: waited ${waitMs} ms for process ${holder}, which holds ${lock}; delete that file if it is something else`,
          { details: { isDeadline: true, pid: holder } },
        );
      }
    }
  } catch (error) {
    throw await toStorageError(path, error);
  }
  try {
    return await work();
  } finally {
    await rm(lock, { force: true });
  }
}

/** Written aside and linked: a lock is never seen empty. */
async function createLock(lock: string): Promise<boolean> {
  const whole = `${lock}.${randomUUID()}`;
  await writeFile(whole, `${process.pid}\n`, { mode: 0o600 });
  try {
    await link(whole, lock);
    return true;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'EEXIST') return false;
    throw error;
  } finally {
    await rm(whole, { force: true });
  }
}

/** Null if there is no lock; 0, which no process has, if it is not a number. */
async function readPid(lock: string): Promise<number | null> {
  try {
    const pid = Number((await readFile(lock, 'utf8')).trim());
    return Number.isSafeInteger(pid) && pid > 0 ? pid : 0;
  } catch (error) {
    if (isMissing(error)) return null;
    throw error;
  }
}

/** Moved aside before it is removed: of two processes that try, one may have moved the other's fresh lock, and puts it back. */
async function takeAway(lock: string, holder: number): Promise<void> {
  const aside = `${lock}.${randomUUID()}`;
  try {
    await rename(lock, aside);
  } catch (error) {
    if (isMissing(error)) return;
    throw error;
  }
  if ((await readPid(aside)) !== holder) await link(aside, lock).catch(() => {});
  await rm(aside, { force: true });
}
