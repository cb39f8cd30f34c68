/** Serves an app over HTTP/1.1. Layer 5. Left out: TLS and authentication; a public address needs both in front of it. */
import { once } from 'node:events';
import type { Server } from 'node:http';
import { type AddressInfo, isIP } from 'node:net';
import { createAdaptorServer } from '@hono/node-server';
import type { Hono } from 'hono';
import { ConfigError } from '../core/errors.ts';

export interface ListenOptions {
  /** Default 127.0.0.1. */
  readonly host?: string;
  /** Default 0: the system chooses a free one. */
  readonly port?: number;
  /** Must be true for a host that other machines can reach: the server has no authentication. */
  readonly isPublic?: boolean;
}

export interface RunningServer {
  /** Without a slash at the end; `${url}/v1` is the base URL of OpenAI's client. */
  readonly url: string;
  readonly port: number;
  /** Waits two seconds for requests in flight, then drops them. Idempotent. */
  close(): Promise<void>;
}

/** Idle connections are kept longer than clients keep theirs (undici: 4 s unless told), so that reuse does not race with closing. */
const keepAliveTimeoutMs = 75_000;

const closeGraceMs = 2_000;

/** Throws ConfigError if the address is public without `isPublic`, or taken. */
export async function startServer(app: Hono, options: ListenOptions = {}): Promise<RunningServer> {
  const host = options.host ?? '127.0.0.1';
  if (!isLoopback(host) && options.isPublic !== true) {
    throw new ConfigError(
      `host: must be a loopback address unless isPublic is true (this server has no authentication), got ${host}`,
    );
  }
  const server = createAdaptorServer({ fetch: app.fetch }) as Server;
  server.keepAliveTimeout = keepAliveTimeoutMs;
  server.listen(options.port ?? 0, host);
  try {
    await once(server, 'listening');
  } catch (cause) {
    const reason = cause instanceof Error ? cause.message : String(cause);
    throw new ConfigError(`server: must be able to listen on ${host}:${options.port ?? 0}, got ${reason}`, { cause });
  }
  const { port } = server.address() as AddressInfo;
  let closing: Promise<void> | undefined;
  return {
    url: `http://${isIP(host) === 6 ? `[${host}]` : host}:${port}`,
    port,
    close: () => {
      closing ??= closeServer(server);
      return closing;
    },
  };
}

async function closeServer(server: Server): Promise<void> {
  const closed = once(server, 'close');
  server.close();
  server.closeIdleConnections();
  const timer = setTimeout(() => server.closeAllConnections(), closeGraceMs);
  // A connection becomes idle when its request ends, and stays open until then.
  const sweep = setInterval(() => server.closeIdleConnections(), 20);
  await closed;
  clearTimeout(timer);
  clearInterval(sweep);
}

function isLoopback(host: string): boolean {
  return host === 'localhost' || host === '::1' || (isIP(host) === 4 && host.startsWith('127.'));
}
