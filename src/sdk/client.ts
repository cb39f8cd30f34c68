/**
 * HTTP client of the training API (`wire/training.ts`). Layer 5.
 * Every wait is bounded and named. Reads and registration are retried; a `train` call is sent again once when the connection breaks,
 * under the same idempotency key, so that it trains once.
 */
import { randomUUID } from 'node:crypto';
import { EventSourceParserStream } from 'eventsource-parser/stream';
import { z } from 'zod';
import { AbortedError, ApiError } from '../core/errors.ts';
import { pause } from '../core/wait.ts';
import { errorBody } from '../wire/errors.ts';
import {
  type HistoryResponse,
  historyResponse,
  type LogRequest,
  type ModelInfo,
  modelInfo,
  type RegisterRequest,
  type RegistrationPending,
  registrationPending,
  type TrainProgress,
  type TrainRequest,
  trainProgress,
  trainResult,
  type TrainResult as WireTrainResult,
} from '../wire/training.ts';
import { withDeadline } from './deadline.ts';

export interface CallOptions {
  readonly signal?: AbortSignal | undefined;
}

export interface TrainCallOptions extends CallOptions {
  readonly onProgress?: ((progress: TrainProgress) => void) | undefined;
}

export interface TrainingClientOptions {
  /** Root of the server, as in `http://127.0.0.1:8000`. */
  readonly baseURL: string;
  readonly apiKey?: string | undefined;
  /** Limit of an ordinary call; default 60 s. */
  readonly timeoutMs?: number | undefined;
  /** Longest time without news in a registration, in which the server downloads and loads the model; default 280 s. */
  readonly registerTimeoutMs?: number | undefined;
  /** Longest silence between two events of a `train` call; default 600 s. */
  readonly trainSilenceMs?: number | undefined;
}

export interface TrainingClient {
  register(request: RegisterRequest, options?: CallOptions): Promise<ModelInfo>;
  model(name: string, options?: CallOptions): Promise<ModelInfo>;
  train(
    name: string,
    request: Omit<TrainRequest, 'idempotency_key'>,
    options?: TrainCallOptions,
  ): Promise<WireTrainResult>;
  log(name: string, request: LogRequest, options?: CallOptions): Promise<void>;
  history(name: string, options?: CallOptions): Promise<HistoryResponse>;
}

interface Call {
  /** Named in messages, as in `registration of model agent-001`. */
  readonly what: string;
  readonly method: 'GET' | 'POST';
  readonly path: string;
  readonly body?: unknown;
  readonly timeoutMs: number;
  readonly signal?: AbortSignal | undefined;
}

/** Waits before the second and third try of an idempotent call, milliseconds. */
const RETRY_DELAYS_MS = [250, 1000];
/** A gateway in front of a server that starts or restarts answers with these. */
const RETRYABLE_STATUSES: ReadonlySet<number> = new Set([502, 503, 504]);

/** A client of one server. It holds no connection and needs no closing. */
export function createTrainingClient(options: TrainingClientOptions): TrainingClient {
  const root = options.baseURL.replace(/\/+$/, '');
  const timeoutMs = options.timeoutMs ?? 60_000;
  const registerTimeoutMs = options.registerTimeoutMs ?? 280_000;
  const trainSilenceMs = options.trainSilenceMs ?? 600_000;
  const headers = {
    'content-type': 'application/json',
    ...(options.apiKey === undefined ? {} : { authorization: `Bearer ${options.apiKey}` }),
  };
  const modelPath = (name: string): string => `/api/models/${encodeURIComponent(name)}`;

  const exchange = async (call: Call, signal: AbortSignal): Promise<Response> => {
    const { what, method, path, body } = call;
    let response: Response;
    try {
      const init = { method, headers, signal, ...(body === undefined ? {} : { body: JSON.stringify(body) }) };
      response = await fetch(root + path, init);
    } catch (cause) {
      throw connectionError(`${what}: ${method} ${root}${path} could not be sent or was cut`, cause);
    }
    if (!response.ok) throw await responseError(what, response);
    return response;
  };

  const fetchJson = <T>(call: Call, schema: z.ZodType<T>): Promise<T> =>
    withDeadline(call, async (signal) => {
      const response = await exchange(call, signal);
      const text = await response.text().catch((cause: unknown) => {
        throw connectionError(`${call.what}: the answer was cut`, cause);
      });
      return parseAs(schema, text, call.what, response.status);
    });

  const fetchTrainResult = (call: Call, onProgress: TrainCallOptions['onProgress']): Promise<WireTrainResult> =>
    withDeadline(call, async (signal, restart) => {
      const response = await exchange(call, signal);
      try {
        return await readTrainEvents(response, call.what, (progress) => {
          restart();
          onProgress?.(progress);
        });
      } finally {
        await response.body?.cancel().catch(() => {});
      }
    });

  return {
    register: (request, { signal } = {}) => {
      const what = `registration of model ${request.name}`;
      const call: Call = {
        what,
        method: 'POST',
        path: '/api/models',
        body: request,
        timeoutMs: registerTimeoutMs,
        signal,
      };
      return waitForRegistration(what, registerTimeoutMs, () =>
        retryIdempotent(call, () => fetchJson(call, z.union([registrationPending, modelInfo]))),
      );
    },
    model: (name, { signal } = {}) => {
      const call: Call = { what: `state of model ${name}`, method: 'GET', path: modelPath(name), timeoutMs, signal };
      return retryIdempotent(call, () => fetchJson(call, modelInfo));
    },
    train: async (name, request, { signal, onProgress } = {}) => {
      const body: TrainRequest = { idempotency_key: randomUUID(), ...request };
      const path = `${modelPath(name)}/train`;
      const call: Call = {
        what: `training of model ${name}`,
        method: 'POST',
        path,
        body,
        timeoutMs: trainSilenceMs,
        signal,
      };
      try {
        return await fetchTrainResult(call, onProgress);
      } catch (error) {
        if (!isConnectionError(error)) throw error;
        return await fetchTrainResult(call, onProgress);
      }
    },
    log: async (name, request, { signal } = {}) => {
      const path = `${modelPath(name)}/log`;
      await fetchJson(
        { what: `log of model ${name}`, method: 'POST', path, body: request, timeoutMs, signal },
        z.unknown(),
      );
    },
    history: async (name, { signal } = {}) => {
      const rows: HistoryResponse['rows'] = [];
      // The server tells a bounded number of rows at a time.
      for (let offset: number | null = 0; offset !== null; ) {
        const path = `${modelPath(name)}/history${offset === 0 ? '' : `?offset=${offset}`}`;
        const call: Call = { what: `history of model ${name}`, method: 'GET', path, timeoutMs, signal };
        const page: HistoryResponse = await retryIdempotent(call, () => fetchJson(call, historyResponse));
        rows.push(...page.rows);
        offset = page.next_offset;
      }
      return { rows, next_offset: null };
    },
  };
}

