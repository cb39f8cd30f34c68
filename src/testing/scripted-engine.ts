/** An engine that samples what a script says: for tests of agents, servers and training loops without a model. Layer 4. */
import { AbortedError, ConfigError, EngineError } from '../core/errors.ts';
import { checkSampleRequest } from '../engines/check-request.ts';
import type { Engine, EngineInfo, SampleEvent, SampleRequest, TokenAlternative } from '../engines/engine.ts';

export interface ScriptedReply {
  readonly tokenIds: readonly number[];
  /** Default −0.5 for every token. */
  readonly logprobs?: readonly number[];
  readonly topLogprobs?: readonly (readonly TokenAlternative[])[];
  /** Waits this long before the first token and, when streaming, before every other; default 0. */
  readonly delayMs?: number;
  /** Thrown after the tokens instead of finishing. */
  readonly error?: Error;
}

export interface ScriptedEngineOptions {
  /** What to sample. Called once per `doSample`, with the number of calls before it. */
  readonly reply: (request: SampleRequest, call: number) => ScriptedReply;
  /** Needed where stop strings are used: they are looked for in the text of the sampled ids. */
  readonly decode?: (ids: readonly number[]) => string;
  /** Policy steps that can be sampled from at the start; default [0]. */
  readonly policySteps?: readonly number[];
  readonly maxPositions?: number;
  readonly vocabSize?: number;
}

export interface ScriptedEngine extends Engine {
  /** Every sample request so far, in order. */
  readonly requests: readonly SampleRequest[];
  /** Calls of the training methods so far, in order. */
  readonly calls: readonly string[];
}

/**
 * Replies are cut as a real engine cuts them: at maxTokens, at the context, after a stop token, at a stop string.
 * Training changes nothing but counters; `doForwardBackward` returns the sampling logprobs as training logprobs.
 */
export function createScriptedEngine(options: ScriptedEngineOptions): ScriptedEngine {
  const requests: SampleRequest[] = [];
  const calls: string[] = [];
  const policySteps = [...(options.policySteps ?? [0])];
  const maxPositions = options.maxPositions ?? 4096;
  const vocabSize = options.vocabSize ?? 512;
  const totals = { gradientSteps: 0, running: 0, sampledTokens: 0, trainedTokens: 0 };
  const cache = new Set<string>();
  let isClosed = false;
  const requireOpen = (call: string): void => {
    if (isClosed) throw new EngineError(`scripted engine: must be open for ${call}, got closed`);
    calls.push(call);
  };

  async function* doSample(request: SampleRequest): AsyncGenerator<SampleEvent, void> {
    if (isClosed) throw new EngineError('scripted engine: must be open for doSample, got closed');
    const policyStep = request.policyStep ?? Math.max(...policySteps);
    if (!policySteps.includes(policyStep)) {
      throw new EngineError(`scripted engine: step must be one of ${policySteps.join(', ')}, got ${policyStep}`);
    }
    checkSampleRequest(request, { maxPositions, vocabSize });
    requests.push(request);
    const reply = options.reply(request, requests.length - 1);
    const { tokenIds, reason } = cutReply(reply.tokenIds, request, maxPositions, options.decode);
    const promptKey = request.promptIds.join(' ');
    const cachedTokens = cache.has(promptKey) ? request.promptIds.length : 0;
    cache.add(promptKey);
    totals.running += 1;
    try {
      if (request.promptLogprobs !== undefined) yield promptEvent(request.promptIds, request.promptLogprobs);
      const size = request.isStreaming ? 1 : tokenIds.length;
      for (let start = 0; start < tokenIds.length; start += size) {
        if (reply.delayMs !== undefined) await sleep(reply.delayMs, request.signal);
        throwIfAborted(request.signal);
        yield tokensEvent(reply, tokenIds, start, start + size, request.sampling.topLogprobs);
        totals.sampledTokens += Math.min(size, tokenIds.length - start);
      }
      if (reply.error !== undefined) throw reply.error;
      yield { type: 'finish', reason, policyStep, cachedTokens };
    } finally {
      totals.running -= 1;
    }
  }

  return {
    specificationVersion: 1,
    requests,
    calls,
    doSample,
    doForwardBackward: async ({ data }) => {
      requireOpen('doForwardBackward');
      const actionTokens = data.reduce(
        (sum, { actionMask }) => sum + actionMask.filter((mask) => mask === 1).length,
        0,
      );
      const tokens = data.reduce((sum, { tokenIds }) => sum + tokenIds.length, 0);
      totals.trainedTokens += tokens;
      const trainingLogprobs = data.map(({ samplingLogprobs }) => samplingLogprobs);
      return { loss: 0, trainingLogprobs, entropy: 0, actionTokens, tokens, paddingTokens: 0, packedRows: data.length };
    },
    doOptimStep: async () => {
      requireOpen('doOptimStep');
      totals.gradientSteps += 1;
      return { gradNorm: 0, gradientSteps: totals.gradientSteps };
    },
    doPublish: async ({ step }) => {
      requireOpen('doPublish');
      policySteps.push(step);
    },
    doSave: async () => requireOpen('doSave'),
    doLoad: async () => requireOpen('doLoad'),
    doLogprobs: async ({ tokenIds }) => {
      requireOpen('doLogprobs');
      return tokenIds.map((_, position) => (position === 0 ? 0 : defaultLogprob));
    },
    doScore: async ({ data }) => {
      requireOpen('doScore');
      return data.map(({ actionMask }) => actionMask.map((action) => (action === 1 ? defaultLogprob : 0)));
    },
    doInfo: async () => {
      requireOpen('doInfo');
      return describe(vocabSize, policySteps, maxPositions, totals);
    },
    close: async () => {
      isClosed = true;
    },
  };
}

