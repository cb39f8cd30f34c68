/** A real model in the embedded engine: text and logprobs as in transformers, sampler and trainer bit for bit alike, LoRA training. */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { adam, cispo, collect, sampleRequest } from '../../src/engines/contract-subject.ts';
import { createEmbeddedEngine } from '../../src/engines/embedded/engine.ts';
import type { Datum, Engine } from '../../src/engines/engine.ts';
import { expectClose, tolerances } from '../tolerance.ts';
import { decodeFloats, describeWithModel, expected } from './smollm2.ts';

/** Limits for a machine that is busy with other things. */
const minutes = (count: number): number => count * 60_000;

describeWithModel('SmolLM2-135M-Instruct in the embedded engine', (path) => {
  let engine: Engine;
  const { promptIds, textIds } = expected;

  beforeAll(async () => {
    engine = await createEmbeddedEngine({
      modelDirectory: path,
      training: { kind: 'lora', rank: 4, alpha: 8, targetModules: ['q_proj', 'v_proj', 'down_proj'] },
      seed: 3,
      sampleThreads: 2,
      trainThreads: 2,
      cacheTokens: 8192,
    });
  }, minutes(3));
  afterAll(() => engine?.close());

  test('the greedy continuation is transformers’', async () => {
    const request = sampleRequest({ promptIds, policyStep: 0 }, { temperature: 0, maxTokens: 32 });
    expect((await collect(engine, request)).tokenIds).toEqual(expected.greedyIds);
  });

  test('logprobs of 200 tokens are transformers’, from the sampler and from the trainer', async () => {
    const reference = decodeFloats(expected.logprobs);
    for (const source of [{ kind: 'served', policyStep: 0 }, { kind: 'trainer' }] as const) {
      const logprobs = await engine.doLogprobs({ tokenIds: textIds, temperature: 1, source });
      expectClose(logprobs.slice(1), reference, tolerances.logits, source.kind);
    }
  });

  test(
    'two updates on a text lower its loss',
    async () => {
      const zeros = textIds.map(() => 0);
      const datum: Datum = {
        tokenIds: textIds,
        actionMask: textIds.map((_, t) => Number(t > 0)),
        samplingLogprobs: zeros,
        advantages: zeros,
        temperatures: textIds.map(() => 1),
      };
      const losses: number[] = [];
      for (let update = 0; update < 3; update++) {
        const { loss } = await engine.doForwardBackward({
          data: [datum],
          loss: { name: 'crossEntropy' },
          scale: 1 / (textIds.length - 1),
        });
        losses.push(loss);
        if (update < 2) await engine.doOptimStep({ ...adam, learningRate: 2e-3 });
      }
      const mean = decodeFloats(expected.logprobs).reduce((sum, value) => sum - value, 0) / (textIds.length - 1);
      expect(losses[0]).toBeCloseTo(mean, 3);
      expect(losses[1]).toBeLessThan(losses[0]! - 0.01);
      expect(losses[2]).toBeLessThan(losses[1]! - 0.01);
    },
    minutes(3),
  );

  /** The adapter is not zero by then: the test before has trained it. */
  test(
    'sampler and trainer agree bit for bit on 1,000 tokens of mixed batches',
    async () => {
      await engine.doPublish({ step: 1 });
      const starts = [0, 3, 60, 110, 17];
      const samples = Array.from({ length: 22 }, async (_, i) => {
        const start = starts[i % starts.length]!;
        const prompt = i % 4 === 0 ? promptIds : textIds.slice(start, start + 5 + ((i * 13) % 90));
        const temperature = [1, 0.7, 1.3][i % 3]!;
        const overrides = { seed: i, temperature, maxTokens: 30 + (i % 5) * 12 };
        return {
          prompt,
          temperature,
          ...(await collect(engine, sampleRequest({ promptIds: prompt, policyStep: 1 }, overrides))),
        };
      });
      const data = (await Promise.all(samples)).map(({ prompt, tokenIds, logprobs, temperature }): Datum => {
        const zeros = prompt.map(() => 0);
        return {
          tokenIds: [...prompt, ...tokenIds],
          actionMask: [...zeros, ...tokenIds.map(() => 1)],
          samplingLogprobs: [...zeros, ...logprobs],
          advantages: [...zeros, ...tokenIds.map(() => 1)],
          temperatures: [...zeros.map(() => 1), ...tokenIds.map(() => temperature)],
        };
      });
      const result = await engine.doForwardBackward({ data, loss: cispo, scale: 1e-3 });
      expect(result.actionTokens).toBeGreaterThan(1000);
      for (const [i, { samplingLogprobs }] of data.entries()) {
        expect(result.trainingLogprobs[i], `datum ${i}`).toEqual(samplingLogprobs);
      }
      // The trainer's scoring of one sequence alone, another graph and another batch.
      const [first] = data;
      const scored = await engine.doLogprobs({
        tokenIds: first!.tokenIds,
        temperature: 1,
        source: { kind: 'trainer' },
      });
      const from = promptIds.length;
      expect(scored.slice(from)).toEqual(first!.samplingLogprobs.slice(from));
    },
    minutes(5),
  );
});
