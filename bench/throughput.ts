/** A workload of ours in this process, measured in one or more parts so that peers can run in between, with the ceiling around each part. */

import type { Runtime } from '../src/graph/runtime.ts';
import { createOrtRuntime } from '../src/graph/runtime-ort.ts';
import { type Ceiling, createCeiling, meanCeiling } from './ceiling.ts';
import { createFlopCounter } from './flops.ts';
import { measure, type Sample, summarize } from './measure.ts';
import type { Measurement, Result } from './report.ts';
import type { Workload } from './training.ts';

export interface OurWorkload {
  readonly name: string;
  /** Runs it `iterations` times more. */
  readonly measure: (iterations: number) => Promise<void>;
  /** Of all runs so far. */
  readonly tokensPerSecond: () => number;
  readonly row: () => { readonly result: Result; readonly detail: Measurement };
  readonly ceilingGflops: () => number;
}

/** Creates the workload and runs it once, which warms it up and counts its operations. */
export async function startWorkload(
  name: string,
  threads: number,
  isQuick: boolean,
  create: (runtime: Runtime) => Promise<Workload> | Workload,
): Promise<OurWorkload> {
  const runtime = await createOrtRuntime({ threads });
  const counter = createFlopCounter(runtime);
  const measureCeiling = await createCeiling(runtime, isQuick ? 2 : 8);
  const workload = await create(counter.runtime);
  const flops = await counter.count(workload.countable ?? workload.run);
  if (workload.countable) await workload.run();
  const samples: Sample[] = [];
  let ceiling: Ceiling | null = null;
  const wall = (): { median: number; min: number } => summarize(samples, 'seconds');
  return {
    name,
    measure: async (iterations) => {
      const before = await measureCeiling();
      samples.push(...(await measure(workload.run, { warmUps: 0, iterations })));
      const around = meanCeiling(before, await measureCeiling());
      ceiling = ceiling === null ? around : meanCeiling(ceiling, around);
    },
    tokensPerSecond: () => workload.tokens / wall().median,
    ceilingGflops: () => ceiling?.gflops ?? 0,
    row: () => {
      const gflops = flops / wall().median / 1e9;
      const { median: cpuSeconds } = summarize(samples, 'cpuSeconds');
      const known = ceiling!;
      return {
        result: {
          name,
          value: workload.tokens / wall().median,
          unit: 'tokens/s',
          ceilingShare: gflops / known.gflops,
        },
        detail: {
          best: workload.tokens / wall().min,
          gflops,
          ceiling: known,
          cpuCeilingShare: flops / cpuSeconds / 1e9 / known.gflopsPerCpuSecond,
          threads,
          samples,
        },
      };
    },
  };
}
