/**
 * Requests to one S3-compatible endpoint: signed (Signature Version 4), bounded, repeated where that may help. Layer 5.
 * Endpoint and credentials come from the server's environment alone; nothing follows a redirect, so nothing else is ever asked.
 * Source: Amazon S3 API Reference, "Authenticating Requests (AWS Signature Version 4)", "Checking object integrity". Left out: profiles,
 * roles of machines, requester pays.
 */
import { createHash } from 'node:crypto';
import { AwsV4Signer } from 'aws4fetch';
import { AbortedError, ApiError, ConfigError, fetchFailure, isTransient } from '../../core/errors.ts';
import { pause } from '../../core/wait.ts';

export interface S3Options {
  /** Default: AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, else Amazon's of the region. */
  readonly endpoint?: string;
  /** Default: AWS_REGION, AWS_DEFAULT_REGION, else us-east-1. */
  readonly region?: string;
  /** Limit of one request, with its body, milliseconds; default 300,000. */
  readonly requestTimeoutMs?: number;
  /** Longest pause within a download, milliseconds; default 60,000. */
  readonly silenceTimeoutMs?: number;
  /** Tries after the first of each request; default 4. */
  readonly maxRetries?: number;
  /** Wait before the first of them, doubled each time, milliseconds; default 500. */
  readonly retryDelayMs?: number;
  /** Files up to this size are sent in one request, larger ones in parts of it; default 16 MiB. Amazon's least is 5 MiB. */
  readonly partBytes?: number;
}

export interface S3Request {
  readonly method: 'GET' | 'HEAD' | 'PUT' | 'POST' | 'DELETE';
  readonly bucket: string;
  /** Without a slash at its start; empty for the bucket itself. */
  readonly key: string;
  readonly query?: Readonly<Record<string, string>>;
  readonly headers?: Readonly<Record<string, string>>;
  readonly body?: string | Blob;
  /** SHA-256 of the body, hexadecimal; default: of no body or of the text. */
  readonly sha256?: string;
  /** The answer's body is long and has a limit of its own. */
  readonly isStreamed?: boolean;
}

export interface S3Client {
  readonly options: Required<S3Options>;
  /**
   * The answer, whose body is not read yet, of a request that succeeded. Throws ConfigError when the endpoint refuses it, ApiError when
   * it fails, AbortedError when the caller gives up.
   */
  readonly send: (request: S3Request, signal: AbortSignal) => Promise<Response>;
}

/** Failures that may be of the way there, not of the request: damaged bytes are sent again. */
const damagedCodes = ['BadDigest', 'XAmzContentChecksumMismatch', 'XAmzContentSHA256Mismatch', 'RequestTimeout'];
const transientStatuses = [408, 429, 500, 502, 503, 504];
const emptySha256 = createHash('sha256').digest('hex');

/** Reads endpoint and region from the environment where the options leave them out; credentials at each request. */
export function createS3Client(options: S3Options = {}): S3Client {
  const { env } = process;
  const region = options.region ?? (env.AWS_REGION || env.AWS_DEFAULT_REGION || 'us-east-1');
  if (!/^[a-z0-9-]{1,40}$/.test(region)) throw new ConfigError(`AWS_REGION: must be like eu-central-1, got ${region}`);
  const all: Required<S3Options> = {
    endpoint: checkEndpoint(options.endpoint ?? (env.AWS_ENDPOINT_URL_S3 || env.AWS_ENDPOINT_URL || '')),
    region,
    requestTimeoutMs: options.requestTimeoutMs ?? 300_000,
    silenceTimeoutMs: options.silenceTimeoutMs ?? 60_000,
    maxRetries: options.maxRetries ?? 4,
    retryDelayMs: options.retryDelayMs ?? 500,
    partBytes: options.partBytes ?? 16 * 2 ** 20,
  };
  return {
    options: all,
    send: async (request, signal) => {
      for (let failures = 0; ; failures++) {
        try {
          return await sendOnce(all, request, signal);
        } catch (error) {
          if (signal.aborted) throw new AbortedError(`${describe(request)}: was given up`, { cause: error });
          if (!isTransient(error) || failures >= all.maxRetries) throw error;
          await pause(all.retryDelayMs * 2 ** failures, signal);
        }
      }
    },
  };
}

/** The answer was cut, or nobody answered. */
export function connectionFailed(what: string, cause: unknown): ApiError {
  return new ApiError(`${what}: the endpoint must answer whole, got ${fetchFailure(cause)}`, 502, {
    cause,
    details: { code: 's3_unreachable', isTransient: true },
  });
}

/** As messages name a request: no host, no query, no header. */
function describe({ method, bucket, key }: S3Request): string {
  return `${method} s3://${bucket}/${key}`;
}

