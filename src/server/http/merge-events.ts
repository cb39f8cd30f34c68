/** Several sources of events as one. Layer 5. */

/** Events of all sources as they come, each with the index of its source. The first failure ends it; sources that rest end with it. */
export async function* mergeEvents<E>(
  sources: readonly AsyncIterable<E>[],
): AsyncGenerator<readonly [index: number, event: E], void> {
  const iterators = sources.map((source) => source[Symbol.asyncIterator]());
  const pull = async (index: number): Promise<{ index: number; result: IteratorResult<E> }> => ({
    index,
    result: await (iterators[index] as AsyncIterator<E>).next(),
  });
  const pending = new Map(iterators.map((_, index) => [index, pull(index)]));
  // A source that fails while another is awaited must not count as an unhandled rejection.
  for (const promise of pending.values()) promise.catch(() => {});
  try {
    while (pending.size > 0) {
      const { index, result } = await Promise.race(pending.values());
      if (result.done) {
        pending.delete(index);
        continue;
      }
      yield [index, result.value];
      const next = pull(index);
      next.catch(() => {});
      pending.set(index, next);
    }
  } finally {
    for (const iterator of iterators) iterator.return?.()?.catch(() => {});
  }
}
