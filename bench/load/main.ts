/**
 * `npm run load`: many requests at once to a server over the embedded engine. Every answer must be the one that the same request gets
 * alone; and of requests one after another, what they take beyond the engine's own time is the server's overhead.
 */
import { mkdtemp, rm } from 'node:fs/promises';
import { loadavg, tmpdir } from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { writeStarterModel } from '../../src/formats/starter-model.ts';
import { median } from '../measure.ts';
import { type Answer, type LoadServer, startLoadServer } from './driver.ts';

interface LoadOptions {
  readonly concurrency: number;
  readonly overheadRequests: number;
  readonly isJson: boolean;
}

/** Requests of which the answer is known; those of the load repeat them. */
const referenceCount = 100;

/** Throws Error with the rule that an argument breaks. */
function readOptions(args: readonly string[]): LoadOptions {
  const { values } = parseArgs({
    args: [...args],
    options: {
      concurrency: { type: 'string', default: '2000' },
      'overhead-requests': { type: 'string', default: '400' },
      json: { type: 'boolean', default: false },
    },
  });
  const number = (name: 'concurrency' | 'overhead-requests'): number => {
    const value = Number(values[name]);
    if (Number.isInteger(value) && value >= 1 && value <= 8000) return value;
    throw new Error(`--${name}: must be a whole number from 1 to 8000, got '${values[name]}'`);
  };
  return { concurrency: number('concurrency'), overheadRequests: number('overhead-requests'), isJson: values.json };
}

interface Overhead {
  /** Milliseconds a request takes beyond the engine's time. */
  readonly p50Ms: number;
  readonly p99Ms: number;
  readonly engineP50Ms: number;
}

async function measureOverhead(server: LoadServer, count: number): Promise<Overhead> {
  const seeds = Array.from({ length: count }, (_, i) => 1_000_000 + i);
  const answers = new Map<number, Answer>();
  for (const seed of seeds) answers.set(seed, await server.ask(seed));
  const engine = await server.engineTimes(seeds);
  const overheads = seeds.map((seed) => answers.get(seed)!.milliseconds - engine.get(seed)!).sort((a, b) => a - b);
  return {
    p50Ms: median(overheads),
    p99Ms: overheads[Math.floor(overheads.length * 0.99)]!,
    engineP50Ms: median([...engine.values()]),
  };
}

const contentOf = (answer: Answer): string => {
  const body = JSON.parse(answer.text) as { choices: { message: { content: string } }[] };
  return body.choices[0]!.message.content;
};

interface Held {
  readonly lost: number;
  /** Answers that differ from what the same request got alone. */
  readonly crossed: number;
  readonly seconds: number;
  readonly slowestMs: number;
}

async function hold(server: LoadServer, concurrency: number): Promise<Held> {
  const expected: string[] = [];
  for (let seed = 0; seed < referenceCount; seed++) expected.push(contentOf(await server.ask(seed)));
  const startedAt = performance.now();
  const results = await Promise.allSettled(
    Array.from({ length: concurrency }, (_, i) => server.ask(i % referenceCount)),
  );
  const seconds = (performance.now() - startedAt) / 1000;
  let lost = 0;
  let crossed = 0;
  let slowestMs = 0;
  for (const [i, result] of results.entries()) {
    if (result.status === 'rejected' || result.value.status !== 200) {
      if (lost++ === 0) console.error('first lost:', result.status === 'rejected' ? result.reason : result.value.text);
      continue;
    }
    slowestMs = Math.max(slowestMs, result.value.milliseconds);
    if (contentOf(result.value) !== expected[i % referenceCount]) crossed += 1;
  }
  return { lost, crossed, seconds, slowestMs };
}

async function main(): Promise<void> {
  const { concurrency, overheadRequests, isJson } = readOptions(process.argv.slice(2));
  const folder = await mkdtemp(join(tmpdir(), 'art-load-'));
  try {
    const baseModel = join(folder, 'model');
    await writeStarterModel({ seed: 1, directory: baseModel, corpus: ['board 2 4 8 16 _ /'], width: 64, layers: 2 });
    await using server = await startLoadServer(join(folder, 'runs'), baseModel, concurrency);
    for (let seed = 0; seed < 50; seed++) await server.ask(2_000_000 + seed); // until code and graphs are warm
    const held = await hold(server, concurrency);
    const overhead = await measureOverhead(server, overheadRequests);
    const loadAverage = loadavg()[0]!;
    if (!isJson) console.log(`load average ${loadAverage.toFixed(1)}`);
    const round = (value: number): number => Math.round(value * 100) / 100;
    console.log(
      JSON.stringify({
        requests: concurrency,
        lost: held.lost,
        crossed: held.crossed,
        seconds: round(held.seconds),
        requestsPerSecond: round(concurrency / held.seconds),
        slowestMs: round(held.slowestMs),
        overheadP50Ms: round(overhead.p50Ms),
        overheadP99Ms: round(overhead.p99Ms),
        engineP50Ms: round(overhead.engineP50Ms),
        loadAverage: round(loadAverage),
      }),
    );
    if (held.lost + held.crossed > 0) process.exitCode = 1;
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}

await main();