const defaultLogprob = -0.5;

function cutReply(
  scripted: readonly number[],
  request: SampleRequest,
  maxPositions: number,
  decode: ScriptedEngineOptions['decode'],
): { readonly tokenIds: readonly number[]; readonly reason: 'stop' | 'length' } {
  const { stopTokenIds, stopStrings, maxTokens } = request.sampling;
  if (stopStrings.length > 0 && decode === undefined) {
    throw new ConfigError('scripted engine: stop strings need the option decode, got none');
  }
  const limit = Math.min(maxTokens, maxPositions - request.promptIds.length);
  const tokenIds: number[] = [];
  for (const id of scripted.slice(0, limit)) {
    tokenIds.push(id);
    const text = stopStrings.length > 0 ? (decode?.(tokenIds) ?? '') : '';
    const isStopped = stopTokenIds.includes(id) || stopStrings.some((stop) => text.includes(stop));
    if (isStopped) return { tokenIds, reason: 'stop' };
  }
  return { tokenIds, reason: 'length' };
}

function promptEvent(promptIds: readonly number[], topLogprobs: number): SampleEvent {
  const logprobs = promptIds.map((_, position) => (position === 0 ? null : defaultLogprob));
  if (topLogprobs === 0) return { type: 'prompt', logprobs };
  const alternatives = promptIds.map((tokenId, position) =>
    position === 0 ? null : [{ tokenId, logprob: defaultLogprob }],
  );
  return { type: 'prompt', logprobs, topLogprobs: alternatives };
}

function tokensEvent(
  reply: ScriptedReply,
  tokenIds: readonly number[],
  start: number,
  end: number,
  topLogprobs: number,
): SampleEvent {
  const ids = tokenIds.slice(start, end);
  const logprobs = reply.logprobs?.slice(start, start + ids.length) ?? ids.map(() => defaultLogprob);
  if (topLogprobs === 0) return { type: 'tokens', tokenIds: ids, logprobs };
  const alternatives = ids.map((tokenId, offset) => {
    const scripted = reply.topLogprobs?.[start + offset];
    return (scripted ?? [{ tokenId, logprob: logprobs[offset] as number }]).slice(0, topLogprobs);
  });
  return { type: 'tokens', tokenIds: ids, logprobs, topLogprobs: alternatives };
}

function describe(
  vocabSize: number,
  policySteps: readonly number[],
  maxPositions: number,
  totals: { gradientSteps: number; running: number; sampledTokens: number; trainedTokens: number },
): EngineInfo {
  const rssBytes = process.memoryUsage.rss();
  return {
    parameters: 0,
    trainableParameters: 0,
    maxPositions,
    vocabSize,
    policySteps: [...policySteps].sort((a, b) => a - b),
    gradientSteps: totals.gradientSteps,
    runningSequences: totals.running,
    waitingSequences: 0,
    rssBytes,
    peakRssBytes: rssBytes,
    sampledTokens: totals.sampledTokens,
    prefilledTokens: 0,
    samplingSeconds: 0,
    trainedTokens: totals.trainedTokens,
    trainingSeconds: 0,
  };
}

function throwIfAborted(signal: AbortSignal | undefined): void {
  if (signal?.aborted) throw new AbortedError('scripted engine: the caller gave up while sampling');
}

async function sleep(ms: number, signal: AbortSignal | undefined): Promise<void> {
  throwIfAborted(signal);
  await new Promise<void>((resolve) => {
    const timer = setTimeout(resolve, ms);
    const wake = (): void => {
      clearTimeout(timer);
      resolve();
    };
    signal?.addEventListener('abort', wake, { once: true });
  });
}
