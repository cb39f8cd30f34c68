/**
 * Dynamic sampling (DAPO, arXiv 2503.14476, section 3.2): groups whose rewards are all equal teach nothing, so scenarios are rolled out
 * until enough groups do, or a bound is met. Layer 5.
 */
import { isZeroVariance } from '../core/advantage.ts';
import { refuseUnknownKeys, requireIntegers } from '../core/options.ts';
import type { TrajectoryGroup } from '../core/trajectory.ts';
import { type GatherGroupsOptions, type GroupSource, gatherSource, rolloutCount } from './gather.ts';
import { type GatherRun, gatherOptionNames, runGather } from './gather-run.ts';

export interface InformativeGroupsOptions extends GatherGroupsOptions {
  /** Groups to find. */
  readonly groups: number;
  /** Sources to take at most; default 4 times `groups`. */
  readonly maxSources?: number;
}

export interface InformativeGroups {
  /** In the order of their sources; fewer than asked for when the bound was met or the sources ended. */
  readonly groups: TrajectoryGroup[];
  /** Groups without difference in rewards, in the order of their sources: for a log. */
  readonly discarded: TrajectoryGroup[];
  /** For `model.log`: `discarded/step/zero_variance_groups`, `…/failed_groups`, `discarded/rate/zero_variance_groups`. */
  readonly metrics: Readonly<Record<string, number>>;
  /** Sources that were taken. */
  readonly sources: number;
}

/**
 * Takes sources in order until `groups` groups have rewards that differ. At any time as many are under way as are missing, so each group
 * without difference costs one more source, and which groups come out does not depend on which rollouts finish first.
 * A generator as `sources` is asked for one only when it is needed. Failures, signal and limits are those of `gatherTrajectoryGroups`.
 */
export async function gatherInformativeGroups(
  sources: Iterable<GroupSource>,
  options: InformativeGroupsOptions,
): Promise<InformativeGroups> {
  refuseUnknownKeys('gatherInformativeGroups', options, [...gatherOptionNames, 'afterEach', 'groups', 'maxSources']);
  const { groups: wanted, maxSources = 4 * wanted } = options;
  requireIntegers('gatherInformativeGroups', { groups: wanted }, 1);
  requireIntegers('gatherInformativeGroups', { maxSources }, wanted);
  const iterator = sources[Symbol.iterator]();
  try {
    const [found] = await runGather([], options, (run) => [refill(iterator, wanted, maxSources, options, run)]);
    return summarize(found ?? []);
  } finally {
    iterator.return?.();
  }
}

/** Results by source. `null`: the group failed. */
async function refill(
  iterator: Iterator<GroupSource>,
  wanted: number,
  maxSources: number,
  { afterEach }: InformativeGroupsOptions,
  run: GatherRun,
): Promise<(readonly TrajectoryGroup[] | null)[]> {
  const results: (readonly TrajectoryGroup[] | null)[] = [];
  let taken = 0;
  const one = async (): Promise<void> => {
    for (let isInformative = false; !isInformative && taken < maxSources && !run.signal.aborted; ) {
      const next = iterator.next();
      if (next.done === true) return;
      const index = taken++;
      run.addGroup(rolloutCount(next.value)); // its index is `index`: this is the only place that adds groups
      const groups = await gatherSource(next.value, index, afterEach, run);
      results[index] = groups;
      isInformative = groups?.some(differs) ?? false;
    }
  };
  await Promise.all(Array.from({ length: wanted }, one));
  return results;
}

function differs({ trajectories }: TrajectoryGroup): boolean {
  return !isZeroVariance(trajectories.map(({ reward }) => reward));
}

function summarize(results: readonly (readonly TrajectoryGroup[] | null)[]): InformativeGroups {
  const all = results.flatMap((groups) => groups ?? []);
  const discarded = all.filter((group) => !differs(group));
  return {
    groups: all.filter(differs),
    discarded,
    metrics: {
      'discarded/step/zero_variance_groups': discarded.length,
      'discarded/step/failed_groups': results.filter((groups) => groups === null).length,
      'discarded/rate/zero_variance_groups': all.length === 0 ? 0 : discarded.length / all.length,
    },
    sources: results.length,
  };
}
