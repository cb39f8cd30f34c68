/**
 * The embedded engine's process: the sampling loop on the main thread, the trainer in a thread of its own. Layer 4.
 * It lives exactly as long as the channel to its parent, and leaves signals to the parent: Ctrl-C reaches the whole terminal
 * group, and the parent may still want to finish a step.
 */
import { availableParallelism } from 'node:os';
import { Worker } from 'node:worker_threads';
import { DataError, EngineError } from '../../core/errors.ts';
import type { DecoderConfig } from '../../formats/hf-config.ts';
import { openModel } from '../../formats/model-source.ts';
import type { Tokenizer } from '../../formats/tokenizer.ts';
import { hostTensor } from '../../graph/runtime.ts';
import { createOrtRuntime } from '../../graph/runtime-ort.ts';
import { Grammars } from '../../infer/constraint/grammars.ts';
import { KvCache } from '../../infer/kv-cache.ts';
import { ModelRunner, type PolicyFeeds } from '../../infer/model-runner.ts';
import { checkTemperature } from '../../infer/sampling-params.ts';
import { Scheduler } from '../../infer/scheduler.ts';
import { Sequence } from '../../infer/sequence.ts';
import { loraShapes, loraSpec } from '../../nn/lora.ts';
import { checkParameters, countValues, type Parameter, parameterShapes } from '../../nn/parameters.ts';
import { checkSampleRequest, checkTokenIds } from '../check-request.ts';
import type { EngineInfo, LogprobsRequest, SampleEvent, SampleRequest } from '../engine.ts';
import { bakedWeights } from './baked-weights.ts';
import { DEFAULT_CACHE_TOKENS } from './memory-estimate.ts';
import { checkRolloutPrecision, checkServedPolicies, type EmbeddedEngineOptions } from './options.ts';
import {
  type Call,
  type FromEngine,
  fromPlainError,
  type Outcome,
  type PlainError,
  type ToEngine,
  toPlainError,
} from './protocol.ts';
import type { TrainerAnswer, TrainerCall, TrainerCounters } from './trainer-thread.ts';

const DEFAULT_MAX_RUNNING = 256;
/** Activations of so many tokens stay in the processor's caches, and their memory small. */
const MAX_PREFILL_TOKENS = 512;
const PROGRESS_INTERVAL_MS = 500;
/** Up to this many parameters one thread samples as fast as two, measured at 0.8 million; at 3.4 million two are 1.6 times as fast. */
const ONE_THREAD_PARAMETERS = 2_000_000;

/** The trainer's thread behind promises. */
class TrainerThread {
  counters: TrainerCounters = { trainedTokens: 0, trainingSeconds: 0, gradientSteps: 0 };
  readonly #worker = new Worker(new URL('./trainer-thread.js', import.meta.url));
  readonly #pending = new Map<number, { resolve: (value: unknown) => void; reject: (error: Error) => void }>();
  #lastId = 0;

  constructor() {
    this.#worker.on('message', ({ id, outcome, counters }: TrainerAnswer) => {
      this.counters = counters;
      const pending = this.#pending.get(id);
      this.#pending.delete(id);
      if (outcome.ok) pending?.resolve(outcome.value);
      else pending?.reject(fromPlainError(outcome.error));
    });
    this.#worker.on('error', (error) => {
      throw error; // Ends the process; the parent reports it to everyone who waits.
    });
  }

  call(call: TrainerCall): Promise<unknown> {
    const id = ++this.#lastId;
    return new Promise((resolve, reject) => {
      this.#pending.set(id, { resolve, reject });
      this.#worker.postMessage({ id, call });
    });
  }
}

