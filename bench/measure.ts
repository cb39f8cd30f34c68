/** Repeats work a fixed number of times and keeps every sample. Wall time for the user; CPU time because it hardly depends on what else runs. */

export interface Sample {
  readonly seconds: number;
  /** User and system time of all threads of this process. */
  readonly cpuSeconds: number;
}

export interface Repeats {
  readonly warmUps: number;
  readonly iterations: number;
}

export async function measure(work: () => Promise<unknown>, { warmUps, iterations }: Repeats): Promise<Sample[]> {
  for (let i = 0; i < warmUps; i++) await work();
  const samples: Sample[] = [];
  for (let i = 0; i < iterations; i++) {
    const cpu = process.cpuUsage();
    const startedAt = performance.now();
    await work();
    const seconds = (performance.now() - startedAt) / 1000;
    const { user, system } = process.cpuUsage(cpu);
    samples.push({ seconds, cpuSeconds: (user + system) / 1e6 });
  }
  return samples;
}

export function median(values: readonly number[]): number {
  const sorted = [...values].sort((a, b) => a - b);
  const middle = sorted.length / 2;
  return (sorted[Math.floor(middle - 0.5)]! + sorted[Math.floor(middle)]!) / 2;
}

/** Median and smallest of one field. */
export function summarize(samples: readonly Sample[], field: keyof Sample): { median: number; min: number } {
  const values = samples.map((sample) => sample[field]);
  return { median: median(values), min: Math.min(...values) };
}
