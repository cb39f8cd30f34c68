/**
 * An engine that is started again when it dies. Layer 4.
 * Requests that arrive meanwhile wait a limited time; those in flight were failed, as retryable, by the engine that died. What must not
 * straddle two processes (a training step) takes a `session`: the engine of one life, whose calls fail for good once it is dead.
 */
import { EngineError, messageOf } from '../core/errors.ts';
import { pause, waitFor } from '../core/wait.ts';
import type { Engine, EngineState, SampleEvent, SampleRequest } from './engine.ts';

/** How often a dead engine is started again. */
export interface RestartLimits {
  /** Deaths in a row, each soon after the start, after which it stays dead; default 5. */
  readonly maxQuickDeaths?: number;
  /** A death within this time of being ready is a quick one, milliseconds; default 10,000. */
  readonly quickDeathMs?: number;
  /** How long a request waits for the engine to be ready again, milliseconds; default 10,000. */
  readonly requestWaitMs?: number;
}

export interface SupervisionOptions extends RestartLimits {
  /** What errors and warnings call it. */
  readonly name: string;
  readonly start: (signal: AbortSignal) => Promise<Engine>;
  /** Brings a fresh engine to where it must be before anyone else may use it. */
  readonly recover: (engine: Engine) => Promise<void>;
  readonly onWarning: (message: string) => void;
  /** Told when it dies, when it runs again, and when it is given up; with the reason of the first and the last. */
  readonly onState?: (state: EngineState, reason: string | null) => void;
  readonly signal?: AbortSignal;
}

export interface SessionOptions {
  /** Default: as a request waits. */
  readonly limitMs?: number;
  readonly signal?: AbortSignal;
}

export interface SupervisedEngine extends Engine {
  readonly state: () => EngineState;
  readonly processId: () => number | null;
  /** The engine that runs, waited for. Throws EngineError, retryable at the limit, for good when it was given up; AbortedError. */
  readonly session: (options?: SessionOptions) => Promise<Engine>;
  /** Whether this is still the engine that runs. */
  readonly isCurrent: (session: Engine) => boolean;
}

const firstBackoffMs = 250;
const longestBackoffMs = 10_000;

/**
 * Starts an engine and keeps it running. A start that fails otherwise than by the engine's death (a model that does not fit, a damaged
 * checkpoint) rejects at once; after that first time every failure counts as a death.
 */
export async function superviseEngine(options: SupervisionOptions): Promise<SupervisedEngine> {
  const supervisor = new Supervisor(options);
  try {
    await supervisor.open();
  } catch (error) {
    await supervisor.close();
    throw error;
  }
  const session = (): Promise<Engine> => supervisor.session();
  return {
    specificationVersion: 1,
    doSample: (request) => supervisor.sample(request),
    doForwardBackward: async (request) => (await session()).doForwardBackward(request),
    doOptimStep: async (request) => (await session()).doOptimStep(request),
    doPublish: async (request) => (await session()).doPublish(request),
    doSave: async (request) => (await session()).doSave(request),
    doLoad: async (request) => (await session()).doLoad(request),
    doLogprobs: async (request) => (await session()).doLogprobs(request),
    doScore: async (request) => (await session()).doScore(request),
    doInfo: async () => (await session()).doInfo(),
    close: () => supervisor.close(),
    state: () => supervisor.state,
    processId: () => supervisor.current?.processId?.() ?? null,
    session: (sessionOptions) => supervisor.session(sessionOptions),
    isCurrent: (engine) => supervisor.current === engine,
  };
}

class Supervisor {
  readonly #options: SupervisionOptions;
  readonly #closing = new AbortController();
  /** Runs and may be used. */
  current: Engine | null = null;
  /** Started, perhaps not ready yet; closed when it is of no more use. */
  #started: Engine | null = null;
  #starting: Promise<Engine> | null = null;
  #quickDeaths = 0;
  #failure: EngineError | null = null;

