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
  model = await createTinyModelFolder({ width: 128, layers: 4, heads: 4, kvHeads: 2, headSize: 32, ffWidth: 384 });
});
afterAll(() => model.remove());

interface Run {
  readonly engine: Engine;
  readonly pid: number;
}

/** With the threads that an engine takes by default, or one. */
async function open(threads?: 1): Promise<Run> {
  const before = childPids(process.pid);
  const engine = await createEmbeddedEngine({
    modelDirectory: model.modelDirectory,
    training: { kind: 'lora', rank: 8, alpha: 16 },
    seed: 0,
    cacheTokens: 4096,
    ...(threads !== undefined && { trainThreads: threads }),
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

/** Processor seconds of so many training calls; the graphs are compiled before. */
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

test.skipIf(process.platform !== 'linux')(
  'two runs that train at once take the processor time of their work, and no more threads than there are cores to use',
  { timeout: 180_000 },
  async () => {
    const single = await open(1);
    const work = await train(single, 2);
    await single.engine.close();
    const first = await open();
    const second = await open();
    try {
      const [a, b] = await Promise.all([train(first, 2), train(second, 2)]);
      // Threads that wait for cores by spinning would cost a multiple of the same work on one thread.
      expect((a + b) / (2 * work)).toBeLessThan(1.6);
      const status = await readFile(`/proc/${first.pid}/status`, 'utf8');
      const threads = Number(/^Threads:\s+(\d+)$/m.exec(status)?.[1]);
      // Each thread of JavaScript (sampler, trainer, a lane for each core) brings about five of V8; libuv has four.
      expect(threads).toBeLessThanOrEqual(30 + 8 * availableParallelism());
    } finally {
      await first.engine.close();
      await second.engine.close();
    }
  },
);
