/**
 * `npm run bench`: training and sampling throughput beside what this computer can do at most, and requests of the server.
 * The matrix-product ceiling is measured before and after each result, and the mean of both is what its share is taken of.
 * Options: --json (last line is JSON), --quick (smallest model, one iteration), --only training|sampling|server, --threads N, --out FILE.
 */
import { readFileSync } from 'node:fs';
import { writeFile } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { availableParallelism, cpus, loadavg } from 'node:os';
import { parseArgs } from 'node:util';
import { createOrtRuntime } from '../src/graph/runtime-ort.ts';
import { type Ceiling, createCeiling, meanCeiling } from './ceiling.ts';
import { createFlopCounter } from './flops.ts';
import { measure, type Repeats, type Sample, summarize } from './measure.ts';
import { type BenchModel, createModel, modelCount } from './models.ts';
import { createSampling, promptTokens, sequenceCount } from './sampling.ts';
import { createServerBench } from './server.ts';
import { createTraining, type Workload } from './training.ts';

interface Result {
  readonly name: string;
  /** Of the median. */
  readonly value: number;
  readonly unit: 'tokens/s' | 'requests/s';
  readonly ceilingShare?: number;
  /** What was measured beside it, and how many times as fast this is. */
  readonly peer?: string;
  readonly ratio?: number;
}

/** What a results file has beside the JSON line. */
interface Detail {
  readonly name: string;
  /** From the fastest iteration. */
  readonly best: number;
  readonly gflops?: number;
  readonly ceiling?: Ceiling;
  /** Share of the ceiling when both are taken per second of CPU time. */
  readonly cpuCeilingShare?: number;
  readonly threads?: number;
  readonly loadAverage: number;
  readonly samples: readonly Sample[];
}

const stages = ['training', 'sampling', 'server'] as const;

interface Options {
  readonly threads: number;
  readonly isQuick: boolean;
  readonly isJson: boolean;
  readonly stages: readonly string[];
  readonly out: string | undefined;
}

function readOptions(): Options {
  const { values } = parseArgs({
    options: {
      json: { type: 'boolean', default: false },
      quick: { type: 'boolean', default: false },
      only: { type: 'string' },
      threads: { type: 'string', default: String(availableParallelism()) },
      out: { type: 'string' },
    },
  });
  if (!/^[1-9]\d{0,2}$/.test(values.threads)) {
    throw new Error(`--threads: must be a whole number from 1, got '${values.threads}'`);
  }
  if (values.only !== undefined && !stages.some((stage) => stage === values.only)) {
    throw new Error(`--only: must be one of ${stages.join(', ')}, got '${values.only}'`);
  }
  return {
    threads: Number(values.threads),
    isQuick: values.quick,
    isJson: values.json,
    stages: values.only === undefined ? stages : [values.only],
    out: values.out,
  };
}

const options = readOptions();
const results: Result[] = [];
const details: Detail[] = [];

function add(result: Result, detail: Omit<Detail, 'name' | 'loadAverage'>): void {
  results.push(result);
  details.push({ name: result.name, loadAverage: round(loadavg()[0]!), ...detail });
  const { name, value, unit, ceilingShare, peer, ratio } = result;
  const { best, gflops, ceiling, cpuCeilingShare } = detail;
  const columns = [
    name.padEnd(52),
    `${format(value).padStart(9)} ${unit}`,
    `best ${format(best)}`.padEnd(14),
    gflops === undefined ? '' : `${gflops.toFixed(1)} of ${ceiling?.gflops.toFixed(1)} GFLOP/s`.padEnd(26),
    ceilingShare === undefined ? '' : `${percent(ceilingShare)} (by CPU time ${percent(cpuCeilingShare!)})`,
    ratio === undefined ? '' : `${ratio.toFixed(2)} × ${peer}`,
    `load ${loadavg()[0]!.toFixed(1)}`,
  ];
  console.log(columns.filter((column) => column !== '').join('  '));
}

/** Measures a workload between two measurements of the ceiling at the same number of threads. */
async function benchWorkload(
  name: string,
  threads: number,
  repeats: Repeats,
  create: (runtime: Awaited<ReturnType<typeof createOrtRuntime>>) => Promise<Workload> | Workload,
): Promise<number> {
  const runtime = await createOrtRuntime({ threads });
  const counter = createFlopCounter(runtime);
  const measureCeiling = await createCeiling(runtime, options.isQuick ? 2 : 8);
  const workload = await create(counter.runtime);
  const flops = await counter.count(workload.run);
  const before = await measureCeiling();
  const samples = await measure(workload.run, repeats);
  const ceiling = meanCeiling(before, await measureCeiling());
  const wall = summarize(samples, 'seconds');
  const gflops = flops / wall.median / 1e9;
  const cpuCeilingShare = flops / summarize(samples, 'cpuSeconds').median / 1e9 / ceiling.gflopsPerCpuSecond;
  add(
    { name, value: workload.tokens / wall.median, unit: 'tokens/s', ceilingShare: gflops / ceiling.gflops },
    { best: workload.tokens / wall.min, gflops, ceiling, cpuCeilingShare, threads, samples },
  );
  return ceiling.gflops;
}