class EngineProcess {
  readonly #trainer = new TrainerThread();
  readonly #config: DecoderConfig;
  readonly #tokenizer: Tokenizer;
  readonly #scheduler: Scheduler;
  readonly #grammars: Grammars;
  /** Frozen weights that are fed with every policy because they are not baked. */
  readonly #base: PolicyFeeds;
  readonly #parameterCounts: { readonly parameters: number; readonly trainableParameters: number };
  readonly #streaming = new Map<number, { readonly isStreaming: boolean; sent: number }>();
  /** Work between passes: scoring and publishing, which must not meet a pass in flight. */
  #betweenPasses: (() => Promise<void>)[] = [];
  #events: [number, SampleEvent | PlainError][] = [];
  #sentAt = 0;
  #isLooping = false;
  #hasWork = false;
  #newestStep = 0;
  readonly #servedPolicies: number;

  private constructor(
    config: DecoderConfig,
    tokenizer: Tokenizer,
    scheduler: Scheduler,
    base: PolicyFeeds,
    options: EmbeddedEngineOptions,
  ) {
    this.#base = base;
    this.#servedPolicies = checkServedPolicies(options);
    this.#config = config;
    this.#tokenizer = tokenizer;
    this.#scheduler = scheduler;
    this.#grammars = new Grammars(tokenizer, sampledIds(config, tokenizer));
    const parameters = countValues(parameterShapes(config).values());
    const { training } = options;
    this.#parameterCounts = {
      parameters,
      trainableParameters:
        training.kind === 'lora' ? countValues(loraShapes(config, loraSpec(training, config)).values()) : parameters,
    };
  }

  static async start(options: EmbeddedEngineOptions): Promise<EngineProcess> {
    const model = await openModel(options.modelDirectory);
    const { config } = model;
    const tokenizer = await model.loadTokenizer();
    const lora = options.training.kind === 'lora' ? loraSpec(options.training, config) : null;
    const cache = new KvCache(config, options.cacheTokens ?? DEFAULT_CACHE_TOKENS);
    const runtime = await createOrtRuntime({ threads: options.sampleThreads ?? defaultSampleThreads(config) });
    const parameters = await model.readTensors();
    checkParameters(parameters, parameterShapes(config), options.modelDirectory);
    const precision = checkRolloutPrecision(options);
    // Only constants are rounded.
    const baked = precision === 'int8' ? parameters : bakedWeights(parameters, lora !== null);
    const vocabSize = sampledIds(config, tokenizer);
    const runner = await ModelRunner.create(config, cache, runtime, { lora, baked, vocabSize, precision });
    const scheduler = new Scheduler(cache, runner, {
      maxRunning: options.maxRunningSequences ?? DEFAULT_MAX_RUNNING,
      maxPrefillTokens: MAX_PREFILL_TOKENS,
    });
    const isFedBase = lora !== null && baked.size === 0;
    const base = isFedBase ? toFeeds(parameters) : {};
    const engine = new EngineProcess(config, tokenizer, scheduler, base, options);
    await engine.#trainer.call({ name: 'start', request: options });
    await engine.#publish(0);
    return engine;
  }

  async call(call: Call): Promise<unknown> {
    switch (call.name) {
      case 'start':
        throw new EngineError('engine: must be started once, got a second start');
      case 'publish':
        return this.#publish(call.request.step);
      case 'logprobs':
        return this.#logprobs(call.request);
      case 'info':
        return this.#info();
      default:
        return this.#trainer.call(call);
    }
  }

  /** Admits a request; errors are events of it. */
  async sample(id: number, request: Omit<SampleRequest, 'signal'>): Promise<void> {
    this.#streaming.set(id, { isStreaming: request.isStreaming === true, sent: 0 });
    try {
      checkSampleRequest(request, this.#config);
      const { sampling, promptIds, policyStep } = request;
      const policy = this.#scheduler.policy(policyStep ?? this.#newestStep);
      const { constraint, stopTokenIds } = sampling;
      const isWanted = (): boolean => this.#streaming.has(id);
      const matcher = constraint === undefined ? null : await this.#grammars.match(constraint, stopTokenIds, isWanted);
      const { maxPositions } = this.#config;
      const limits = { maxPositions, createDecoder: () => this.#tokenizer.createStreamDecoder() };
      const sequence = new Sequence(id, promptIds, sampling, policy, limits, matcher);
      if (request.promptLogprobs !== undefined) await this.#scorePrompt(sequence, request.promptLogprobs);
      if (!this.#streaming.has(id)) return sequence.dispose(); // Aborted meanwhile.
      this.#admit(sequence);
    } catch (error) {
      this.#streaming.delete(id);
      this.#events.push([id, toPlainError(error)]);
      this.#flush();
    }
  }

  async #scorePrompt(sequence: Sequence, alternatives: number): Promise<void> {
    const { id, policy, tokenIds, inverseTemperature } = sequence;
    try {
      const scores = await this.#between(async () =>
        this.#streaming.has(id) ? this.#scheduler.scoreUnder(policy, tokenIds, inverseTemperature, alternatives) : [],
      );
      const event: SampleEvent = {
        type: 'prompt',
        logprobs: [null, ...scores.map(({ logprob }) => logprob)],
        ...(alternatives > 0 ? { topLogprobs: [null, ...scores.map(({ top }) => top)] } : {}),
      };
      if (this.#streaming.has(id)) this.#events.push([id, event]);
    } catch (error) {
      sequence.dispose();
      throw error;
    }
  }

  #admit(sequence: Sequence): void {
    try {
      this.#scheduler.add(sequence);
    } catch (error) {
      sequence.dispose();
      throw error;
    }
    this.#loop();
  }

  abort(id: number): void {
    this.#streaming.delete(id);
    this.#scheduler.abort(id);
    this.#loop();
  }

  async #publish(step: number): Promise<null> {
    const trained = (await this.#trainer.call({ name: 'snapshot', request: null })) as ReadonlyMap<string, Parameter>;
    const feeds: PolicyFeeds = { ...this.#base, ...toFeeds(trained) };
    await this.#between(async () => {
      this.#scheduler.publish(step, feeds, this.#servedPolicies);
      this.#newestStep = step;
      return true;
    });
    return null;
  }

  async #logprobs(request: LogprobsRequest): Promise<unknown> {
    const { source, tokenIds, temperature } = request;
    if (tokenIds.length < 2 || tokenIds.length > this.#config.maxPositions) {
      throw new DataError(`logprobs: must have 2 to ${this.#config.maxPositions} tokens, got ${tokenIds.length}`);
    }
    if (source.kind === 'trainer') return this.#trainer.call({ name: 'logprobs', request });
    checkTokenIds(tokenIds, this.#config.vocabSize, 'logprobs');
    checkTemperature(temperature);
    const inverseTemperature = temperature === 0 ? 1 : 1 / temperature;
    return this.#between(() => this.#scheduler.score(tokenIds, inverseTemperature, source.policyStep));
  }

  #info(): EngineInfo {
    const { counters } = this.#scheduler;
    return {
      ...this.#parameterCounts,
      maxPositions: this.#config.maxPositions,
      vocabSize: this.#config.vocabSize,
      policySteps: this.#scheduler.policySteps,
      runningSequences: this.#scheduler.runningCount,
      waitingSequences: this.#scheduler.waitingCount,
      rssBytes: process.memoryUsage.rss(),
      peakRssBytes: process.resourceUsage().maxRSS * 1024,
      sampledTokens: counters.sampledTokens,
      prefilledTokens: counters.prefilledTokens,
      samplingSeconds: counters.seconds,
      ...this.#trainer.counters,
    };
  }

  /** Does `work` when no pass runs, again after each pass while it gives null: what it wants is in use. */
  #between<T>(work: () => Promise<T | null>): Promise<T> {
    return new Promise((resolve, reject) => {
      const attempt = (): Promise<void> =>
        work().then((value) => {
          if (value === null) this.#betweenPasses.push(attempt);
          else resolve(value);
        }, reject);
      this.#betweenPasses.push(attempt);
      this.#loop();
    });
  }

  /** Runs passes until nothing is left to do, giving the channel a turn after each. */
  #loop(): void {
    this.#hasWork = true;
    if (this.#isLooping) return;
    this.#isLooping = true;
    void (async () => {
      while (this.#hasWork) {
        await new Promise(setImmediate);
        this.#hasWork = false; // Who brings work from here on, even while a pass ends, sets it again.
        const between = this.#betweenPasses;
        this.#betweenPasses = [];
        for (const work of between) await work();
        const hasStepped = await this.#scheduler.step((sequence) => this.#report(sequence));
        this.#flush();
        this.#hasWork ||= hasStepped || this.#betweenPasses.length > 0;
      }
      this.#isLooping = false;
    })();
  }

  /** Turns a sequence's new tokens into events: all at once at its end, or as they come. */
  #report(sequence: Sequence): void {
    const stream = this.#streaming.get(sequence.id);
    if (stream && sequence.failure) {
      this.#streaming.delete(sequence.id);
      this.#events.push([sequence.id, toPlainError(sequence.failure)]);
      return;
    }
    if (!stream || (!stream.isStreaming && !sequence.stopCause)) return;
    const { params, logprobs, tokenIds, promptLength } = sequence;
    const event: SampleEvent = {
      type: 'tokens',
      tokenIds: tokenIds.slice(promptLength + stream.sent),
      logprobs: logprobs.slice(stream.sent),
      ...(params.topLogprobs > 0 ? { topLogprobs: sequence.topLogprobs.slice(stream.sent) } : {}),
    };
    stream.sent = logprobs.length;
    this.#events.push([sequence.id, event]);
    if (!sequence.stopCause) return;
    this.#streaming.delete(sequence.id);
    const { stopCause: reason, policy, cachedTokens } = sequence;
    this.#events.push([sequence.id, { type: 'finish', reason, policyStep: policy.step, cachedTokens }]);
  }

  /** Sends events; now and then an empty message, so that the parent sees progress while long sequences are not streamed. */
  #flush(): void {
    if (this.#events.length === 0 && performance.now() - this.#sentAt < PROGRESS_INTERVAL_MS) return;
    this.#sentAt = performance.now();
    send({ kind: 'events', events: this.#events });
    this.#events = [];
  }
}

function defaultSampleThreads(config: DecoderConfig): number {
  return countValues(parameterShapes(config).values()) <= ONE_THREAD_PARAMETERS ? 1 : availableParallelism();
}

/** Ids from here on have no token and are never drawn. */
function sampledIds(config: DecoderConfig, tokenizer: Tokenizer): number {
  return Math.min(config.vocabSize, tokenizer.vocabSize);
}

function toFeeds(parameters: ReadonlyMap<string, Parameter>): PolicyFeeds {
  return Object.fromEntries([...parameters].map(([name, { data, shape }]) => [name, hostTensor(data, shape)]));
}

function send(message: FromEngine): void {
  process.send?.(message, undefined, {}, () => undefined); // A lost parent is noticed by `disconnect`.
}

let engine: EngineProcess | null = null;

async function answer(id: number, call: Call): Promise<void> {
  let outcome: Outcome;
  try {
    if (call.name === 'start' && !engine) {
      engine = await EngineProcess.start(call.request);
      outcome = { ok: true, value: null };
    } else if (engine) outcome = { ok: true, value: await engine.call(call) };
    else throw new EngineError(`engine: must be started before '${call.name}'`);
  } catch (error) {
    outcome = { ok: false, error: toPlainError(error) };
  }
  send({ kind: 'answer', id, outcome });
}

if (process.send) {
  process.on('SIGINT', () => undefined);
  process.on('SIGTERM', () => undefined);
  // A trainer in the middle of a graph cannot be joined; nothing here needs a goodbye.
  process.on('disconnect', () => process.kill(process.pid, 'SIGKILL'));
  process.on('message', (message: ToEngine) => {
    if (message.kind === 'call') void answer(message.id, message.call);
    else if (message.kind === 'sample') void engine?.sample(message.id, message.request);
    else engine?.abort(message.id);
  });
}
