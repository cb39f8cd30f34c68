/**
 * What a browser may be tricked into: DNS rebinding, calls of other sites, answers taken for something else. Layer 5.
 * A name that an attacker points to this computer is not in the list of hosts; a page of another site sends its `Origin`.
 */
import { isIP } from 'node:net';
import { hostname } from 'node:os';
import type { Context } from 'hono';
import { ConfigError } from '../../core/errors.ts';
import { formatValue, refuse } from '../../wire/errors.ts';

export interface HttpGuardOptions {
  /** Address that the server listens on; default 127.0.0.1. */
  readonly host?: string;
  /** Further names by which clients may call the server, as in `gpu-box.lan`, without port. */
  readonly allowedHosts?: readonly string[];
  /** Web pages that may call the server, as in `https://app.example`; default none. */
  readonly allowedOrigins?: readonly string[];
}

export interface HttpGuard {
  /** Throws ApiError 421 or 403 for a call that no client of ours sends; sets the headers of every answer. */
  readonly check: (c: Context) => void;
  /** The answer to a CORS preflight; null if the request is none. */
  readonly answerPreflight: (c: Context) => Response | null;
}

const maxHeaders = 100;
const readingMethods = ['GET', 'HEAD', 'OPTIONS'];
/** Headers that official clients send: theirs, ours, and OpenAI's and Anthropic's own. */
const allowedRequestHeader =
  /^(accept|authorization|content-type|idempotency-key|last-event-id|traceparent|user-agent|x-api-key|x-request-id|x-art-[\w-]+|x-stainless-[\w-]+|openai-[\w-]+|anthropic-[\w-]+)$/;
const exposedHeaders = 'retry-after, x-request-id, x-art-job-id, x-art-policy-step, x-art-rerendered';

/** Nothing here is a page, unless a route says otherwise. */
const answerHeaders: readonly (readonly [string, string])[] = [
  ['cache-control', 'no-store'],
  ['content-security-policy', "default-src 'none'; frame-ancestors 'none'"],
  ['referrer-policy', 'no-referrer'],
  ['x-content-type-options', 'nosniff'],
];

/** Throws ConfigError on an origin or host name that is none. */
export function createHttpGuard(options: HttpGuardOptions): HttpGuard {
  const hosts = hostNames(options);
  const origins = new Set((options.allowedOrigins ?? []).map(checkOrigin));
  const isAllowedOrigin = (c: Context, origin: string): boolean => origins.has(origin) || isSameOrigin(c, origin);
  return {
    check: (c) => {
      for (const [name, value] of answerHeaders) c.header(name, value);
      checkHeaderCount(c);
      checkHost(hostOf(c), hosts);
      const origin = c.req.header('origin');
      if (origin === undefined) return;
      if (isAllowedOrigin(c, origin)) {
        if (origins.has(origin)) setCorsHeaders(c, origin);
      } else if (!readingMethods.includes(c.req.method)) {
        throw refuse(
          403,
          'origin_not_allowed',
          `origin: must be this server's own or one of allowedOrigins, got ${formatValue(origin)}`,
        );
      }
    },
    answerPreflight: (c) => {
      const origin = c.req.header('origin');
      const method = c.req.header('access-control-request-method');
      if (c.req.method !== 'OPTIONS' || origin === undefined || method === undefined) return null;
      if (!origins.has(origin)) {
        throw refuse(
          403,
          'origin_not_allowed',
          `origin: must be one of allowedOrigins for calls of web pages, got ${formatValue(origin)}`,
        );
      }
      const wanted = (c.req.header('access-control-request-headers') ?? '').toLowerCase().split(',');
      const headers = wanted.map((name) => name.trim()).filter((name) => allowedRequestHeader.test(name));
      c.header('access-control-allow-methods', 'GET, POST, PUT, PATCH, DELETE');
      if (headers.length > 0) c.header('access-control-allow-headers', headers.join(', '));
      c.header('access-control-max-age', '600');
      return c.body(null, 204);
    },
  };
}

function setCorsHeaders(c: Context, origin: string): void {
  c.header('access-control-allow-origin', origin);
  c.header('access-control-expose-headers', exposedHeaders);
  c.header('vary', 'Origin');
}

/** The system's limit on bytes holds too; node drops what is beyond its own count without a word. */
function checkHeaderCount(c: Context): void {
  let count = 0;
  for (const _ of c.req.raw.headers) count += 1;
  if (count > maxHeaders) {
    throw refuse(431, 'too_many_headers', `headers: must be at most ${maxHeaders}, got ${count}`);
  }
}

/** Without a port; an address in brackets keeps none of them. */
function hostOf(c: Context): string {
  const host = c.req.header('host') ?? new URL(c.req.url).host;
  const name = host.startsWith('[') ? host.slice(1, host.indexOf(']')) : host.replace(/:\d{1,5}$/, '');
  return name.toLowerCase();
}

/** An address in place of a name cannot be rebound: the page that calls it is served from that address. */
function checkHost(name: string, hosts: ReadonlySet<string>): void {
  if (hosts.has(name) || isIP(name) !== 0 || name.endsWith('.localhost')) return;
  throw refuse(
    421,
    'host_not_allowed',
    `host: must be an address or one of ${[...hosts].join(', ')}, got ${formatValue(name)}; ` +
      'other names are given as allowedHosts (art serve --allow-host)',
  );
}

function hostNames({ host = '127.0.0.1', allowedHosts = [] }: HttpGuardOptions): ReadonlySet<string> {
  const wrong = allowedHosts.filter((name) => !/^[A-Za-z0-9_]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9_])?$/.test(name));
  if (wrong.length > 0) {
    throw new ConfigError(`allowedHosts: must be host names without scheme and port, got ${wrong.join(', ')}`);
  }
  const own = isLoopback(host) ? [] : [hostname()];
  return new Set(['localhost', host, ...own, ...allowedHosts].map((name) => name.toLowerCase()));
}

function checkOrigin(text: string): string {
  const isOrigin = URL.canParse(text) && new URL(text).origin === text && /^https?:/.test(text);
  if (isOrigin) return text;
  throw new ConfigError(`allowedOrigins: must be origins like https://app.example, got ${JSON.stringify(text)}`);
}

/** TLS may end before this server, so the scheme is not compared. */
function isSameOrigin(c: Context, origin: string): boolean {
  const host = c.req.header('host') ?? new URL(c.req.url).host;
  return URL.canParse(origin) && new URL(origin).host === host.toLowerCase();
}

/** Whether only this computer reaches the address. */
export function isLoopback(host: string): boolean {
  return host === 'localhost' || host === '::1' || (isIP(host) === 4 && host.startsWith('127.'));
}
