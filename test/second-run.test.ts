/** Two runs on one machine share its cores: neither burns processor time while it waits for the other. */
import { readFile } from 'node:fs/promises';
import { availableParallelism } from 'node:os';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { createEmbeddedEngine } from '../src/engines/embedded/engine.ts';
import type { Datum, Engine } from '../src/engines/engine.ts';
import { childPids } from './child-processes.ts';
import { createTinyModelFolder, type TinyModelFolder } from './tiny-model-folder.ts';

const length = 128;
let model: TinyModelFolder;
beforeAll(async () => {
  model = await createTinyModelFolder({ width: 256, layers: 4, heads: 4, kvHeads: 2, headSize: 64, ffWidth: 768 });
});
afterAll(() => model.remove());

interface Run {
  readonly engine: Engine;
  readonly pid: number;
}

/** With the threads that an engine takes by default. */
async function open(): Promise<Run> {
  const before = childPids(process.pid);
  const engine = await createEmbeddedEngine({
    modelDirectory: model.modelDirectory,
    training: { kind: 'lora', rank: 8, alpha: 16 },
    seed: 0,
    cacheTokens: 4096,
  });
  const [pid = 0] = childPids(process.pid).filter((candidate) => !before.includes(candidate));
  return { engine, pid };
}

/** Processor seconds of a process, over all of its threads. */
async function processorSeconds(pid: number): Promise<number> {
  const stat = await readFile(`/proc/${pid}/stat`, 'utf8');
  const [user = 0, system = 0] = stat
    .slice(stat.lastIndexOf(')') + 2)
    .split(' ')
    .slice(11, 13)
    .map(Number);
  return (user + system) / 100; // USER_HZ is 100 on every Linux
}

/** Processor seconds of the same training, which is the first thing that counts: graphs are compiled before. */
async function train({ engine, pid }: Run, calls: number): Promise<number> {
  const along = <T>(value: (t: number) => T): T[] => Array.from({ length }, (_, t) => value(t));
  const isAction = (t: number): number => (t > 32 ? 1 : 0);
  const data = Array.from(
    { length: 32 },
    (_, index): Datum => ({
      tokenIds: along((t) => 3 + ((t * 7 + index * 13) % 200)),
      actionMask: along(isAction),
      samplingLogprobs: along((t) => -5 * isAction(t)),
      advantages: along(isAction),
      temperatures: along(() => 1),
    }),
  );
  const loss = { name: 'cispo', clipLow: 1, clipHigh: 4, entropyBonus: 0 } as const;
  const step = () => engine.doForwardBackward({ data, loss, scale: 1e-3 });
  await step();
  const before = await processorSeconds(pid);
  for (let call = 0; call < calls; call++) await step();
  return (await processorSeconds(pid)) - before;
}

test.skipIf(process.platform !== 'linux')('the second run costs no more than its own work', async () => {
  const first = await open();
  const second = await open();
  try {
    const alone = await train(first, 3);
    const [a, b] = await Promise.all([train(first, 3), train(second, 3)]);
    // Measured: 1.0 to 1.2. Threads that wait for cores by spinning would cost a multiple.
    expect((a + b) / (2 * alone)).toBeLessThan(1.6);
    const status = await readFile(`/proc/${first.pid}/status`, 'utf8');
    const threads = Number(/^Threads:\s+(\d+)$/m.exec(status)?.[1]);
    // Node's own are about 11, and V8's and libuv's pools about 8; computing ones are bounded by the cores: training, lanes, sampling.
    expect(threads).toBeLessThanOrEqual(28 + 4 * availableParallelism());
  } finally {
    await first.engine.close();
    await second.engine.close();
  }
});