async function benchModel(model: BenchModel, isLarge: boolean): Promise<number> {
  const { threads, isQuick } = options;
  let ceiling = 0;
  if (options.stages.includes('training')) {
    const repeats = isQuick ? { warmUps: 0, iterations: 1 } : { warmUps: 1, iterations: isLarge ? 5 : 9 };
    const sequences = isQuick ? 2 : isLarge ? 8 : 32;
    ceiling = await benchWorkload(`train ${model.name}, ${threads} threads`, threads, repeats, (runtime) =>
      createTraining(model, runtime, sequences),
    );
  }
  if (options.stages.includes('sampling')) {
    const newTokens = isQuick ? 4 : 64;
    const repeats = isQuick ? { warmUps: 0, iterations: 1 } : { warmUps: 0, iterations: isLarge ? 3 : 5 };
    // The engine samples with one thread unless told otherwise.
    for (const count of new Set([1, threads])) {
      const name = `sample ${model.name}, ${sequenceCount} × (${promptTokens} + ${newTokens}), ${count} threads`;
      const measured = await benchWorkload(name, count, repeats, (runtime) =>
        createSampling(model, runtime, newTokens),
      );
      ceiling = Math.max(ceiling, measured);
    }
  }
  return ceiling;
}

async function benchServer(): Promise<void> {
  await using bench = await createServerBench();
  const iterations = options.isQuick ? 1 : 5;
  const repeats = { warmUps: options.isQuick ? 0 : 1, iterations };
  const time = async (
    requests: number,
    work: () => Promise<void>,
  ): Promise<{ samples: Sample[]; rates: readonly [number, number] }> => {
    const samples = await measure(work, repeats);
    const wall = summarize(samples, 'seconds');
    return { samples, rates: [requests / wall.median, requests / wall.min] };
  };
  const count = options.isQuick ? 40 : 1000;
  const peer = 'a server that sends a stored reply';
  const nothing = await time(count, () => bench.nullServer(count));
  const conversations = count / 10;
  for (const [name, work] of [
    ['chat completions, single turns', () => bench.singleTurns(count)],
    ['chat completions, turns of 10-turn conversations', () => bench.tenTurns(conversations)],
  ] as const) {
    const { samples, rates } = await time(count, work);
    const result: Result = { name, value: rates[0], unit: 'requests/s', peer, ratio: rates[0] / nothing.rates[0] };
    add(result, { best: rates[1], samples });
  }
}

function describeMachine(): Record<string, unknown> {
  const ort = createRequire(import.meta.url).resolve('onnxruntime-node/package.json');
  return {
    platform: `${process.platform} ${process.arch}`,
    cpu: cpus()[0]?.model ?? 'unknown',
    cores: availableParallelism(),
    threads: options.threads,
    node: process.versions.node,
    onnxruntime: JSON.parse(readFileSync(ort, 'utf8')).version,
    loadAverage: round(loadavg()[0]!),
  };
}

const round = (value: number): number => Number(value.toPrecision(4));
const format = (value: number): string => Math.round(value).toLocaleString('en-US');
const percent = (share: number): string => `${(share * 100).toFixed(0)} %`;

const machine = describeMachine();
console.log(
  Object.entries(machine)
    .map(([name, value]) => `${name} ${value}`)
    .join(', '),
);
let ceilingGflops = 0;
if (options.stages.some((stage) => stage !== 'server')) {
  for (let index = 0; index < (options.isQuick ? 1 : modelCount); index++) {
    ceilingGflops = Math.max(ceilingGflops, await benchModel(createModel(index), index === modelCount - 1));
  }
} else {
  const runtime = await createOrtRuntime({ threads: options.threads });
  ceilingGflops = (await (await createCeiling(runtime, 8))()).gflops;
}
if (options.stages.includes('server')) await benchServer();
const report = { machine, ceilingGflops: round(ceilingGflops), results: results.map(roundResult) };
if (options.out !== undefined) await writeFile(options.out, `${JSON.stringify({ ...report, details }, null, 2)}\n`);
if (options.isJson) console.log(JSON.stringify(report));

function roundResult(result: Result): Result {
  const { value, ceilingShare, ratio } = result;
  return {
    ...result,
    value: round(value),
    ...(ceilingShare === undefined ? {} : { ceilingShare: round(ceilingShare) }),
    ...(ratio === undefined ? {} : { ratio: round(ratio) }),
  };
}
