/**
 * JSON over HTTP as trackers need it. Layer 6. A failure is an ApiError that names the call and quotes the start of the answer; keys are taken out
 * of it. Redirects are refused: a key goes to the address that it was given for. Tries again: the queue around the sink.
 */
import { ApiError, ConfigError, fetchFailure } from '../core/errors.ts';

export interface TrackerHttpOptions {
  /** As in `tracker wandb`. */
  readonly what: string;
  readonly baseURL: string;
  readonly headers?: Readonly<Record<string, string>>;
  /** Never shown. */
  readonly secrets?: readonly string[];
}

export interface TrackerRequest {
  readonly method?: 'GET' | 'POST' | 'PUT' | 'PATCH';
  /** Appended to the base URL. */
  readonly path: string;
  readonly headers?: Readonly<Record<string, string>>;
  /** Sent as JSON, or as it is if it is text or bytes. */
  readonly body?: unknown;
}

export interface TrackerHttp {
  /** The answer as JSON; undefined if it is empty. Throws ApiError: with the status, 0 without an answer, 502 for one that is not JSON. */
  send(request: TrackerRequest, signal: AbortSignal): Promise<unknown>;
}

/** More than any answer that is read here; a server that sends without end fills no memory. */
const MAX_ANSWER_BYTES = 4_194_304;
const QUOTED_CHARACTERS = 300;

export function createTrackerHttp({ what, baseURL, headers, secrets = [] }: TrackerHttpOptions): TrackerHttp {
  const root = checkURL(what, baseURL);
  const hide = (text: string): string =>
    secrets.reduce((shown, secret) => (secret === '' ? shown : shown.replaceAll(secret, '…')), text);
  return {
    send: async ({ method = 'POST', path, headers: more, body }, signal) => {
      const call = `${what}: ${method} ${hide(path)}`;
      let status = 0;
      let text = '';
      try {
        const response = await fetch(root + path, {
          method,
          signal,
          redirect: 'error',
          headers: { ...(body !== undefined && { 'content-type': 'application/json' }), ...headers, ...more },
          ...(body !== undefined && {
            body: typeof body === 'string' || body instanceof Uint8Array ? body : JSON.stringify(body),
          }),
        });
        status = response.status;
        text = await readAnswer(response);
      } catch (cause) {
        if (signal.aborted) throw signal.reason;
        throw new ApiError(`${call}: could not be sent or was cut (${hide(fetchFailure(cause))})`, 0);
      }
      if (status < 200 || status > 299) throw new ApiError(`${call}: HTTP ${status}${quote(hide(text))}`, status);
      if (text === '') return undefined;
      try {
        return JSON.parse(text);
      } catch {
        throw new ApiError(`${call}: the answer must be JSON, got${quote(hide(text))}`, 502);
      }
    },
  };
}

/** A field of an answer as text; throws ApiError 502 if it is something else. */
export function readText(what: string, value: unknown, ...path: readonly string[]): string {
  const found = readField(value, ...path);
  if (typeof found === 'string') return found;
  throw new ApiError(`${what}: the answer has no ${path.join('.')}`, 502);
}

/** What stands under nested keys of an answer; undefined where there is none. */
export function readField(value: unknown, ...path: readonly string[]): unknown {
  return path.reduce<unknown>(
    (object, key) => (typeof object === 'object' && object !== null ? Reflect.get(object, key) : undefined),
    value,
  );
}

/** A key from the options, else from the environment. Throws ConfigError, which names where it may stand. */
export function readKey(what: string, option: string | undefined, name: string, variable: string): string {
  const key = option ?? process.env[variable] ?? '';
  if (/^[\x21-\x7e]+$/.test(key)) return key;
  throw new ConfigError(`${what}: needs ${name}, or ${variable} in the environment; printable ASCII without spaces`);
}

/** Without slashes at its end. Throws ConfigError for what is not an HTTP address, or holds a password, which messages would show. */
export function checkURL(what: string, baseURL: string): string {
  const url = URL.canParse(baseURL) ? new URL(baseURL) : undefined;
  if (url !== undefined && /^https?:$/.test(url.protocol) && url.password === '') return baseURL.replace(/\/+$/, '');
  throw new ConfigError(`${what}: must be given an http(s) address without a password in it as baseURL`);
}

async function readAnswer(response: Response): Promise<string> {
  const decoder = new TextDecoder();
  let text = '';
  let bytes = 0;
  for await (const chunk of response.body ?? []) {
    bytes += chunk.length;
    if (bytes > MAX_ANSWER_BYTES) throw new Error(`the answer is longer than ${MAX_ANSWER_BYTES} bytes`);
    text += decoder.decode(chunk, { stream: true });
  }
  return text;
}

function quote(text: string): string {
  return text === '' ? '' : `: ${text.slice(0, QUOTED_CHARACTERS)}`;
}
