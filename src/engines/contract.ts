/**
 * The suite that every engine passes. Layer 4. Runs under Vitest: call `runEngineContract` at the top of a test file.
 * It asks for exactness: the trainer gives the very logprobs that were recorded at sampling, and a seed gives the same tokens
 * whatever else is served.
 */
import { createHash } from 'node:crypto';
import { mkdtemp, readdir, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { EngineError } from '../core/errors.ts';
import { testErrors } from './contract-errors.ts';
import { testLosses } from './contract-losses.ts';
import { testSampling } from './contract-sampling.ts';
import { adam, collect, contractIds, Subject, sampleRequest, trainingRequest } from './contract-subject.ts';
import { testTraining } from './contract-training.ts';
import type { Engine } from './engine.ts';

/**
 * `createEngine` starts a fresh engine on a small model with at least 100 positions and 32 ids; every call gives an equal one.
 * `decode` is the text of ids, for stop strings; a part of a character becomes U+FFFD.
 */
export function runEngineContract(
  name: string,
  createEngine: () => Promise<Engine>,
  decode: (ids: readonly number[]) => string,
): void {
  describe(`engine contract, ${name}`, () => {
    const subject = new Subject();
    beforeAll(async () => {
      subject.engine = await createEngine();
      subject.vocabSize = (await subject.engine.doInfo()).vocabSize;
    });
    afterAll(() => subject.engine.close());
    describe('sampling', () => testSampling(subject, decode));
    describe('training', () => testTraining(subject));
    describe('losses', () => testLosses(subject));
    describe('errors', () => testErrors(subject));
    describe('life', () => testLife(createEngine));
  });
}

function testLife(createEngine: () => Promise<Engine>): void {
  let folder = '';
  const engines: Engine[] = [];
  beforeAll(async () => {
    folder = await mkdtemp(join(tmpdir(), 'art-contract-'));
    engines.push(...(await Promise.all([createEngine(), createEngine()])));
  });
  afterAll(async () => {
    await Promise.all(engines.map((engine) => engine.close()));
    await rm(folder, { recursive: true });
  });

  test('before any training the weights are those of the base', async () => {
    const [engine] = engines as [Engine];
    const { data } = trainingRequest((await engine.doInfo()).vocabSize, 'base');
    const scored = await engine.doScore({ data, source: { kind: 'trainer' } });
    expect(scored.flat().some((logprob) => logprob < 0)).toBe(true);
    expect(await engine.doScore({ data, source: { kind: 'base' } })).toEqual(scored);
  });

  test('two steps equal one step, save, load into a new engine and one step, byte for byte', async () => {
    const [first, second] = engines as [Engine, Engine];
    const { vocabSize } = await first.doInfo();
    const train = async (engine: Engine, seed: string): Promise<void> => {
      await engine.doForwardBackward(trainingRequest(vocabSize, seed));
      await engine.doOptimStep(adam);
    };
    const save = async (engine: Engine, name: string): Promise<Record<string, string>> => {
      const directory = await mkdtemp(join(folder, name));
      await engine.doSave({ directory });
      return digests(directory);
    };
    const greedy = (engine: Engine) =>
      collect(engine, sampleRequest({ promptIds: contractIds(9, vocabSize, 'greedy') }, { temperature: 0 }));
    await train(first, 'one');
    const directory = await mkdtemp(join(folder, 'one-'));
    await first.doSave({ directory });
    await first.doPublish({ step: 1 });
    // What the second engine has done before the load leaves no trace, gradients included.
    await train(second, 'other');
    await second.doForwardBackward(trainingRequest(vocabSize, 'left over'));
    await second.doLoad({ directory });
    expect((await second.doInfo()).gradientSteps).toBe(1);
    await second.doPublish({ step: 1 });
    expect((await greedy(second)).logprobs).toEqual((await greedy(first)).logprobs);
    await Promise.all(engines.map((engine) => train(engine, 'two')));
    const [ours, theirs] = [await save(first, 'ours-'), await save(second, 'theirs-')];
    expect(Object.keys(ours).length).toBeGreaterThanOrEqual(2);
    expect(theirs).toEqual(ours);
    expect(ours).not.toEqual(await digests(directory));
  });

  test('close is idempotent; who waits and who comes later gets EngineError', async () => {
    const [engine] = engines as [Engine];
    const { vocabSize } = await engine.doInfo();
    const promptIds = contractIds(9, vocabSize, 'close');
    const long = sampleRequest({ promptIds, isStreaming: true }, { maxTokens: 80 });
    const waiting = [
      collect(engine, long),
      collect(engine, { ...long, isStreaming: false }),
      engine.doForwardBackward(trainingRequest(vocabSize, 'close', 160, 90)),
      engine.doLogprobs({ tokenIds: promptIds, temperature: 1, source: { kind: 'trainer' } }),
    ].map((call) =>
      call.then(
        () => 'an answer',
        (error: unknown) => error,
      ),
    );
    await Promise.all([engine.close(), engine.close()]);
    await engine.close();
    for (const error of await Promise.all(waiting)) expect(error).toBeInstanceOf(EngineError);
    await expect(engine.doInfo()).rejects.toBeInstanceOf(EngineError);
    await expect(collect(engine, long)).rejects.toBeInstanceOf(EngineError);
    await expect(engine.doPublish({ step: 9 })).rejects.toBeInstanceOf(EngineError);
  });
}

/** SHA-256 of every file of a directory. */
async function digests(directory: string): Promise<Record<string, string>> {
  const names = (await readdir(directory)).sort();
  const hash = async (name: string): Promise<string> =>
    createHash('sha256')
      .update(await readFile(join(directory, name)))
      .digest('hex');
  return Object.fromEntries(await Promise.all(names.map(async (name) => [name, await hash(name)] as const)));
}
