/** Two thousand requests at once through the real process of the engine, and policies that are published meanwhile. */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { createTinyModelFolder, type TinyModelFolder } from '../../../test/tiny-model-folder.ts';
import { AbortedError } from '../../core/errors.ts';
import { adam, collect, contractIds, expectIdle, sampleRequest, trainingRequest } from '../contract-subject.ts';
import type { Engine, SampleRequest } from '../engine.ts';
import { createEmbeddedEngine } from './engine.ts';

let files: TinyModelFolder;
let engine: Engine;
let vocabSize = 0;

beforeAll(async () => {
  files = await createTinyModelFolder();
  const training = { kind: 'lora', rank: 2, alpha: 4 } as const;
  engine = await createEmbeddedEngine({ modelDirectory: files.modelDirectory, seed: 1, training, cacheTokens: 8192 });
  vocabSize = (await engine.doInfo()).vocabSize;
}, 60_000);
afterAll(async () => {
  await engine.close();
  await files.remove();
});

function request(i: number, signal?: AbortSignal): SampleRequest {
  const promptIds = [...contractIds(6, vocabSize, 'shared', i % 7), ...contractIds(1 + (i % 20), vocabSize, 'own', i)];
  const sampling = { seed: i, maxTokens: 4 + (i % 9), temperature: i % 4 === 0 ? 0 : 1 };
  return sampleRequest({ promptIds, isStreaming: i % 2 === 0, ...(signal ? { signal } : {}) }, sampling);
}

test('2,000 requests at once: none lost, none crossed, aborted ones leave nothing', { timeout: 120_000 }, async () => {
  const isAborted = (i: number): boolean => i % 10 === 3;
  const outcomes = await Promise.all(
    Array.from({ length: 2000 }, async (_, i) => {
      const abort = new AbortController();
      if (isAborted(i)) setTimeout(() => abort.abort(), i % 200);
      return collect(engine, request(i, abort.signal)).catch((error: unknown) => error as Error);
    }),
  );
  await expectIdle(engine);
  let finished = 0;
  for (const [i, outcome] of outcomes.entries()) {
    if (outcome instanceof Error) {
      expect(outcome).toBeInstanceOf(AbortedError);
      expect(isAborted(i)).toBe(true);
      continue;
    }
    finished++;
    expect(outcome.tokenIds).toHaveLength(4 + (i % 9));
    if (i % 37 !== 0) continue;
    const alone = await collect(engine, request(i));
    expect([alone.tokenIds, alone.logprobs]).toEqual([outcome.tokenIds, outcome.logprobs]);
  }
  expect(finished).toBeGreaterThanOrEqual(1800);
});

test('a request keeps its policy to the end, however many are published; the two newest stay', {
  timeout: 60_000,
}, async () => {
  const promptIds = contractIds(9, vocabSize, 'policy');
  const long = sampleRequest({ promptIds, isStreaming: true }, { maxTokens: 140 });
  const before = await collect(engine, long);
  const step = before.finish.policyStep;
  let published = 0;
  const logprobs: number[] = [];
  let finishStep = -1;
  for await (const event of engine.doSample(long)) {
    if (event.type === 'tokens') logprobs.push(...event.logprobs);
    if (event.type === 'finish') finishStep = event.policyStep;
    if (published === 3) continue;
    published++;
    await engine.doForwardBackward(trainingRequest(vocabSize, `policy ${published}`));
    await engine.doOptimStep(adam);
    await engine.doPublish({ step: step + published });
  }
  expect([finishStep, logprobs]).toEqual([step, before.logprobs]);
  expect((await engine.doInfo()).policySteps).toEqual([step + 2, step + 3]);
  expect((await collect(engine, long)).finish.policyStep).toBe(step + 3);
  await expect(collect(engine, { ...long, policyStep: step })).rejects.toThrow(
    /policy step: must be one of those served/,
  );
});
