/**
 * The embedded engine as its parent sees it: a child process behind the `Engine` interface. Layer 4.
 * The process is owned here: it is ended by its handle, and whoever waits when it dies gets a typed error.
 */
import { type ChildProcess, fork } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { AbortedError, type ArtError, DataError, EngineError } from '../../core/errors.ts';
import { openModel } from '../../formats/model-source.ts';
import type { Engine, SampleEvent, SampleRequest } from '../engine.ts';
import { readAvailableMemory } from './available-memory.ts';
import { fitMemory } from './memory-estimate.ts';
import { checkOptionNames, checkRolloutPrecision, checkServedPolicies, type EmbeddedEngineOptions } from './options.ts';
import {
  type Call,
  type CallMap,
  type CallName,
  type FromEngine,
  fromPlainError,
  type PlainError,
  type ToEngine,
} from './protocol.ts';
import { createWatchdog, type Watchdog } from './watchdog.ts';

export type { EmbeddedEngineOptions } from './options.ts';

const DEFAULT_CALL_TIMEOUT_MS = 600_000;
const DEFAULT_HANG_LIMIT_MS = 120_000;
const KEPT_STDERR_CHARACTERS = 4000;

interface PendingCall {
  readonly resolve: (value: unknown) => void;
  readonly reject: (error: Error) => void;
  readonly timer: NodeJS.Timeout;
}

interface PendingSample {
  readonly push: (event: SampleEvent | ArtError) => void;
}

/** The built file of the engine's process. Sources under test run the built one as well: the child has no TypeScript loader. */
function processFile(): string {
  const isSource = import.meta.url.endsWith('.ts');
  return fileURLToPath(
    new URL(isSource ? '../../../dist/src/engines/embedded/process.js' : './process.js', import.meta.url),
  );
}

/** Throws ConfigError if the model will not fit into memory; it is not loaded for that. */
async function withFittingCache(options: EmbeddedEngineOptions): Promise<EmbeddedEngineOptions> {
  const { config } = await openModel(options.modelDirectory);
  return fitMemory(config, options, await readAvailableMemory(), options.modelDirectory);
}

/**
 * Starts the engine's process and loads the model. Throws EngineError if it does not come up, ConfigError on an unknown option and if
 * memory does not suffice, AbortedError if the signal fires before the model is loaded.
 */
export async function createEmbeddedEngine(options: EmbeddedEngineOptions, signal?: AbortSignal): Promise<Engine> {
  checkOptionNames(options);
  checkRolloutPrecision(options);
  checkServedPolicies(options);
  const started = options.isMemoryChecked === false ? options : await withFittingCache(options);
  const stopped = (): AbortedError =>
    new AbortedError('engine: was stopped while it started', { cause: signal?.reason });
  if (signal?.aborted) throw stopped();
  const client = new EngineClient(options.callTimeoutMs ?? DEFAULT_CALL_TIMEOUT_MS);
  const stop = (): void => void client.close();
  signal?.addEventListener('abort', stop, { once: true });
  try {
    await client.call('start', started);
    client.watch(options.hangLimitMs ?? DEFAULT_HANG_LIMIT_MS);
  } catch (error) {
    await client.close();
    throw signal?.aborted ? stopped() : error;
  } finally {
    signal?.removeEventListener('abort', stop);
  }
  return {
    specificationVersion: 1,
    doSample: (request) => client.sample(request),
    doForwardBackward: (request) => client.call('forwardBackward', request),
    doOptimStep: (request) => client.call('optimStep', request),
    doPublish: async (request) => void (await client.call('publish', request)),
    doSave: async (request) => void (await client.call('save', request)),
    doLoad: async (request) => void (await client.call('load', request)),
    doLogprobs: (request) => client.call('logprobs', request),
    doScore: (request) => client.call('score', request),
    doInfo: () => client.call('info', null),
    close: () => client.close(),
    died: client.died,
    processId: () => client.pid,
  };
}

class EngineClient {
  readonly #child: ChildProcess;
  readonly #exited: Promise<void>;
  readonly #calls = new Map<number, PendingCall>();
  readonly #samples = new Map<number, PendingSample>();
  readonly #timeoutMs: number;
  #lastId = 0;
  #stderr = '';
  /** When the sampling loop last showed that it makes progress. */
  #progressAt = 0;
  /** Why no more requests are taken. */
  #death: EngineError | null = null;
  #watchdog: Watchdog | null = null;
  #reportDeath: (cause: EngineError) => void = () => undefined;
  readonly died: Promise<EngineError> = new Promise((resolve) => {
    this.#reportDeath = resolve;
  });

