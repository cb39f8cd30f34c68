/**
 * An environment over a WebSocket: one connection is one session, with its own state. Layer 5. Source: OpenEnv 0.3, whose servers take
 * `{type: "reset" | "step" | "state" | "close", data}` at `/ws` and answer `observation`, `state` or `error`.
 */
import { once } from 'node:events';
import { WebSocket } from 'ws';
import * as z from 'zod';
import { AbortedError, ApiError, DataError, messageOf } from '../core/errors.ts';
import { refuseUnknownKeys } from '../core/options.ts';
import { withDeadline } from '../sdk/deadline.ts';
import {
  callTimeoutMs,
  type Environment,
  type EnvironmentCallOptions,
  parseStepResult,
  type StepResult,
  serverUrl,
} from './environment.ts';

export interface ConnectEnvironmentOptions {
  readonly headers?: Readonly<Record<string, string>>;
  /** Limit of connecting; default 30 s. */
  readonly timeoutMs?: number;
  readonly signal?: AbortSignal;
}

const message = z.object({ type: z.string(), data: z.record(z.string(), z.unknown()).default({}) });

type Message = z.infer<typeof message>;

/** How long a server has to close a connection. */
const farewellMs = 1_000;

interface Waiting {
  readonly what: string;
  readonly resolve: (answer: Message) => void;
  readonly reject: (error: Error) => void;
}

/** Made by `connectEnvironment`. A call that is given up leaves an answer on its way, so it ends the session. */
export class WebSocketEnvironment implements Environment, AsyncDisposable {
  readonly #socket: WebSocket;
  readonly #name: string;
  #waiting: Waiting | null = null;
  #ended: Error | null = null;

  constructor(socket: WebSocket, name: string) {
    this.#socket = socket;
    this.#name = name;
    socket.on('message', (data) => this.#receive(String(data)));
    socket.on('error', (error) =>
      this.#end(new ApiError(`${name}: connection failed: ${error.message}`, 0, { cause: error })),
    );
    socket.on('close', (code) =>
      this.#end(new ApiError(`${name}: the server closed the connection (code ${code})`, 0)),
    );
  }

  async reset(
    parameters: Readonly<Record<string, unknown>> = {},
    options: EnvironmentCallOptions = {},
  ): Promise<StepResult> {
    return parseStepResult(await this.#call('reset', parameters, 'observation', options), `${this.#name}: reset`);
  }

  async step(action: Readonly<Record<string, unknown>>, options: EnvironmentCallOptions = {}): Promise<StepResult> {
    return parseStepResult(await this.#call('step', action, 'observation', options), `${this.#name}: step`);
  }

  /** The environment's own account of the episode: for a judge or a reward, not for the policy. */
  async state(options: EnvironmentCallOptions = {}): Promise<Readonly<Record<string, unknown>>> {
    return this.#call('state', undefined, 'state', options);
  }

  async close(): Promise<void> {
    const isOpen = this.#ended === null && this.#socket.readyState === WebSocket.OPEN;
    this.#ended ??= new ApiError(`${this.#name}: is closed`, 0);
    this.#waiting?.reject(this.#ended);
    if (!isOpen) return this.#socket.terminate();
    // The server closes when it is told to; one that does not is left.
    const closed = once(this.#socket, 'close', { signal: AbortSignal.timeout(farewellMs) }).catch(() => {});
    this.#socket.send(JSON.stringify({ type: 'close' }));
    await closed;
    this.#socket.terminate();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  async #call(
    type: string,
    data: object | undefined,
    expected: string,
    { timeoutMs = callTimeoutMs, signal }: EnvironmentCallOptions,
  ): Promise<Record<string, unknown>> {
    const what = `${this.#name}: ${type}`;
    if (this.#ended !== null) throw this.#ended;
    if (this.#waiting !== null) {
      throw new DataError(`${what}: calls of a session must follow one another, got one during ${this.#waiting.what}`);
    }
    const ask = (): Promise<Message> =>
      new Promise((resolve, reject) => {
        this.#waiting = { what, resolve, reject };
        this.#socket.send(JSON.stringify({ type, ...(data !== undefined && { data }) }));
      });
    try {
      const answer = await withDeadline({ what, timeoutMs, signal }, ask);
      if (answer.type === expected) return answer.data;
      const { message: reason = 'no reason given', code } = answer.data;
      if (answer.type === 'error') throw new ApiError(`${what}: ${reason}`, 0, { details: { code } });
      throw new DataError(`${what}: the answer must be of type ${expected}, got ${answer.type}`);
    } catch (error) {
      if (error instanceof AbortedError && this.#waiting !== null) this.#end(error);
      throw error;
    } finally {
      this.#waiting = null;
    }
  }

  #receive(text: string): void {
    try {
      this.#waiting?.resolve(message.parse(JSON.parse(text)));
    } catch (cause) {
      this.#waiting?.reject(
        new DataError(`${this.#waiting.what}: the answer must be a message of OpenEnv, got ${text.slice(0, 200)}`, {
          cause,
        }),
      );
    }
  }

  #end(error: Error): void {
    this.#ended ??= error;
    this.#waiting?.reject(this.#ended);
    this.#socket.close();
  }
}

/** Opens a session. Throws ApiError if the server cannot be reached or refuses, AbortedError at the limit. */
export async function connectEnvironment(
  url: string,
  options: ConnectEnvironmentOptions = {},
): Promise<WebSocketEnvironment> {
  refuseUnknownKeys('connectEnvironment', options, ['headers', 'timeoutMs', 'signal']);
  const { headers = {}, timeoutMs = 30_000, signal } = options;
  const address = serverUrl(url, 'ws');
  if (!address.pathname.endsWith('/ws')) address.pathname = `${address.pathname.replace(/\/+$/, '')}/ws`;
  const name = `environment ${address.host}`;
  if (signal?.aborted) throw new AbortedError(`${name}: connection: aborted by the caller`, { cause: signal.reason });
  const socket = new WebSocket(address, { headers, handshakeTimeout: timeoutMs });
  const stop = (): void => socket.terminate();
  signal?.addEventListener('abort', stop, { once: true });
  try {
    await new Promise<void>((resolve, reject) => {
      socket.once('open', resolve);
      socket.once('error', reject);
    });
    return new WebSocketEnvironment(socket, name);
  } catch (cause) {
    if (signal?.aborted) throw new AbortedError(`${name}: connection: aborted by the caller`, { cause });
    throw new ApiError(`${name}: connection: ${messageOf(cause)}`, 0, { cause });
  } finally {
    signal?.removeEventListener('abort', stop);
  }
}
