import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { ConfigError } from '../../core/errors.ts';
import type { DecoderConfig } from '../../formats/hf-config.ts';
import { writeStarterModel } from '../../formats/starter-model.ts';
import type { Datum } from '../engine.ts';
import { readAvailableMemory } from './available-memory.ts';
import { createEmbeddedEngine } from './engine.ts';
import { estimateMemory, fitMemory } from './memory-estimate.ts';

let folder = '';
let modelDirectory = '';
let config: DecoderConfig;
beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'art-memory-'));
  modelDirectory = join(folder, 'model');
  const sizes = { width: 256, layers: 8, heads: 4, kvHeads: 2, headSize: 64, ffWidth: 1024, maxPositions: 256 };
  config = await writeStarterModel({ seed: 1, directory: modelDirectory, corpus: ['yes no'], ...sizes });
});
afterAll(() => rm(folder, { recursive: true }));

const training = { kind: 'lora', rank: 8, alpha: 16 } as const;
const options = { training, cacheTokens: 8192, microbatchTokens: 512, trainThreads: 1 };

test('the estimate is within a factor of 1.4 of what the process takes when it fills its cache and trains', async () => {
  const engine = await createEmbeddedEngine({ ...options, modelDirectory, seed: 0 });
  try {
    const length = 128;
    const promptIds = (first: number): number[] => Array.from({ length: 64 }, (_, t) => 3 + ((first * 31 + t) % 200));
    const sampling = {
      maxTokens: 60,
      temperature: 1,
      topP: 1,
      topK: 0,
      stopTokenIds: [],
      stopStrings: [],
      topLogprobs: 0,
    };
    await Promise.all(
      Array.from({ length: 66 }, async (_, seed) => {
        const request = { promptIds: promptIds(seed), policyStep: null, isStreaming: false };
        for await (const _event of engine.doSample({ ...request, sampling: { ...sampling, seed } }));
      }),
    );
    const isAction = (t: number): number => (t > 64 ? 1 : 0);
    const data = Array.from({ length: 16 }, (_, index): Datum => {
      const along = <T>(value: (t: number) => T): T[] => Array.from({ length }, (_, t) => value(t));
      return {
        tokenIds: along((t) => 3 + ((t * 7 + index * 13) % 200)),
        actionMask: along(isAction),
        samplingLogprobs: along((t) => -5 * isAction(t)),
        advantages: along(isAction),
        temperatures: along(() => 1),
      };
    });
    const loss = { name: 'cispo', clipLow: 1, clipHigh: 4, entropyBonus: 0 } as const;
    await engine.doForwardBackward({ data, loss, scale: 1e-3 });
    const { peakRssBytes } = await engine.doInfo();
    const { total } = estimateMemory(config, options);
    // Pages of the C library and of V8 come and go; runs of one model differ by about 15 %.
    expect(total / peakRssBytes).toBeGreaterThan(1 / 1.4);
    expect(total / peakRssBytes).toBeLessThan(1.4);
  } finally {
    await engine.close();
  }
});