  constructor(options: SupervisionOptions) {
    this.#options = options;
    options.signal?.addEventListener('abort', this.#onAbort, { once: true });
    if (options.signal?.aborted) this.#closing.abort();
  }

  /** Removed with the engine: the signal may outlive many. */
  readonly #onAbort = (): void => this.#closing.abort();

  get state(): EngineState {
    if (this.current !== null) return 'running';
    return this.#failure === null ? 'restarting' : 'failed';
  }

  async open(): Promise<void> {
    this.#starting = this.#bringUp(true);
    await this.#starting;
  }

  async session({ limitMs = this.#options.requestWaitMs ?? 10_000, signal }: SessionOptions = {}): Promise<Engine> {
    if (this.current !== null) return this.current;
    if (this.#failure !== null) throw this.#failure;
    if (this.#closing.signal.aborted || this.#starting === null) throw this.#closedError();
    const what = `engine of ${this.#options.name}`;
    const rule = `${what}: must run again within ${limitMs} ms of its death, is still starting; send the request again later`;
    const onLimit = (): EngineError => new EngineError(rule, { details: { isRetryable: true } });
    return await waitFor(this.#starting, { limitMs, onLimit, what, signal });
  }

  sample(request: SampleRequest): AsyncIterable<SampleEvent> {
    return this.current?.doSample(request) ?? this.#sampleLater(request);
  }

  async *#sampleLater(request: SampleRequest): AsyncGenerator<SampleEvent> {
    const { signal } = request;
    const engine = await this.session(signal === undefined ? {} : { signal });
    yield* engine.doSample(request);
  }

  async close(): Promise<void> {
    this.#options.signal?.removeEventListener('abort', this.#onAbort);
    this.#closing.abort();
    this.current = null;
    await this.#started?.close();
    await this.#starting?.catch(() => undefined);
    await this.#started?.close(); // It may have come up meanwhile.
  }

  async #bringUp(isFirst: boolean): Promise<Engine> {
    const { name, start, recover, onWarning } = this.#options;
    const { signal } = this.#closing;
    for (;;) {
      if (signal.aborted) throw this.#closedError();
      try {
        const engine = await start(signal);
        this.#started = engine;
        if (!signal.aborted) await recover(engine);
        if (signal.aborted) throw this.#closedError();
        const readyAt = performance.now();
        this.current = engine;
        void engine.died?.then((cause) => this.#onDeath(engine, cause, performance.now() - readyAt));
        return engine;
      } catch (error) {
        await this.#started?.close();
        this.#started = null;
        if (signal.aborted) throw this.#closedError();
        if (isFirst && !isRetryable(error)) throw error;
        this.#quickDeaths += 1;
        if (this.#isGivenUp(error)) throw this.#failure;
        onWarning(`engine of ${name}: could not be started (${messageOf(error)}); it is tried again`);
        await pause(this.#backoffMs(), signal);
      }
    }
  }

  #onDeath(engine: Engine, cause: EngineError, livedMs: number): void {
    if (this.#closing.signal.aborted || this.current !== engine) return;
    const { name, onWarning, quickDeathMs = 10_000 } = this.#options;
    this.current = null;
    this.#quickDeaths = livedMs < quickDeathMs ? this.#quickDeaths + 1 : 1;
    if (this.#isGivenUp(cause)) {
      void engine.close();
      return;
    }
    onWarning(`engine of ${name}: died (${cause.message}); it is started again`);
    this.#options.onState?.(this.state, cause.message);
    const starting = this.#restart(engine);
    starting.catch(() => undefined); // `state` and every session tell.
    this.#starting = starting;
  }

  async #restart(dead: Engine): Promise<Engine> {
    const diedAt = performance.now();
    await dead.close();
    this.#started = null;
    if (this.#quickDeaths > 1) await pause(this.#backoffMs(), this.#closing.signal);
    const engine = await this.#bringUp(false);
    const seconds = ((performance.now() - diedAt) / 1000).toFixed(1);
    this.#options.onWarning(`engine of ${this.#options.name}: runs again after ${seconds} s`);
    this.#options.onState?.(this.state, null);
    return engine;
  }

  #isGivenUp(cause: unknown): boolean {
    const { name, onWarning, maxQuickDeaths = 5 } = this.#options;
    if (this.#quickDeaths < maxQuickDeaths) return false;
    this.#failure = new EngineError(
      `engine of ${name}: died ${this.#quickDeaths} times in a row soon after its start, the last time because: ${messageOf(cause)}; ` +
        'mend the cause and start the server again',
      { cause, details: { isRetryable: false, deaths: this.#quickDeaths } },
    );
    onWarning(this.#failure.message);
    this.#options.onState?.(this.state, this.#failure.message);
    return true;
  }

  #backoffMs(): number {
    return Math.min(longestBackoffMs, firstBackoffMs * 2 ** Math.max(0, this.#quickDeaths - 2));
  }

  #closedError(): EngineError {
    return new EngineError(`engine of ${this.#options.name}: was closed`, { details: { isRetryable: true } });
  }
}

function isRetryable(error: unknown): boolean {
  return error instanceof EngineError && error.details.isRetryable === true;
}
