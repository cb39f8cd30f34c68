/**
 * An environment over HTTP: `POST /reset` with parameters, `POST /step` with `{action}`. Layer 5. For servers that hold one episode, as those of
 * Gym-like packages do; OpenEnv's make a new environment for each request, and keep state over a WebSocket alone.
 */
import { AbortedError, ApiError, DataError, messageOf } from '../core/errors.ts';
import { refuseUnknownKeys } from '../core/options.ts';
import {
  callTimeoutMs,
  type Environment,
  type EnvironmentCallOptions,
  parseStepResult,
  type StepResult,
  serverUrl,
} from './environment.ts';

export interface HttpEnvironmentOptions {
  readonly headers?: Readonly<Record<string, string>>;
}

/** A client of one server. It holds no connection. */
export function createHttpEnvironment(url: string, options: HttpEnvironmentOptions = {}): Environment {
  refuseUnknownKeys('createHttpEnvironment', options, ['headers']);
  const root = serverUrl(url, 'http').href.replace(/\/+$/, '');
  const post = async (
    path: string,
    body: object,
    { timeoutMs = callTimeoutMs, signal }: EnvironmentCallOptions,
  ): Promise<StepResult> => {
    const what = `environment: POST ${root}${path}`;
    const limit = AbortSignal.timeout(timeoutMs);
    const both = signal === undefined ? limit : AbortSignal.any([signal, limit]);
    const headers = { 'content-type': 'application/json', ...options.headers };
    let response: Response;
    let text: string;
    try {
      response = await fetch(root + path, { method: 'POST', headers, body: JSON.stringify(body), signal: both });
      text = await response.text();
    } catch (cause) {
      if (signal?.aborted) throw new AbortedError(`${what}: aborted by the caller`, { cause });
      if (limit.aborted) {
        throw new AbortedError(`${what}: no answer within ${timeoutMs} ms`, { cause, details: { isDeadline: true } });
      }
      throw new ApiError(`${what}: could not be sent or was cut: ${messageOf(cause)}`, 0, { cause });
    }
    if (!response.ok) throw new ApiError(`${what}: HTTP ${response.status}: ${text.slice(0, 500)}`, response.status);
    return parseStepResult(parseJson(text, what), what);
  };
  return {
    reset: (parameters = {}, call = {}) => post('/reset', parameters, call),
    step: (action, call = {}) => post('/step', { action }, call),
    close: async () => {},
  };
}

function parseJson(text: string, what: string): unknown {
  try {
    return JSON.parse(text);
  } catch (cause) {
    throw new DataError(`${what}: the answer must be JSON, got ${text.slice(0, 200)}`, { cause });
  }
}
