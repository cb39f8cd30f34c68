/** The embedded engine's process: how it starts, dies and is noticed. */
import { spawn } from 'node:child_process';
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { afterAll, describe, expect, onTestFinished, test } from 'vitest';
import { childPids, expectGone } from '../../../test/child-processes.ts';
import { createTinyModelFolder } from '../../../test/tiny-model-folder.ts';
import { AbortedError, ConfigError, DataError, EngineError } from '../../core/errors.ts';
import { collect, sampleRequest, trainingRequest } from '../contract-subject.ts';
import type { Engine } from '../engine.ts';
import { createEmbeddedEngine, type EmbeddedEngineOptions } from './engine.ts';

const model = await createTinyModelFolder();
afterAll(model.remove);
const options: EmbeddedEngineOptions = {
  modelDirectory: model.modelDirectory,
  training: { kind: 'lora', rank: 2, alpha: 4 },
  seed: 1,
  trainThreads: 1,
  cacheTokens: 2048,
};

async function start(overrides: Partial<EmbeddedEngineOptions> = {}): Promise<{ engine: Engine; pid: number }> {
  const before = childPids(process.pid);
  const engine = await createEmbeddedEngine({ ...options, ...overrides });
  onTestFinished(() => engine.close());
  const [pid, ...others] = childPids(process.pid).filter((child) => !before.includes(child));
  expect(others).toEqual([]);
  return { engine, pid: pid! };
}

/** The error of a call, and how long it took. */
async function failure(call: Promise<unknown>): Promise<{ error: unknown; ms: number }> {
  const startedAt = performance.now();
  const error = await call.then(
    () => 'an answer',
    (reason: unknown) => reason,
  );
  return { error, ms: performance.now() - startedAt };
}

const sample = sampleRequest({ promptIds: [1, 2, 3], isStreaming: true }, { maxTokens: 150 });

test('a misspelt option is refused before anything starts', async () => {
  const before = childPids(process.pid);
  const misspelt = { ...options, cacheToken: 2048 };
  await expect(createEmbeddedEngine(misspelt)).rejects.toThrow(/^engine: known options are .*; got cacheToken$/);
  expect(childPids(process.pid)).toEqual(before);
});

test('describes its model', async () => {
  const { engine, pid } = await start();
  const info = await engine.doInfo();
  // Per layer: q 32·32, k and v 16·32, o 32·32, mlp 3·48·32, norms 32 + 32 + 16 + 16.
  const perLayer = 1024 + 2 * 512 + 1024 + 4608 + 96;
  // rank · (in + out) of the seven modules
  const adapterPerLayer = 2 * (64 + 48 + 48 + 64 + 80 + 80 + 80);
  expect(info).toMatchObject({
    parameters: info.vocabSize * 32 + 2 * perLayer + 32,
    trainableParameters: 2 * adapterPerLayer,
    maxPositions: 160,
    policySteps: [0],
    gradientSteps: 0,
    sampledTokens: 0,
    trainedTokens: 0,
  });
  expect(info.peakRssBytes).toBeGreaterThanOrEqual(info.rssBytes);
  // Ctrl-C reaches the whole terminal group; the parent decides what it means.
  process.kill(pid, 'SIGINT');
  process.kill(pid, 'SIGTERM');
  expect((await collect(engine, sample)).tokenIds).toHaveLength(150);
  await engine.close();
  await expectGone(pid, 1000);
});

test('a killed process fails everyone who waits within 2 s, as retryable, and closes cleanly', async () => {
  const { engine, pid } = await start();
  const waiting = [
    collect(engine, sample),
    collect(engine, { ...sample, isStreaming: false }),
    engine.doForwardBackward(trainingRequest(32, 'kill', 200, 90)),
    engine.doLogprobs({ tokenIds: [1, 2], temperature: 1, source: { kind: 'trainer' } }),
  ].map(failure);
  await new Promise((resolve) => setTimeout(resolve, 50));
  process.kill(pid, 'SIGKILL');
  for (const { error, ms } of await Promise.all(waiting)) {
    expect(error).toBeInstanceOf(EngineError);
    expect(error).toMatchObject({ details: { isRetryable: true, signal: 'SIGKILL' } });
    expect(String(error)).toContain('engine: its process ended unexpectedly (SIGKILL)');
    expect(ms).toBeLessThan(2000);
  }
  const later = await failure(engine.doInfo());
  expect(later.error).toMatchObject({ details: { isRetryable: true } });
  await engine.close();
});

