/**
 * One process at a time fetches a repository's files; others wait and then find them. Layer 2.
 * Python's locks (`flock`) are out of Node's reach: downloads of both do not wait for each other, but neither writes the other's parts.
 */

import { randomUUID } from 'node:crypto';
import { link, mkdir, readFile, rm, stat, utimes, writeFile } from 'node:fs/promises';
import { hostname } from 'node:os';
import { dirname } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { AbortedError } from '../core/errors.ts';
import { isMissing } from '../formats/atomic-files.ts';
import { isProcessRunning } from '../formats/lock-holder.ts';

const pollMs = 200;
/** A holder says this often that it lives; one that has not for long is gone, wherever it ran. */
const heartbeatMs = 5_000;
const staleMs = 60_000;

/** Waits for the lock and holds it while `work` runs. `onWait` is called once, with who holds it. Throws AbortedError on the signal. */
export async function withCacheLock<T>(
  path: string,
  signal: AbortSignal,
  onWait: (holder: string) => void,
  work: () => Promise<T>,
): Promise<T> {
  await mkdir(dirname(path), { recursive: true });
  for (let hasWaited = false; !(await createLock(path)); hasWaited = true) {
    const holder = await readHolder(path);
    if (holder === null) continue;
    if (holder.isGone) {
      await rm(path, { force: true });
      continue;
    }
    if (!hasWaited) onWait(holder.name);
    await sleep(pollMs, undefined, { signal }).catch((cause: unknown) => {
      throw new AbortedError(`${path}: waiting for ${holder.name} was given up`, { cause });
    });
  }
  const heartbeat = setInterval(() => {
    const now = new Date();
    utimes(path, now, now).catch(() => {}); // Deleted by hand: the work goes on, and its files are still renamed whole.
  }, heartbeatMs);
  heartbeat.unref();
  try {
    return await work();
  } finally {
    clearInterval(heartbeat);
    await rm(path, { force: true });
  }
}

/** Written aside and linked: a lock is never seen empty. */
async function createLock(path: string): Promise<boolean> {
  const whole = `${path}.${randomUUID()}`;
  await writeFile(whole, `${process.pid} ${hostname()}\n`);
  try {
    await link(whole, path);
    return true;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'EEXIST') return false;
    throw error;
  } finally {
    await rm(whole, { force: true });
  }
}

/** Null if there is no lock any more. */
async function readHolder(path: string): Promise<{ readonly name: string; readonly isGone: boolean } | null> {
  try {
    const [pid = '', host = ''] = (await readFile(path, 'utf8')).trim().split(' ');
    const isSilent = Date.now() - (await stat(path)).mtimeMs > staleMs;
    const isDead = host === hostname() && !isProcessRunning(Number(pid));
    return { name: `process ${pid} on ${host}`, isGone: isSilent || isDead };
  } catch (error) {
    if (isMissing(error)) return null;
    throw error;
  }
}
