/** Engine contract: what is refused, and that the engine stays usable. Layer 4. */
import { expect, test } from 'vitest';
import { CheckpointError, ConfigError, DataError, EngineError } from '../core/errors.ts';
import { adam, cispo, collect, expectIdle, type Subject, sampleRequest, trainingRequest } from './contract-subject.ts';
import type { Datum, Engine, ForwardBackwardRequest, LossConfig, SampleRequest, SamplingParams } from './engine.ts';

/** Registers the tests; call inside `describe`. */
export function testErrors(subject: Subject): void {
  type Attempt = readonly [string, (engine: Engine) => Promise<unknown>, new (message: string) => Error];
  const wrongSampling = (sampling: Partial<SamplingParams>, request: Partial<SampleRequest> = {}): Attempt[1] => {
    return (engine) => collect(engine, sampleRequest({ promptIds: [1, 2, 3], ...request }, sampling));
  };
  const wrongTraining = (change: (request: ForwardBackwardRequest) => Partial<ForwardBackwardRequest>): Attempt[1] => {
    return (engine) => {
      const request = trainingRequest(32, 'wrong', 2);
      return engine.doForwardBackward({ ...request, ...change(request) });
    };
  };
  const inData =
    (change: Partial<Datum>) =>
    ({ data }: ForwardBackwardRequest) => ({ data: [data[0]!, { ...data[1]!, ...change }] });
  const score = (request: object): Attempt[1] => {
    const right = { tokenIds: [1, 2, 3], temperature: 1, source: { kind: 'served', policyStep: 0 } as const };
    return async (engine) => {
      const policyStep = Math.max(...(await engine.doInfo()).policySteps);
      return engine.doLogprobs({ ...right, source: { kind: 'served', policyStep }, ...request });
    };
  };
  test.each<Attempt>([
    ['an empty prompt', wrongSampling({}, { promptIds: [] }), DataError],
    ['a prompt as long as the context', wrongSampling({}, { promptIds: new Array(100_000).fill(1) }), DataError],
    ['an id outside the vocabulary', wrongSampling({}, { promptIds: [1, 1e6] }), DataError],
    ['an id that is no whole number', wrongSampling({}, { promptIds: [1.5] }), DataError],
    ['a policy step that is not served', wrongSampling({}, { policyStep: 12_345 }), ConfigError],
    ['maxTokens 0', wrongSampling({ maxTokens: 0 }), ConfigError],
    ['a negative temperature', wrongSampling({ temperature: -1 }), ConfigError],
    ['temperature NaN', wrongSampling({ temperature: Number.NaN }), ConfigError],
    ['topP above 1', wrongSampling({ topP: 1.5 }), ConfigError],
    ['a fractional seed', wrongSampling({ seed: 0.5 }), ConfigError],
    ['minP above 1', wrongSampling({ minP: 2 }), ConfigError],
    ['a penalty out of range', wrongSampling({ frequencyPenalty: 3 }), ConfigError],
    ['a bias of an unknown token', wrongSampling({ logitBias: [[1e6, 1]] }), ConfigError],
    ['21 alternatives of prompt tokens', wrongSampling({}, { promptLogprobs: 21 }), ConfigError],
    ['an empty stop string', wrongSampling({ stopStrings: [''] }), ConfigError],
    ['no data', wrongTraining(() => ({ data: [] })), DataError],
    ['no action tokens', wrongTraining(({ data }) => ({ data: [noActions(data[0]!)] })), DataError],
    ['arrays of unequal length', wrongTraining(inData({ advantages: [1] })), DataError],
    ['training ids outside the vocabulary', wrongTraining(inData(trained([1, 1e6]))), DataError],
    [
      'a sampling logprob of NaN',
      wrongTraining(inData({ ...trained([1, 2]), samplingLogprobs: [0, Number.NaN] })),
      DataError,
    ],
    ['a scale of Infinity', wrongTraining(() => ({ scale: Number.POSITIVE_INFINITY })), ConfigError],
    [
      'a clip bound of NaN',
      wrongTraining(() => ({ loss: { ...cispo, clipHigh: Number.NaN } as LossConfig })),
      ConfigError,
    ],
    ['an update without gradients', (engine) => engine.doOptimStep(adam), ConfigError],
    ['ids to score outside the vocabulary', score({ tokenIds: [1, 1e6] }), DataError],
    ['a single id to score', score({ tokenIds: [1] }), DataError],
    ['a score at an unknown step', score({ source: { kind: 'served', policyStep: 12_345 } }), ConfigError],
    ['a score at a negative temperature', score({ temperature: -1 }), ConfigError],
    ['a trainer score of bad ids', score({ tokenIds: [1, 1e6], source: { kind: 'trainer' } }), DataError],
    ['a checkpoint that is not there', (engine) => engine.doLoad({ directory: '/nowhere/at/all' }), CheckpointError],
  ])('%s is a typed error, and the engine stays usable', async (_name, attempt, type) => {
    const before = await subject.sample({ maxTokens: 4 });
    await expect(attempt(subject.engine)).rejects.toBeInstanceOf(type);
    await expect(attempt(subject.engine)).rejects.toThrow(/must .*, got /);
    const after = await subject.sample({ maxTokens: 4 });
    expect([after.tokenIds, after.logprobs]).toEqual([before.tokenIds, before.logprobs]);
    await expectIdle(subject.engine);
  });

  test('unknown settings are refused by name', async () => {
    const request = sampleRequest({ promptIds: [1, 2, 3] });
    const wrong = [
      { ...request, stream: true },
      { ...request, sampling: { ...request.sampling, top_k: 3 } },
    ];
    for (const [i, name] of ['stream', 'top_k'].entries()) {
      await expect(collect(subject.engine, wrong[i]!)).rejects.toThrow(new RegExp(`known options are .*; got ${name}`));
    }
    await expectIdle(subject.engine);
  });

  test('after a gradient that is not finite the next batch trains as if nothing had been', async () => {
    const request = trainingRequest(subject.vocabSize, 'finite');
    const still = { ...adam, learningRate: 0, weightDecay: 0 };
    await subject.engine.doForwardBackward(request);
    const { gradNorm } = await subject.engine.doOptimStep(still);
    const { gradientSteps } = await subject.engine.doInfo();
    // ρ = exp(training + 300) overflows float32, and PPO does not hold it back where the advantage is negative.
    const data = request.data.map((datum) => ({
      ...datum,
      samplingLogprobs: datum.actionMask.map((action) => -300 * action),
      advantages: datum.actionMask.map((action) => -action),
    }));
    await subject.engine.doForwardBackward({ ...request, data, loss: { name: 'ppo', clipLow: 0.2, clipHigh: 0.2 } });
    await expect(subject.engine.doOptimStep(still)).rejects.toBeInstanceOf(EngineError);
    expect((await subject.engine.doInfo()).gradientSteps).toBe(gradientSteps);
    await subject.engine.doForwardBackward(request);
    expect((await subject.engine.doOptimStep(still)).gradNorm).toBe(gradNorm);
  });
}

function trained(tokenIds: readonly number[]): Datum {
  const ones = tokenIds.map(() => 1);
  const mask = tokenIds.map((_, t) => (t === 0 ? 0 : 1));
  return { tokenIds, actionMask: mask, samplingLogprobs: mask, advantages: mask, temperatures: ones };
}

function noActions(datum: Datum): Datum {
  return { ...datum, actionMask: datum.actionMask.map(() => 0) };
}