test('a process that stands still: the limit names what was waited for, and the process is ended', async () => {
  const { engine, pid } = await start({ callTimeoutMs: 5000 });
  process.kill(pid, 'SIGSTOP');
  const both = [failure(engine.doInfo()), failure(collect(engine, sample))];
  const [first, second] = (await Promise.all(both)).sort((a, b) => a.ms - b.ms);
  const rules = ["'info' must answer within 5000 ms, got no answer", 'must make progress within 5000 ms, got none'];
  expect(rules.some((rule) => String(first!.error).endsWith(rule))).toBe(true);
  expect(rules.some((rule) => String(second!.error).endsWith(rule))).toBe(true);
  for (const { error, ms } of [first!, second!]) {
    expect(error).toMatchObject({ code: 'engine_error', details: { isRetryable: true } });
    expect(ms).toBeLessThan(8000);
  }
  await expectGone(pid, 1000);
});

test('a quiet process is asked whether it lives, and ended when it does not answer', async () => {
  const { engine, pid } = await start({ hangLimitMs: 800 });
  expect(engine.processId?.()).toBe(pid);
  // It answers, so it lives on.
  await new Promise((resolve) => setTimeout(resolve, 2500));
  const info = await engine.doInfo();
  expect(info.policySteps).toEqual([0]);
  process.kill(pid, 'SIGSTOP');
  const error = await engine.died;
  expect(String(error)).toBe(
    'EngineError: engine: its process was ended: must say something within 800 ms of being asked, said nothing',
  );
  await expectGone(pid, 1000);
});

test('a start is given up when its signal fires', async () => {
  const before = childPids(process.pid);
  const aborter = new AbortController();
  const starting = failure(createEmbeddedEngine(options, aborter.signal));
  setTimeout(() => aborter.abort(), 100);
  const { error, ms } = await starting;
  expect(error).toBeInstanceOf(AbortedError);
  expect(ms).toBeLessThan(2000);
  expect(childPids(process.pid)).toEqual(before);
});

test('the process ends with its parent, even in the middle of training', async () => {
  const script = join(model.folder, 'parent.mjs');
  const engineFile = pathToFileURL(join(import.meta.dirname, '../../../dist/src/engines/embedded/engine.js'));
  const request = trainingRequest(32, 'parent', 200, 90);
  await writeFile(
    script,
    `import { createEmbeddedEngine } from ${JSON.stringify(engineFile)};
     const engine = await createEmbeddedEngine(${JSON.stringify(options)});
     engine.doForwardBackward(${JSON.stringify(request)}).catch(() => undefined);
     await engine.doInfo();
     console.log('ready');
     setInterval(() => undefined, 1000);`,
  );
  const parent = spawn(process.execPath, [script], { stdio: ['ignore', 'pipe', 'inherit'] });
  onTestFinished(() => void parent.kill('SIGKILL'));
  await new Promise((resolve, reject) => {
    parent.stdout.once('data', resolve);
    parent.once('exit', (code) => reject(new Error(`the parent must come up, got exit code ${code}`)));
  });
  const [child, ...others] = childPids(parent.pid!);
  expect(others).toEqual([]);
  parent.kill('SIGKILL');
  await expectGone(child!, 5000);
});

describe('a start that fails leaves no process behind', () => {
  const attempt = async (overrides: Partial<EmbeddedEngineOptions>): Promise<unknown> => {
    const before = childPids(process.pid);
    const { error } = await failure(createEmbeddedEngine({ ...options, ...overrides }));
    expect(childPids(process.pid)).toEqual(before);
    return error;
  };

  test('a directory that is not there', async () => {
    const error = await attempt({ modelDirectory: join(model.folder, 'nothing') });
    expect(error).toEqual(new DataError(`${join(model.folder, 'nothing', 'config.json')}: file is missing`));
  });

  test('an option out of range', async () => {
    const error = await attempt({ training: { kind: 'lora', rank: 0, alpha: 1 } });
    expect(error).toEqual(new ConfigError('lora.rank: must be a whole number ≥ 1, got 0'));
    expect(await attempt({ cacheTokens: 1 })).toEqual(new ConfigError('cacheTokens: must be at least 8, got 1'));
  });

  test('a time limit that names the call', async () => {
    const error = await attempt({ callTimeoutMs: 1 });
    const details = { isRetryable: false };
    expect(error).toEqual(new EngineError("engine: 'start' must answer within 1 ms, got no answer", { details }));
  });

  test('a program that cannot be run', async () => {
    const { execPath } = process;
    process.execPath = join(model.folder, 'no-node');
    onTestFinished(() => {
      process.execPath = execPath;
    });
    const { error } = await failure(createEmbeddedEngine(options));
    process.execPath = execPath;
    expect(error).toEqual(new EngineError('engine: its process must start and stay reachable'));
  });
});

test('a request that cannot be cloned is a DataError, and the engine stays usable', async () => {
  const { engine } = await start();
  const noData = (() => 1) as unknown as number;
  await expect(engine.doPublish({ step: noData })).rejects.toBeInstanceOf(DataError);
  await expect(collect(engine, { ...sample, policyStep: noData })).rejects.toBeInstanceOf(DataError);
  expect((await engine.doInfo()).policySteps).toEqual([0]);
});
