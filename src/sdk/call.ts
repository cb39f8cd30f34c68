/**
 * One call of a server's API over HTTP: deadlines, retries, event streams, errors. Layer 5.
 * Every wait is bounded and named. The files beside it have the calls themselves, one file for each area of the API.
 */
import { EventSourceParserStream } from 'eventsource-parser/stream';
import { z } from 'zod';
import { AbortedError, ApiError } from '../core/errors.ts';
import { pause } from '../core/wait.ts';
import { confirmationNeeded } from '../wire/checkpoints.ts';
import { errorBody } from '../wire/errors.ts';
import { withDeadline } from './deadline.ts';
import { connectionError } from './fetch-text.ts';

export interface CallOptions {
  readonly signal?: AbortSignal | undefined;
}

/** Where a server is, and what it is spoken to with. */
export interface ApiAddress {
  /** Root of the server, as in `http://127.0.0.1:8000`, without a slash at its end. */
  readonly baseURL: string;
  readonly apiKey: string;
}

export interface Call {
  /** Named in messages, as in `registration of model agent-001`. */
  readonly what: string;
  readonly method: 'GET' | 'POST' | 'PUT' | 'DELETE';
  readonly path: string;
  readonly body?: unknown;
  readonly headers?: Readonly<Record<string, string>> | undefined;
  /** Limit of the whole call, or for events of the silence between two of them; default 60 s. */
  readonly timeoutMs?: number | undefined;
  readonly signal?: AbortSignal | undefined;
}

/** One server-sent event; `name` is undefined for one that has none. */
export interface ApiEvent {
  readonly name: string | undefined;
  /** Its data in the form that the schema describes. Throws ApiError if it is not. */
  as<T>(schema: z.ZodType<T>): T;
}

/** What the calls of every area are made with. */
export interface Api {
  /** Sends once: for calls that must not happen twice. */
  send<T>(call: Call, schema: z.ZodType<T>): Promise<T>;
  /**
   * For calls that destroy. Without `isConfirmed` nothing happens and the error says what would be lost (409, `confirmation_required`).
   */
  sendConfirmed<T>(call: Call, schema: z.ZodType<T>, isConfirmed: boolean): Promise<T>;
  /** Sends again, up to two times, when the connection breaks or a gateway answers for the server: for calls that may happen twice. */
  sendIdempotent<T>(call: Call, schema: z.ZodType<T>): Promise<T>;
  /**
   * Sends once and hands over each event until `onEvent` gives something else than undefined, which is the result.
   * Throws ApiError on an event `error` and when the stream ends before there is a result.
   */
  sendForEvents<T>(call: Call, onEvent: (event: ApiEvent) => T | undefined): Promise<T>;
}

interface Confirmation {
  readonly token: string;
  /** What the call destroys, in the server's words. */
  readonly loss: string;
}

/** The header that carries the token of the first answer of a call that destroys. */
const CONFIRMATION_HEADER = 'x-art-confirmation';
const CALL_TIMEOUT_MS = 60_000;
/** Waits before the second and third try of an idempotent call, milliseconds. */
const RETRY_DELAYS_MS = [250, 1000];
/** A gateway in front of a server that starts or restarts answers with these. */
const RETRYABLE_STATUSES: ReadonlySet<number> = new Set([502, 503, 504]);

export function modelPath(name: string): string {
  return `/api/models/${encodeURIComponent(name)}`;
}

