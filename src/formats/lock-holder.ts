/** Whether the process that a lock file names still runs. Layer 1. */

/** False for what is no process id. A process of another user counts as running. */
export function isProcessRunning(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return error instanceof Error && 'code' in error && error.code === 'EPERM';
  }
}
