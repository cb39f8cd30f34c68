/**
 * An engine with one weight, for tests of the training server: every logprob is −1 − weight, every update subtracts learningRate × gradient.
 * Unlike the scripted engine it keeps its state in files, serves several steps at once, and fails where a test says so.
 */
import { readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { CheckpointError, EngineError } from '../../src/core/errors.ts';
import type { Engine, ForwardBackwardRequest } from '../../src/engines/engine.ts';

export type EngineCall = 'forwardBackward' | 'optimStep' | 'publish' | 'save' | 'load' | 'logprobs' | 'score';

export interface CountingEngine extends Engine {
  readonly calls: string[];
  readonly requests: ForwardBackwardRequest[];
  /** The calls of this name reject from now on. */
  failing: EngineCall | null;
  /** Served logprobs differ from the trainer's by this from the next publish on. */
  servedError: number;
  /** Awaited by every doForwardBackward. */
  gate: Promise<void>;
  /** Awaited by every doPublish. */
  publishGate: Promise<void>;
  readonly isClosed: () => boolean;
  /** As a process that is killed: whatever is called, or waits, fails as retryable. */
  readonly die: () => void;
  readonly weight: () => number;
  readonly newestStep: () => number | undefined;
}

async function storedWeight(directory: string): Promise<number> {
  const path = join(directory, 'adapter_model.safetensors');
  const text = await readFile(path, 'utf8').catch((cause: unknown) => {
    throw new CheckpointError(`${directory}: must hold a checkpoint`, { cause });
  });
  return (JSON.parse(text) as { weight: number }).weight;
}

export function createCountingEngine(seed = 0, maxPositions = 256): CountingEngine {
  let state = { weight: seed / 16, gradientSteps: 0 };
  let gradient = 0;
  let isClosed = false;
  let newestStep: number | undefined;
  const served = new Map<number, number>();
  const calls: string[] = [];
  const requests: ForwardBackwardRequest[] = [];
  let reportDeath = (_: EngineError): void => undefined;
  const died = new Promise<EngineError>((resolve) => {
    reportDeath = resolve;
  });
  let death: EngineError | null = null;
  const enter = (call: EngineCall, detail = ''): void => {
    calls.push(call + detail);
    if (death !== null) throw death;
    if (engine.failing === call) throw new EngineError(`counting engine: told to fail at ${call}`);
  };
  const score = (weight: number): number => Math.fround(-1 - weight);
  const engine: CountingEngine = {
    specificationVersion: 1,
    calls,
    requests,
    failing: null,
    servedError: 0,
    gate: Promise.resolve(),
    publishGate: Promise.resolve(),
    isClosed: () => isClosed,
    died,
    die: () => {
      death = new EngineError('counting engine: died', { details: { isRetryable: true } });
      reportDeath(death);
    },
    weight: () => state.weight,
    newestStep: () => newestStep,
    doSample: async function* ({ promptIds, promptLogprobs, policyStep, signal }) {
      if (promptLogprobs !== undefined) {
        signal?.throwIfAborted();
        const logprob = score(served.get(policyStep ?? newestStep ?? 0) ?? state.weight);
        const top = Array.from({ length: promptLogprobs }, (_, tokenId) => ({ tokenId, logprob: logprob - tokenId }));
        const logprobs = promptIds.map((_, t) => (t === 0 ? null : logprob));
        yield { type: 'prompt', logprobs, topLogprobs: promptIds.map((_, t) => (t === 0 ? null : top)) };
      }
      yield { type: 'finish', reason: 'stop', policyStep: newestStep ?? 0, cachedTokens: 0 };
    },
    doForwardBackward: async (request) => {
      await engine.gate;
      enter('forwardBackward');
      requests.push(request);
      const { data, scale } = request;
      const sum = data.flatMap((datum) => datum.advantages).reduce((a, b) => a + b, 0);
      gradient += scale * (sum + 1);
      const tokens = data.reduce((count, datum) => count + datum.tokenIds.length, 0);
      const actionTokens = data.flatMap((datum) => datum.actionMask).reduce((a, b) => a + b, 0);
      return {
        loss: -scale * sum,
        trainingLogprobs: data.map((datum) => datum.actionMask.map((mask) => (mask === 1 ? score(state.weight) : 0))),
        entropy: 0.5,
        actionTokens,
        tokens,
        paddingTokens: 1,
        packedRows: 1,
      };
    },
    doOptimStep: async ({ learningRate }) => {
      enter('optimStep');
      state = { weight: state.weight - learningRate * gradient, gradientSteps: state.gradientSteps + 1 };
      const gradNorm = Math.abs(gradient);
      gradient = 0;
      return { gradNorm, gradientSteps: state.gradientSteps };
    },
    doPublish: async ({ step }) => {
      await engine.publishGate;
      enter('publish', `@${step}`);
      served.set(step, state.weight + engine.servedError);
      newestStep = step;
    },
    doSave: async ({ directory }) => {
      enter('save');
      await writeFile(join(directory, 'adapter_config.json'), '{}\n');
      await writeFile(join(directory, 'adapter_model.safetensors'), JSON.stringify(state));
    },
    doLoad: async ({ directory }) => {
      enter('load');
      state = JSON.parse(await readFile(join(directory, 'adapter_model.safetensors'), 'utf8'));
      gradient = 0;
    },
    doLogprobs: async ({ tokenIds, source }) => {
      enter('logprobs');
      const weight = source.kind === 'trainer' ? state.weight : served.get(source.policyStep);
      if (weight === undefined) throw new EngineError('counting engine: step is not served');
      return tokenIds.map((_, t) => (t === 0 ? 0 : score(weight)));
    },
    doScore: async ({ data, source }) => {
      enter('score', `:${source.kind}`);
      const weight =
        source.kind === 'trainer'
          ? state.weight
          : source.kind === 'base'
            ? seed / 16
            : await storedWeight(source.directory);
      return data.map(({ actionMask }) => actionMask.map((mask) => (mask === 1 ? score(weight) : 0)));
    },
    doInfo: async () => ({
      parameters: 1,
      trainableParameters: 1,
      maxPositions,
      vocabSize: 512,
      policySteps: [...served.keys()],
      gradientSteps: state.gradientSteps,
      runningSequences: 0,
      waitingSequences: 0,
      rssBytes: 1,
      peakRssBytes: 1,
      sampledTokens: 0,
      prefilledTokens: 0,
      samplingSeconds: 0,
      trainedTokens: 0,
      trainingSeconds: 0,
    }),
    close: async () => {
      isClosed = true;
    },
  };
  return engine;
}