/** It holds no connection and needs no closing. `connect` is asked at each call, so that a server may be started by the first one. */
export function createApi(connect: () => ApiAddress | Promise<ApiAddress>): Api {
  const withResponse = async <T>(
    call: Call,
    read: (response: Response, restart: () => void) => Promise<T>,
  ): Promise<T> => {
    const address = await connect();
    const { what, signal, timeoutMs = CALL_TIMEOUT_MS } = call;
    return withDeadline({ what, signal, timeoutMs }, async (stop, restart) =>
      read(await exchange(address, call, stop), restart),
    );
  };
  const send = <T>(call: Call, schema: z.ZodType<T>): Promise<T> =>
    withResponse(call, async (response) => {
      const text = await readText(response, call.what);
      if (!response.ok) throw errorFromBody(call.what, response.status, text);
      return parseAs(schema, text, call.what, response.status);
    });
  /** What would be lost, or the result where the call destroys nothing. */
  const askFirst = <T>(call: Call, schema: z.ZodType<T>): Promise<Confirmation | { readonly result: T }> =>
    withResponse(call, async (response) => {
      const text = await readText(response, call.what);
      if (response.ok) return { result: parseAs(schema, text, call.what, response.status) };
      const needed = confirmationNeeded.safeParse(parseJson(text));
      if (response.status !== 409 || !needed.success) throw errorFromBody(call.what, response.status, text);
      return { token: needed.data.confirmation_token, loss: needed.data.what };
    });
  return {
    send,
    sendConfirmed: async (call, schema, isConfirmed) => {
      const answer = await askFirst(call, schema);
      if ('result' in answer) return answer.result;
      if (!isConfirmed) {
        const message = `${call.what}: needs { confirm: true }, since ${answer.loss}`;
        throw new ApiError(message, 409, { details: { code: 'confirmation_required', loss: answer.loss } });
      }
      return send({ ...call, headers: { ...call.headers, [CONFIRMATION_HEADER]: answer.token } }, schema);
    },
    sendIdempotent: (call, schema) => retryIdempotent(call, () => send(call, schema)),
    sendForEvents: (call, onEvent) =>
      withResponse(call, async (response, restart) => {
        if (!response.ok) throw errorFromBody(call.what, response.status, await readText(response, call.what));
        try {
          return await readEvents(response, call.what, (event) => {
            restart();
            return onEvent(event);
          });
        } finally {
          await response.body?.cancel().catch(() => {});
        }
      }),
  };
}

/** Whether the call broke on its way, so that nobody knows whether it happened. */
export function isConnectionError(error: unknown): boolean {
  return error instanceof ApiError && error.details.isConnectionError === true;
}

async function exchange({ baseURL, apiKey }: ApiAddress, call: Call, signal: AbortSignal): Promise<Response> {
  const { what, method, path, body } = call;
  const headers = {
    'content-type': 'application/json',
    authorization: `Bearer ${apiKey}`,
    ...call.headers,
  };
  try {
    const init = { method, headers, signal, ...(body === undefined ? {} : { body: JSON.stringify(body) }) };
    return await fetch(baseURL + path, init);
  } catch (cause) {
    throw connectionError(`${what}: ${method} ${baseURL}${path} could not be sent or was cut`, cause);
  }
}

async function readText(response: Response, what: string): Promise<string> {
  return response.text().catch((cause: unknown) => {
    if (!response.ok) return '';
    throw connectionError(`${what}: the answer was cut`, cause);
  });
}

async function readEvents<T>(
  response: Response,
  what: string,
  onEvent: (event: ApiEvent) => T | undefined,
): Promise<T> {
  if (response.body === null) throw new ApiError(`${what}: the server sent no body`, response.status);
  const events = response.body.pipeThrough(new TextDecoderStream()).pipeThrough(new EventSourceParserStream());
  const reader = events.getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read().catch((cause: unknown) => {
        throw connectionError(`${what}: the event stream was cut`, cause);
      });
      if (done) throw connectionError(`${what}: the event stream ended without a result`);
      if (value.event === 'error') throw errorFromBody(what, 500, value.data);
      const result = onEvent({
        name: value.event,
        as: (schema) => parseAs(schema, value.data, what, response.status),
      });
      if (result !== undefined) return result;
    }
  } finally {
    await reader.cancel().catch(() => {});
  }
}

/** An ApiError with the server's own message; `details` has `type`, `code` and `param` of its body. */
function errorFromBody(what: string, status: number, text: string): ApiError {
  const body = errorBody.safeParse(parseJson(text));
  if (!body.success) return new ApiError(`${what}: HTTP ${status}: ${text.slice(0, 500) || 'empty answer'}`, status);
  const { message, type, code, param } = body.data.error;
  return new ApiError(`${what}: ${message}`, status, { details: { type, code, param } });
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
