/** Batches of gathered groups, one after another, while the next ones are already rolled out. Layer 5. */
import type { LimitFunction } from 'p-limit';
import { AbortedError } from '../core/errors.ts';
import { refuseUnknownKeys, requireIntegers } from '../core/options.ts';
import type { TrajectoryGroup } from '../core/trajectory.ts';
import { type GatherGroupsOptions, type GroupSource, gatherSource, rolloutCount } from './gather.ts';
import { createLimit, gatherOptionNames, runGather } from './gather-run.ts';

export interface GroupBatchesOptions extends Omit<GatherGroupsOptions, 'maxExceptions' | 'progress'> {
  /** Sources of a batch; the last batch may have fewer. */
  readonly batchSize: number;
  /** Failures that one batch bears: a count, or below 1 a share of its rollouts. Default 0. */
  readonly maxBatchExceptions?: number;
  /** Batches that are rolled out at once, the one that is waited for included; default 4. Those ahead meet an older policy. */
  readonly maxConcurrentBatches?: number;
  /** Batches to leave out at the beginning, whose sources are never started: those that were trained before a restart. Default 0. */
  readonly skipBatches?: number;
}

export interface GroupBatch {
  readonly groups: TrajectoryGroup[];
  /** Among all batches, those left out included. */
  readonly index: number;
}

const OPTION_NAMES = [
  ...['batchSize', 'maxBatchExceptions', 'maxConcurrentBatches', 'skipBatches', 'afterEach'],
  ...gatherOptionNames.filter((name) => name !== 'maxExceptions' && name !== 'progress'),
];

/**
 * Yields the groups of every `batchSize` sources, in order. Sources are asked for as batches begin. `maxConcurrency` holds over all
 * batches together. Leaving the loop, a failure and the signal stop what runs; the failure of a batch is thrown when its turn comes.
 */
export async function* trajectoryGroupBatches(
  sources: Iterable<GroupSource> | AsyncIterable<GroupSource>,
  options: GroupBatchesOptions,
): AsyncGenerator<GroupBatch, void> {
  refuseUnknownKeys('trajectoryGroupBatches', options, OPTION_NAMES);
  const { batchSize, maxBatchExceptions = 0, maxConcurrentBatches = 4, skipBatches = 0, ...gather } = options;
  requireIntegers('trajectoryGroupBatches', { batchSize, maxConcurrentBatches }, 1);
  requireIntegers('trajectoryGroupBatches', { skipBatches }, 0);
  const controller = new AbortController();
  const onAbort = (): void => controller.abort(options.signal?.reason);
  if (options.signal?.aborted) onAbort();
  options.signal?.addEventListener('abort', onAbort, { once: true });
  const limit = createLimit(gather);
  const gatherOptions = { ...gather, maxExceptions: maxBatchExceptions, progress: false, signal: controller.signal };
  const start = (batch: readonly GroupSource[]): Promise<TrajectoryGroup[]> => {
    const gathered = gatherBatch(batch, gatherOptions, limit);
    gathered.catch(() => {}); // thrown when its turn comes
    return gathered;
  };
  const running: Promise<TrajectoryGroup[]>[] = [];
  const batches = readBatches(sources, batchSize);
  try {
    for (let skipped = 0; skipped < skipBatches; skipped++) if ((await batches.next()).done === true) return;
    for (let index = skipBatches, isEnd = false; ; index++) {
      while (!isEnd && running.length < maxConcurrentBatches) {
        const next = await batches.next();
        if (next.done === true) isEnd = true;
        else running.push(start(next.value));
      }
      const first = running.shift();
      if (first === undefined) return;
      yield { groups: await first, index };
    }
  } finally {
    options.signal?.removeEventListener('abort', onAbort);
    controller.abort(new AbortedError('trajectoryGroupBatches: nobody takes further batches'));
    await Promise.allSettled(running);
    await batches.return(undefined);
  }
}

async function gatherBatch(
  batch: readonly GroupSource[],
  options: GatherGroupsOptions,
  limit: LimitFunction,
): Promise<TrajectoryGroup[]> {
  const groups = await runGather(
    batch.map(rolloutCount),
    options,
    (run) => batch.map((source, index) => gatherSource(source, index, options.afterEach, run)),
    limit,
  );
  return groups.flatMap((group) => group ?? []);
}

async function* readBatches(
  sources: Iterable<GroupSource> | AsyncIterable<GroupSource>,
  size: number,
): AsyncGenerator<readonly GroupSource[], undefined> {
  // Not `for await`: over a plain iterable it would wait for the promises in it.
  const iterator = Symbol.asyncIterator in sources ? sources[Symbol.asyncIterator]() : sources[Symbol.iterator]();
  try {
    for (let isEnd = false; !isEnd; ) {
      const batch: GroupSource[] = [];
      while (!isEnd && batch.length < size) {
        const next = await iterator.next();
        if (next.done === true) isEnd = true;
        else batch.push(next.value);
      }
      if (batch.length > 0) yield batch;
    }
  } finally {
    await iterator.return?.();
  }
}
