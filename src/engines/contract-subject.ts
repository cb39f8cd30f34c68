/**
 * What the parts of the engine contract share: one engine, requests for it, and how they are run. Layer 4.
 */
import { expect } from 'vitest';
import { createRng } from '../core/rng.ts';
import type {
  Datum,
  Engine,
  ForwardBackwardRequest,
  LossConfig,
  OptimStepRequest,
  SampleEvent,
  SampleRequest,
  SamplingParams,
} from './engine.ts';

export interface Sampled {
  readonly tokenIds: number[];
  readonly logprobs: number[];
  readonly events: SampleEvent[];
  readonly finish: Extract<SampleEvent, { type: 'finish' }>;
}

/** One engine that several tests share: each must work in whatever state the others left it. */
export class Subject {
  engine!: Engine;
  vocabSize = 0;

  ids(count: number, ...seed: (string | number)[]): number[] {
    return contractIds(count, this.vocabSize, ...seed);
  }

  sample(overrides: Partial<SamplingParams>, request: Partial<SampleRequest> = {}): Promise<Sampled> {
    const promptIds = this.ids(12, 'prompt');
    return collect(this.engine, sampleRequest({ promptIds, ...request }, overrides));
  }

  async newestStep(): Promise<number> {
    return Math.max(...(await this.engine.doInfo()).policySteps);
  }

  /** Trains on random data and publishes the next step. */
  async trainAndPublish(): Promise<number> {
    await this.engine.doForwardBackward(trainingRequest(this.vocabSize, 'train'));
    await this.engine.doOptimStep(adam);
    const step = (await this.newestStep()) + 1;
    await this.engine.doPublish({ step });
    return step;
  }
}

/** Seeded ids below 32, which every vocabulary has. */
export function contractIds(count: number, vocabSize: number, ...seed: readonly (string | number)[]): number[] {
  const rng = createRng('engine-contract', ...seed);
  return Array.from({ length: count }, () => rng.integer(Math.min(vocabSize, 32)));
}

/** A request that samples 16 tokens at temperature 1 from the newest policy, but for what is given. */
export function sampleRequest(
  request: Partial<SampleRequest> & Pick<SampleRequest, 'promptIds'>,
  sampling: Partial<SamplingParams> = {},
): SampleRequest {
  const defaults: SamplingParams = {
    maxTokens: 16,
    temperature: 1,
    topP: 1,
    topK: 0,
    seed: 1,
    stopTokenIds: [],
    stopStrings: [],
    topLogprobs: 0,
  };
  return { policyStep: null, isStreaming: false, sampling: { ...defaults, ...sampling }, ...request };
}

/** Runs a request to its end, and checks what holds for every one. */
export async function collect(engine: Engine, request: SampleRequest): Promise<Sampled> {
  const events: SampleEvent[] = [];
  for await (const event of engine.doSample(request)) events.push(event);
  const finish = events.at(-1);
  if (finish?.type !== 'finish') throw new Error(`the last event must be finish, got ${finish?.type}`);
  const first = events[0]?.type === 'prompt' ? 1 : 0;
  const tokens = events.slice(first, -1).map((event) => {
    if (event.type !== 'tokens') throw new Error('finish must be the last event');
    expect(event.logprobs).toHaveLength(event.tokenIds.length);
    return event;
  });
  const logprobs = tokens.flatMap((event) => event.logprobs);
  for (const logprob of logprobs) expect(logprob <= 0 && logprob === Math.fround(logprob)).toBe(true);
  return { tokenIds: tokens.flatMap((event) => event.tokenIds), logprobs, events, finish };
}

/** Large enough a rate that one update changes the logprobs. */
export const adam: OptimStepRequest = {
  learningRate: 0.02,
  beta1: 0.9,
  beta2: 0.99,
  epsilon: 1e-8,
  weightDecay: 0.01,
  maxGradNorm: 1,
};
/** With CISPO's default clip range. */
export const cispo: LossConfig = { name: 'cispo', clipLow: 0, clipHigh: 5 };

/** Random sequences of up to `length` tokens. */
export function trainingRequest(vocabSize: number, seed: string, count = 6, length = 40): ForwardBackwardRequest {
  const rng = createRng('engine-contract', seed);
  const data = Array.from({ length: count }, (_, i): Datum => {
    const tokenIds = contractIds(length - rng.integer(length / 2), vocabSize, seed, i);
    const actionMask = tokenIds.map((_, t) => (t > 4 ? 1 : 0));
    const perAction = (value: () => number, otherwise: number): number[] =>
      actionMask.map((action) => (action === 1 ? value() : otherwise));
    return {
      tokenIds,
      actionMask,
      samplingLogprobs: perAction(() => -3, 0),
      advantages: perAction(rng.normal, 0),
      temperatures: perAction(() => 1, 1),
    };
  });
  return { data, loss: cispo, scale: 1 / (count * length) };
}

/** Waits, within bounds, until no sequence runs or waits. */
export async function expectIdle(engine: Engine): Promise<void> {
  await expect
    .poll(async () => {
      const { runningSequences, waitingSequences } = await engine.doInfo();
      return runningSequences + waitingSequences;
    })
    .toBe(0);
}
