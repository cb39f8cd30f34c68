/** Rollouts rounded to 8 bits: near the trainer, not at it. */
import { afterAll, expect, onTestFinished, test } from 'vitest';
import { createTinyModelFolder } from '../../../test/tiny-model-folder.ts';
import { ConfigError } from '../../core/errors.ts';
import { collect, sampleRequest } from '../contract-subject.ts';
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

test('int8 records the logprobs that it sampled by, which are near the trainer', async () => {
  const engine = await createEmbeddedEngine({ ...options, rolloutPrecision: 'int8' });
  onTestFinished(() => engine.close());
  const request = sampleRequest({ promptIds: [5, 6, 7] }, { maxTokens: 60 });
  const { tokenIds, logprobs } = await collect(engine, request);
  const ids = [...request.promptIds, ...tokenIds];
  const trained = await engine.doLogprobs({ tokenIds: ids, temperature: 1, source: { kind: 'trainer' } });
  const served = await engine.doLogprobs({
    tokenIds: ids,
    temperature: 1,
    source: { kind: 'served', policyStep: 0 },
  });
  const mean = (values: readonly number[]): number => values.reduce((sum, value) => sum + value, 0) / values.length;
  const apart = (a: readonly number[]): number => mean(a.map((value, t) => Math.abs(value - logprobs[t]!)));
  // Two roundings to 1/127 a product, in four layers of them.
  expect(apart(trained.slice(3))).toBeLessThan(0.1);
  expect(apart(trained.slice(3))).toBeGreaterThan(0);
  expect(apart(served.slice(3))).toBeLessThan(0.1);
});

test.each([
  [{ rolloutPrecision: 'int4' as 'int8' }, "rolloutPrecision: must be float32 or int8, got 'int4'"],
  [
    { rolloutPrecision: 'int8', training: { kind: 'full' } },
    "rolloutPrecision: int8 needs training by LoRA, got training 'full'",
  ],
] as const)('refuses %o', async (wrong, message) => {
  await expect(createEmbeddedEngine({ ...options, ...wrong })).rejects.toThrow(new ConfigError(message));
});
