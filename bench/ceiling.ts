/** What this computer can do at most: one large matrix product through the same graph and executor as everything else. */
import { input, makeGraph, matmul, slice } from '../src/graph/builder.ts';
import { hostTensor, type Runtime } from '../src/graph/runtime.ts';
import { countMatmulFlops } from './flops.ts';
import { measure, type Sample, summarize } from './measure.ts';

const rows = 1024;
const inner = 1024;
const columns = 4096;

export interface Ceiling {
  /** Best of all repeats, by wall time: other work can only make it slower. */
  readonly gflops: number;
  /** Best of all repeats, per second of CPU time. */
  readonly gflopsPerCpuSecond: number;
}

/** Returns a function that measures the ceiling again; compiled once. */
export async function createCeiling(runtime: Runtime, iterations: number): Promise<() => Promise<Ceiling>> {
  const weight = input('weight', [columns, inner]);
  const product = matmul(input('x', [rows, inner]), weight, { transB: true });
  // A slice of the product: fetching all of it would measure the copy of 16 MB as well.
  const graph = makeGraph({ y: slice(product, 1, 0, 1) });
  const fill = (size: number): Float32Array =>
    Float32Array.from({ length: size }, (_, i) => ((i * 7919) % 1000) / 1000);
  const executable = await runtime.compile(graph, { constants: new Map([['weight', fill(columns * inner)]]) });
  const feeds = { x: hostTensor(fill(rows * inner), [rows, inner]) };
  const flops = countMatmulFlops(graph, {});
  return async () => {
    const samples = await measure(() => executable.run(feeds), { warmUps: 1, iterations });
    const best = (field: keyof Sample): number => flops / summarize(samples, field).min / 1e9;
    return { gflops: best('seconds'), gflopsPerCpuSecond: best('cpuSeconds') };
  };
}

export function meanCeiling(before: Ceiling, after: Ceiling): Ceiling {
  return {
    gflops: (before.gflops + after.gflops) / 2,
    gflopsPerCpuSecond: (before.gflopsPerCpuSecond + after.gflopsPerCpuSecond) / 2,
  };
}