  constructor(timeoutMs: number) {
    this.#timeoutMs = timeoutMs;
    this.#child = fork(processFile(), [], {
      serialization: 'advanced',
      execArgv: [],
      stdio: ['ignore', 'ignore', 'pipe', 'ipc'],
    });
    this.#child.stderr?.setEncoding('utf8').on('data', (text: string) => {
      this.#stderr = (this.#stderr + text).slice(-KEPT_STDERR_CHARACTERS);
    });
    this.#child.on('message', (message: FromEngine) => this.#receive(message));
    this.#exited = new Promise((resolve) => {
      this.#child.on('error', (cause) => {
        this.#die(new EngineError('engine: its process must start and stay reachable', { cause }));
        if (this.#child.pid === undefined) resolve(); // It never ran, so there is no exit.
      });
      this.#child.once('exit', (code, signal) => {
        const details = { isRetryable: true, exitCode: code, signal };
        const said = this.#stderr.trim() === '' ? '' : `; it said: ${this.#stderr.trim()}`;
        this.#die(
          new EngineError(`engine: its process ended unexpectedly (${signal ?? `exit code ${code}`})${said}`, {
            details,
          }),
        );
        resolve();
      });
    });
  }

  get pid(): number | null {
    return this.#child.pid ?? null;
  }

  /** From now on a process that stands still is ended. */
  watch(limitMs: number): void {
    this.#watchdog = createWatchdog({
      limitMs,
      ask: () => void this.call('info', null).catch(() => undefined),
      onHang: () => this.#end(`must say something within ${limitMs} ms of being asked, said nothing`),
    });
    if (this.#death) this.#watchdog.stop();
  }

  call<K extends CallName>(name: K, request: CallMap[K]['request']): Promise<CallMap[K]['result']> {
    return new Promise<unknown>((resolve, reject) => {
      if (this.#death) throw this.#death;
      const id = ++this.#lastId;
      const timer = setTimeout(() => {
        this.#calls.delete(id);
        const rule = `'${name}' must answer within ${this.#timeoutMs} ms, got no answer`;
        // A model that takes too long to load does so again.
        reject(new EngineError(`engine: ${rule}`, { details: { isRetryable: name !== 'start' } }));
        this.#end(rule);
      }, this.#timeoutMs);
      this.#calls.set(id, { resolve, reject, timer });
      try {
        this.#send({ kind: 'call', id, call: { name, request } as Call });
      } catch (error) {
        clearTimeout(timer);
        this.#calls.delete(id);
        throw error;
      }
    }) as Promise<CallMap[K]['result']>;
  }

  async *sample({ signal, ...request }: SampleRequest): AsyncGenerator<SampleEvent> {
    if (this.#death) throw this.#death;
    if (signal?.aborted) throw new AbortedError('sample: was aborted before it began', { cause: signal.reason });
    const id = ++this.#lastId;
    const queue: (SampleEvent | ArtError)[] = [];
    let wake: (() => void) | null = null;
    const push = (event: SampleEvent | ArtError): void => {
      queue.push(event);
      wake?.();
    };
    const onAbort = (): void => push(new AbortedError('sample: was aborted by its caller', { cause: signal?.reason }));
    signal?.addEventListener('abort', onAbort, { once: true });
    let timer: NodeJS.Timeout | undefined;
    const startedAt = performance.now();
    /** A sample may wait long for its turn and its end, but only while the engine makes progress with others or with it. */
    const watch = (): void => {
      const leftMs = Math.max(startedAt, this.#progressAt) + this.#timeoutMs - performance.now();
      if (leftMs > 0) timer = setTimeout(watch, leftMs);
      else {
        const rule = `must make progress within ${this.#timeoutMs} ms, got none`;
        push(new EngineError(`sample: the engine ${rule}`, { details: { isRetryable: true } }));
        this.#end(`sampling ${rule}`);
      }
    };
    let isFinished = false;
    this.#samples.set(id, { push });
    try {
      this.#send({ kind: 'sample', id, request });
      while (!isFinished) {
        if (queue.length === 0) {
          await new Promise<void>((resolve) => {
            wake = resolve;
            watch();
          });
          wake = null;
          clearTimeout(timer);
        }
        const event = queue.shift()!;
        if (event instanceof Error) throw event;
        isFinished = event.type === 'finish';
        yield event;
      }
    } finally {
      signal?.removeEventListener('abort', onAbort);
      this.#samples.delete(id);
      if (!isFinished && !this.#death) this.#send({ kind: 'abort', id });
    }
  }

  async close(): Promise<void> {
    this.#reportDeath = () => undefined;
    this.#die(new EngineError('engine: was closed', { details: { isRetryable: true } }));
    this.#child.kill('SIGKILL');
    await this.#exited;
  }

  /** Ends a process whose state is unknown: a call ran past its limit. */
  #end(rule: string): void {
    this.#die(new EngineError(`engine: its process was ended: ${rule}`, { details: { isRetryable: true } }));
    this.#child.kill('SIGKILL');
  }

  /** Throws DataError if the message cannot be cloned. */
  #send(message: ToEngine): void {
    const onSent = (cause: Error | null): void => {
      if (!cause) return;
      this.#die(new EngineError('engine: its process must be reachable', { cause, details: { isRetryable: true } }));
    };
    try {
      this.#child.send(message, onSent);
    } catch (cause) {
      throw new DataError(`engine: a request must be plain data, got ${String(cause)}`, { cause });
    }
  }

  #receive(message: FromEngine): void {
    this.#watchdog?.heard();
    if (message.kind === 'events') {
      this.#progressAt = performance.now();
      for (const [id, event] of message.events) {
        this.#samples.get(id)?.push(event.type === 'error' ? fromPlainError(event as PlainError) : event);
      }
      return;
    }
    const pending = this.#calls.get(message.id);
    if (!pending) return;
    this.#calls.delete(message.id);
    clearTimeout(pending.timer);
    if (message.outcome.ok) pending.resolve(message.outcome.value);
    else pending.reject(fromPlainError(message.outcome.error));
  }

  /** Fails everyone who waits; only the first cause counts. */
  #die(cause: EngineError): void {
    this.#death ??= cause;
    this.#watchdog?.stop();
    this.#reportDeath(this.#death);
    for (const { reject, timer } of this.#calls.values()) {
      clearTimeout(timer);
      reject(this.#death);
    }
    this.#calls.clear();
    for (const { push } of this.#samples.values()) push(this.#death);
    this.#samples.clear();
  }
}
