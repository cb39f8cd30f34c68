/** Engine contract: training, publishing, and the agreement of trainer and sampler. Layer 4. */
import { expect, test } from 'vitest';
import { adam, cispo, collect, type Subject, sampleRequest, trainingRequest } from './contract-subject.ts';
import type { Datum, SampleEvent } from './engine.ts';

/** Registers the tests; call inside `describe`. */
export function testTraining(subject: Subject): void {
  test('doLogprobs scores sampled tokens as they were recorded, from the sampler and from the trainer', async () => {
    const policyStep = await subject.trainAndPublish();
    const promptIds = subject.ids(12, 'prompt');
    for (const temperature of [1, 0.6]) {
      const { tokenIds, logprobs } = await subject.sample({ temperature });
      const whole = { tokenIds: [...promptIds, ...tokenIds], temperature };
      for (const source of [{ kind: 'served', policyStep }, { kind: 'trainer' }] as const) {
        const scored = await subject.engine.doLogprobs({ ...whole, source });
        expect([scored.length, scored[0]]).toEqual([whole.tokenIds.length, 0]);
        expect(scored.slice(12), source.kind).toEqual(logprobs);
      }
    }
  });

  test('the mismatch between sampler and trainer is exactly 0 over 1,000 tokens in mixed batches', async () => {
    const policyStep = await subject.trainAndPublish();
    const samples = Array.from({ length: 30 }, async (_, i) => {
      const promptIds = subject.ids(3 + ((i * 11) % 40), 'mixed', i % 9);
      const temperature = [1, 0.7, 1.3][i % 3]!;
      const request = sampleRequest({ promptIds, policyStep }, { seed: i, temperature, maxTokens: 25 + (i % 4) * 8 });
      return { promptIds, temperature, ...(await collect(subject.engine, request)) };
    });
    const data = (await Promise.all(samples)).map(({ promptIds, tokenIds, logprobs, temperature }): Datum => {
      const zeros = promptIds.map(() => 0);
      return {
        tokenIds: [...promptIds, ...tokenIds],
        actionMask: [...zeros, ...tokenIds.map(() => 1)],
        samplingLogprobs: [...zeros, ...logprobs],
        advantages: [...zeros, ...tokenIds.map(() => 1)],
        temperatures: [...zeros.map(() => 1), ...tokenIds.map(() => temperature)],
      };
    });
    const result = await subject.engine.doForwardBackward({ data, loss: cispo, scale: 1e-3 });
    expect(result.actionTokens).toBeGreaterThan(1000);
    for (const [i, { samplingLogprobs }] of data.entries()) {
      expect(result.trainingLogprobs[i], `datum ${i}`).toEqual(samplingLogprobs);
    }
    await subject.engine.doOptimStep(adam);
  });

  test('training changes what is served only by publishing', async () => {
    const step = await subject.newestStep();
    const request = trainingRequest(subject.vocabSize, 'served');
    const before = await subject.sample({ temperature: 0 });
    const first = await subject.engine.doForwardBackward(request);
    const again = await subject.engine.doForwardBackward(request);
    // Gradients accumulate; the weights stay, so the same batch gives the same.
    expect(again).toEqual(first);
    const { gradientSteps } = await subject.engine.doInfo();
    const update = await subject.engine.doOptimStep(adam);
    expect(update.gradientSteps).toBe(gradientSteps + 1);
    expect(update.gradNorm).toBeGreaterThan(0);
    const after = await subject.engine.doForwardBackward(request);
    expect(after.trainingLogprobs).not.toEqual(first.trainingLogprobs);
    expect((await subject.sample({ temperature: 0 })).logprobs).toEqual(before.logprobs);
    await subject.engine.doOptimStep(adam);
    await subject.engine.doPublish({ step: step + 1 });
    const served = await subject.sample({ temperature: 0 });
    expect(served.finish.policyStep).toBe(step + 1);
    expect(served.logprobs).not.toEqual(before.logprobs);
    // The step before is still served, with its own weights.
    expect((await subject.sample({ temperature: 0 }, { policyStep: step })).logprobs).toEqual(before.logprobs);
    expect((await subject.engine.doInfo()).policySteps).toEqual(expect.arrayContaining([step, step + 1]));
  });

  test('gradients of several calls add up, and an update clears them', async () => {
    const request = trainingRequest(subject.vocabSize, 'norms');
    const still = { ...adam, learningRate: 0, weightDecay: 0 };
    const norms: number[] = [];
    for (const calls of [1, 3, 1]) {
      for (let i = 0; i < calls; i++) await subject.engine.doForwardBackward(request);
      norms.push((await subject.engine.doOptimStep(still)).gradNorm);
    }
    expect(norms[2]).toBe(norms[0]);
    expect(norms[1]! / norms[0]!).toBeCloseTo(3, 5);
  });

  test('a request under way keeps its policy when another is published', async () => {
    const policyStep = await subject.newestStep();
    const request = sampleRequest({ promptIds: subject.ids(12, 'prompt'), isStreaming: true }, { maxTokens: 80 });
    const undisturbed = await collect(subject.engine, request);
    await subject.engine.doForwardBackward(trainingRequest(subject.vocabSize, 'under way'));
    await subject.engine.doOptimStep(adam);
    const events: SampleEvent[] = [];
    let isPublished = false;
    let published: Promise<void> | null = null;
    for await (const event of subject.engine.doSample(request)) {
      if (event.type === 'finish') expect(isPublished).toBe(true);
      events.push(event);
      published ??= subject.engine.doPublish({ step: policyStep + 1 }).then(() => {
        isPublished = true;
      });
    }
    await published;
    expect(events.at(-1)).toMatchObject({ type: 'finish', policyStep });
    const tokens = events.filter((event) => event.type === 'tokens');
    expect(tokens.flatMap(({ tokenIds }) => tokenIds)).toEqual(undisturbed.tokenIds);
    expect(tokens.flatMap(({ logprobs }) => logprobs)).toEqual(undisturbed.logprobs);
    expect((await collect(subject.engine, request)).finish.policyStep).toBe(policyStep + 1);
  });

  test('a step published again serves its new weights, also to prompts that it has seen', async () => {
    const step = await subject.newestStep();
    const before = await subject.sample({ temperature: 0 });
    await subject.engine.doForwardBackward(trainingRequest(subject.vocabSize, 'again'));
    await subject.engine.doOptimStep(adam);
    await subject.engine.doPublish({ step });
    const after = await subject.sample({ temperature: 0 });
    expect(after.logprobs).not.toEqual(before.logprobs);
    const whole = [...subject.ids(12, 'prompt'), ...after.tokenIds];
    const scored = await subject.engine.doLogprobs({ tokenIds: whole, temperature: 1, source: { kind: 'trainer' } });
    expect(scored.slice(12)).toEqual(after.logprobs);
  });

  test('sampling goes on while training runs', async () => {
    let isTraining = true;
    const request = trainingRequest(subject.vocabSize, 'long', 80, 90);
    const training = subject.engine.doForwardBackward(request).finally(() => {
      isTraining = false;
    });
    let finished = 0;
    while (isTraining) {
      await subject.sample({ maxTokens: 4, seed: finished });
      if (isTraining) finished++;
    }
    await training;
    await subject.engine.doOptimStep(adam);
    expect(finished).toBeGreaterThan(0);
  });

  test('counters count', async () => {
    const before = await subject.engine.doInfo();
    const { tokenIds } = await subject.sample({});
    const { tokens } = await subject.engine.doForwardBackward(trainingRequest(subject.vocabSize, 'counters'));
    await subject.engine.doOptimStep(adam);
    const after = await subject.engine.doInfo();
    expect(after.sampledTokens - before.sampledTokens).toBe(tokenIds.length);
    expect(after.trainedTokens - before.trainedTokens).toBe(tokens);
    expect(after.gradientSteps - before.gradientSteps).toBe(1);
  });
}
