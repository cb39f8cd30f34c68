/**
 * An environment over HTTP: `POST /reset` with parameters, `POST /step` with `{action}`. Layer 5. For servers that hold one episode, as those of
 * Gym-like packages do; OpenEnv's make a new environment for each request, and keep state over a WebSocket alone.
 */
import { DataError } from '../core/errors.ts';
import { refuseUnknownKeys } from '../core/options.ts';
import { fetchText } from '../sdk/fetch-text.ts';
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
    const headers = { 'content-type': 'application/json', ...options.headers };
    const request = { what, url: root + path, method: 'POST', headers, body: JSON.stringify(body) } as const;
    const text = await fetchText({ ...request, timeoutMs, signal });
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