describe('what is asked', () => {
  const limit = 'the test';

  test('grows with the model, the cache, the microbatch and the lanes, and is the sum of its parts', () => {
    const base = estimateMemory(config, options);
    const { total: sum, ...parts } = base;
    expect(Object.values(parts).reduce((a, b) => a + b, 0)).toBe(sum);
    expect(estimateMemory(config, { ...options, cacheTokens: 16_384 }).cache).toBe(2 * base.cache);
    expect(estimateMemory(config, { ...options, microbatchTokens: 1024 }).activations).toBe(2 * base.activations);
    expect(estimateMemory(config, { ...options, trainThreads: 2 }).activations).toBe(2 * base.activations);
    expect(estimateMemory({ ...config, layers: 16 }, options).weights).toBeGreaterThan(1.8 * base.weights);
    const full = estimateMemory(config, { ...options, training: { kind: 'full' } });
    expect(estimateMemory(config, { ...options, rolloutPrecision: 'int8' }).weights).toBeLessThan(base.weights);
    const large = { ...config, vocabSize: 200_000 };
    const exact = estimateMemory(large, options).weights;
    expect(estimateMemory(large, { ...options, rolloutPrecision: 'int8' }).weights).toBeGreaterThan(2 * exact);
    expect(full.training).toBeGreaterThan(10 * base.training);
  });

  test('is refused with the numbers and with what would fit', () => {
    const needed = estimateMemory(config, options);
    const available = { bytes: needed.total - needed.cache / 2, limit };
    const refuse = (): unknown => fitMemory(config, options, available, modelDirectory);
    expect(refuse).toThrow(ConfigError);
    expect(refuse).toThrow(
      /^memory: \S+model needs about \d\.\d\d GB \(weights \d\.\d\d GB, .*KV cache of 8192 tokens/,
    );
    expect(refuse).toThrow(`got ${(available.bytes / 1e9).toFixed(2)} GB, the test; cacheTokens up to 4096 would fit`);
    expect(() => fitMemory(config, options, { bytes: 1e6, limit }, 'x')).toThrow('take a smaller model, or lower');
    expect(fitMemory(config, options, { bytes: needed.total, limit }, 'x').cacheTokens).toBe(8192);
  });

  test('gets the cache that fits where none is given', () => {
    const { cacheTokens: _, ...open } = options;
    const capacityOf = (bytes: number): number => fitMemory(config, open, { bytes, limit }, 'x').cacheTokens;
    const all = estimateMemory(config, { ...options, cacheTokens: 65_536 });
    expect(capacityOf(all.total)).toBe(65_536);
    expect(capacityOf(all.total - all.cache / 2)).toBe(32_768);
    expect(() => capacityOf(all.total - all.cache)).toThrow(ConfigError);
  });

  test('is not looked at when told so, and refused by the engine otherwise', async () => {
    const tooMuch = { ...options, modelDirectory, seed: 0, cacheTokens: 2 ** 40 };
    await expect(createEmbeddedEngine(tooMuch)).rejects.toMatchObject({ details: { code: 'not_enough_memory' } });
    await expect(createEmbeddedEngine({ ...tooMuch, isMemoryChecked: false })).rejects.not.toMatchObject({
      details: { code: 'not_enough_memory' },
    });
  });
});

describe('what there is', () => {
  const write = async (root: string, files: Readonly<Record<string, string>>): Promise<string> => {
    for (const [path, text] of Object.entries(files)) {
      await mkdir(dirname(join(root, path)), { recursive: true });
      await writeFile(join(root, path), text);
    }
    return root;
  };
  const meminfo = { 'proc/meminfo': 'MemTotal: 900 kB\nMemAvailable:    800 kB\n' };

  test('is what the kernel has left', async () => {
    expect(await readAvailableMemory(await write(join(folder, 'plain'), meminfo))).toMatchObject({ bytes: 800 * 1024 });
  });

  test('is less in a group of version 2, also in one that holds ours; droppable caches count as free', async () => {
    const root = await write(join(folder, 'v2'), {
      ...meminfo,
      'proc/self/cgroup': '0::/outer/inner\n',
      'sys/fs/cgroup/outer/memory.max': '500000\n',
      'sys/fs/cgroup/outer/memory.current': '400000\n',
      'sys/fs/cgroup/outer/memory.stat': 'anon 1\ninactive_file 50000\n',
      'sys/fs/cgroup/outer/inner/memory.max': 'max\n',
      'sys/fs/cgroup/outer/inner/memory.current': '400000\n',
    });
    const limit = `the control group's ${join(root, 'sys/fs/cgroup/outer/memory.max')}`;
    expect(await readAvailableMemory(root)).toEqual({ bytes: 150_000, limit });
  });

  test('is less in a group of version 1, seen from inside a container', async () => {
    const root = await write(join(folder, 'v1'), {
      ...meminfo,
      'proc/self/cgroup': '3:cpu:/\n4:memory:/docker/abc\n',
      'sys/fs/cgroup/memory/memory.limit_in_bytes': '300000\n',
      'sys/fs/cgroup/memory/memory.usage_in_bytes': '100000\n',
      'sys/fs/cgroup/memory/memory.stat': 'total_inactive_file 20000\n',
    });
    expect((await readAvailableMemory(root)).bytes).toBe(220_000);
  });
});