async function sendOnce(options: Required<S3Options>, request: S3Request, signal: AbortSignal): Promise<Response> {
  const { method, body } = request;
  const headers = new Headers(request.headers);
  const textSha256 = typeof body === 'string' ? createHash('sha256').update(body).digest('hex') : emptySha256;
  headers.set('x-amz-content-sha256', request.sha256 ?? textSha256);
  const signer = new AwsV4Signer({
    ...readCredentials(),
    ...{ method, url: urlOf(options, request), headers, service: 's3', region: options.region },
  });
  const signed = await signer.sign();
  // Not signed, since fetch adds to it where there is a range.
  if (!headers.has('range')) signed.headers.set('accept-encoding', 'identity');
  const timeout = new AbortController();
  const timer = setTimeout(() => timeout.abort(), options.requestTimeoutMs).unref();
  let response: Response;
  try {
    response = await fetch(signed.url, {
      method,
      headers: signed.headers,
      redirect: 'manual',
      signal: AbortSignal.any([signal, timeout.signal]),
      ...(body !== undefined && { body }),
    });
  } catch (cause) {
    clearTimeout(timer);
    const reason = timeout.signal.aborted ? new Error(`nothing within ${options.requestTimeoutMs} ms`) : cause;
    throw connectionFailed(describe(request), reason);
  }
  if (request.isStreamed === true) clearTimeout(timer);
  if (response.ok) return response;
  const text = await response.text().catch(() => '');
  throw explain(request, response, text);
}

/** Throws ConfigError that names the variables; values never appear. */
function readCredentials(): { accessKeyId: string; secretAccessKey: string; sessionToken?: string } {
  const { AWS_ACCESS_KEY_ID: accessKeyId, AWS_SECRET_ACCESS_KEY: secretAccessKey, AWS_SESSION_TOKEN } = process.env;
  if (accessKeyId && secretAccessKey) {
    return { accessKeyId, secretAccessKey, ...(AWS_SESSION_TOKEN && { sessionToken: AWS_SESSION_TOKEN }) };
  }
  const missing = accessKeyId ? 'AWS_SECRET_ACCESS_KEY' : 'AWS_ACCESS_KEY_ID';
  throw new ConfigError(
    `s3: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY must be in the environment of the server, got no ${missing}`,
    { details: { code: 's3_credentials_missing' } },
  );
}

/** Behind an endpoint of one's own the bucket is part of the path, as MinIO and others want it; Amazon has a host for each. */
function urlOf({ endpoint, region }: Required<S3Options>, { bucket, key, query = {} }: S3Request): string {
  const path = key.split('/').map(encodeURIComponent).join('/');
  const isPathStyle = endpoint !== '' || bucket.includes('.');
  const root = endpoint === '' ? `https://${isPathStyle ? '' : `${bucket}.`}s3.${region}.amazonaws.com` : endpoint;
  const url = new URL(isPathStyle ? `${root}/${bucket}/${path}` : `${root}/${path}`);
  for (const [name, value] of Object.entries(query)) url.searchParams.set(name, value);
  return url.href;
}

function checkEndpoint(text: string): string {
  if (text === '') return text;
  const url = URL.canParse(text) ? new URL(text) : null;
  if (url !== null && /^https?:$/.test(url.protocol) && url.username === '' && url.search === '' && url.hash === '') {
    return text.replace(/\/+$/, '');
  }
  throw new ConfigError(
    'AWS_ENDPOINT_URL_S3: must be a URL like https://s3.example, without user and query, got another text',
  );
}

/** The error that an answer of the endpoint means; its code is S3's own. */
function explain(request: S3Request, { status }: Response, text: string): Error {
  const code = /<Code>([\w.]{1,80})<\/Code>/.exec(text)?.[1] ?? `HTTP ${status}`;
  const what = describe(request);
  const details = { code: 's3_failed', s3Code: code, status };
  if (transientStatuses.includes(status) || damagedCodes.includes(code)) {
    return new ApiError(`${what}: must succeed, got ${code} (HTTP ${status})`, 502, {
      details: { ...details, isTransient: true },
    });
  }
  if (status >= 300 && status < 400) {
    return new ConfigError(`${what}: the bucket must be in the region AWS_REGION, got ${code} (HTTP ${status})`, {
      details,
    });
  }
  if (status === 404) {
    return new ConfigError(`${what}: must exist, got ${code} (HTTP 404)`, {
      details: { ...details, code: 's3_not_found' },
    });
  }
  if (status === 401 || status === 403) {
    return new ConfigError(`${what}: the server's credentials must allow it, got ${code} (HTTP ${status})`, {
      details: { ...details, code: 's3_forbidden' },
    });
  }
  return new ApiError(`${what}: must be accepted, got ${code} (HTTP ${status})`, 502, { details });
}