/** Asks again while the server answers that it is still opening the model; throws AbortedError when nothing more happens. */
async function waitForRegistration(
  what: string,
  silenceMs: number,
  ask: () => Promise<ModelInfo | RegistrationPending>,
): Promise<ModelInfo> {
  let receivedBytes = -1;
  let changedAt = performance.now();
  for (;;) {
    const answer = await ask();
    if (!('status' in answer)) return answer;
    if (answer.received_bytes !== receivedBytes) changedAt = performance.now();
    receivedBytes = answer.received_bytes;
    if (performance.now() - changedAt > silenceMs) {
      const { total_bytes: total } = answer;
      throw new AbortedError(`${what}: nothing new within ${silenceMs} ms, at ${receivedBytes} of ${total} bytes`, {
        details: { isDeadline: true },
      });
    }
  }
}

/** Reads the events of one `train` call up to its result. Throws ApiError on an `error` event and when the stream ends without a result. */
async function readTrainEvents(
  response: Response,
  what: string,
  onProgress: (progress: TrainProgress) => void,
): Promise<WireTrainResult> {
  if (response.body === null) throw new ApiError(`${what}: the server sent no body`, response.status);
  const events = response.body.pipeThrough(new TextDecoderStream()).pipeThrough(new EventSourceParserStream());
  const reader = events.getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read().catch((cause: unknown) => {
        throw connectionError(`${what}: the event stream was cut`, cause);
      });
      if (done) throw connectionError(`${what}: the event stream ended without a result`);
      if (value.event === 'progress') onProgress(parseAs(trainProgress, value.data, what, response.status));
      if (value.event === 'result') return parseAs(trainResult, value.data, what, response.status);
      if (value.event === 'error') throw errorFromBody(what, 500, value.data);
    }
  } finally {
    await reader.cancel().catch(() => {});
  }
}

async function responseError(what: string, response: Response): Promise<ApiError> {
  return errorFromBody(what, response.status, await response.text().catch(() => ''));
}

/** An ApiError with the server's own message; `details` has `type`, `code` and `param` of its body. */
function errorFromBody(what: string, status: number, text: string): ApiError {
  const body = errorBody.safeParse(parseJson(text));
  if (!body.success) return new ApiError(`${what}: HTTP ${status}: ${text.slice(0, 500) || 'empty answer'}`, status);
  const { message, type, code, param } = body.data.error;
  return new ApiError(`${what}: ${message}`, status, { details: { type, code, param } });
}

function connectionError(message: string, cause?: unknown): ApiError | AbortedError {
  if (cause instanceof AbortedError) return cause;
  const reason =
    cause instanceof Error ? ` (${cause.cause instanceof Error ? cause.cause.message : cause.message})` : '';
  return new ApiError(message + reason, 0, { cause, details: { isConnectionError: true } });
}

function isConnectionError(error: unknown): boolean {
  return error instanceof ApiError && error.details.isConnectionError === true;
}

/** Throws AbortedError at once when the caller gives up, also between two tries. */
async function retryIdempotent<T>({ what, signal }: Call, attempt: () => Promise<T>): Promise<T> {
  for (const delayMs of RETRY_DELAYS_MS) {
    try {
      return await attempt();
    } catch (error) {
      const isRetryable =
        isConnectionError(error) || (error instanceof ApiError && RETRYABLE_STATUSES.has(error.status));
      if (!isRetryable) throw error;
      await pause(delayMs, signal);
      if (signal?.aborted) throw new AbortedError(`${what}: aborted by the caller`, { cause: error });
    }
  }
  return attempt();
}

function parseAs<T>(schema: z.ZodType<T>, text: string, what: string, status: number): T {
  const parsed = schema.safeParse(parseJson(text));
  if (parsed.success) return parsed.data;
  throw new ApiError(`${what}: the answer does not fit the training API: ${z.prettifyError(parsed.error)}`, status);
}

/** Undefined for text that is not JSON, which no schema accepts but `z.unknown()`. */
function parseJson(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}
