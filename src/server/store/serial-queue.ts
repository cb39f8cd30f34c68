/** Work that must not overlap: each piece starts when the one before it has ended, however that went. Layer 5. */

/** Resolves or rejects as `work` does; one that fails does not stop those behind it. */
export type SerialQueue = <T>(work: () => Promise<T>) => Promise<T>;

/** An empty queue; waits are not limited here. */
export function createSerialQueue(): SerialQueue {
  let last: Promise<unknown> = Promise.resolve();
  return (work) => {
    const result = last.then(work);
    last = result.catch(() => undefined);
    return result;
  };
}
