/**
 * Serves an app over HTTP/1.1. Layer 5. Left out: TLS; on a network that others share a proxy in front of it brings that.
 * Clients that send slowly, or nothing, lose their connection: every phase of a request has a limit.
 */
import { once } from 'node:events';
import type { Server } from 'node:http';
import { type AddressInfo, isIP, type Socket } from 'node:net';
import { createAdaptorServer } from '@hono/node-server';
import type { Hono } from 'hono';
import { ConfigError, EngineError, messageOf } from '../core/errors.ts';
import { pause } from '../core/wait.ts';
import { toHttpError } from '../wire/errors.ts';
import { isLoopback } from './security/http-guard.ts';

export interface ListenOptions {
  /** Default 127.0.0.1. */
  readonly host?: string;
  /** Default 0: the system chooses a free one. */
  readonly port?: number;
  /** Longest time for the headers of a request to arrive, milliseconds; default 20,000. */
  readonly headersTimeoutMs?: number;
  /** Longest time for a whole request to arrive, milliseconds; default 300,000. Answers have no such limit. */
  readonly requestTimeoutMs?: number;
}

export interface ServeOptions extends ListenOptions {
  /** Whether the app lets nobody in without a key: needed for a host that other machines can reach. */
  readonly isKeyed?: boolean;
}

export interface RunningServer {
  /** Without a slash at the end; `${url}/v1` is the base URL of OpenAI's client. */
  readonly url: string;
  readonly port: number;
  /**
   * From here on every request is refused as retryable (503, and the connection ends with it); resolves when those for samples that were in
   * flight have been answered, or at the limit, to how many are left.
   */
  drain(limitMs: number): Promise<number>;
  /** Waits two seconds for requests in flight, then drops them. Idempotent. */
  close(): Promise<void>;
}

/** Idle connections are kept longer than clients keep theirs (undici: 4 s unless told), so that reuse does not race with closing. */
const keepAliveTimeoutMs = 75_000;

const closeGraceMs = 2_000;

/** Other requests, as those that follow events, need not end by themselves. */
const samplePath = /^\/(v1|rollouts)\//;

/** Bytes of all headers of a request. */
const maxHeaderBytes = 16 * 1024;

/** Far above what the engine holds at once, and below what a system lends one process in open files. */
const maxConnections = 8_192;

/** How late a timeout may be noticed. */
const timeoutCheckMs = 1_000;

/** Throws ConfigError if the address is public and the app wants no key, or taken, or no port. */
export async function startServer(app: Hono, options: ServeOptions = {}): Promise<RunningServer> {
  const host = options.host ?? '127.0.0.1';
  if (!isLoopback(host) && options.isKeyed !== true) {
    throw new ConfigError(
      `host: must be a loopback address while this server has no API key, got ${host}; ` +
        'make one first: art keys create --name admin --scopes admin',
    );
  }
  const wantedPort = options.port ?? 0;
  if (!Number.isInteger(wantedPort) || wantedPort < 0 || wantedPort > 65_535) {
    throw new ConfigError(`port: must be a whole number from 0 to 65535, got ${wantedPort}`);
  }
  let isDraining = false;
  const server = createAdaptorServer({
    fetch: (request, env) => (isDraining ? refuseWhileDraining() : app.fetch(request, env)),
    serverOptions: { maxHeaderSize: maxHeaderBytes, connectionsCheckingInterval: timeoutCheckMs },
  }) as Server;
  server.keepAliveTimeout = keepAliveTimeoutMs;
  server.headersTimeout = options.headersTimeoutMs ?? 20_000;
  server.requestTimeout = options.requestTimeoutMs ?? 300_000;
  server.maxConnections = maxConnections;
  const connections = trackConnections(server);
  server.listen(wantedPort, host);
  try {
    await once(server, 'listening');
  } catch (cause) {
    const where = `${host}:${wantedPort}`;
    throw new ConfigError(`server: must be able to listen on ${where}, got ${messageOf(cause)}`, { cause });
  }
  const { port } = server.address() as AddressInfo;
  let closing: Promise<void> | undefined;
  return {
    url: `http://${isIP(host) === 6 ? `[${host}]` : host}:${port}`,
    port,
    drain: (limitMs) => {
      isDraining = true;
      return connections.sampled(limitMs);
    },
    close: () => {
      closing ??= closeServer(server, connections);
      return closing;
    },
  };
}

/** Clients try such an answer again by themselves, and then reach the next process. */
function refuseWhileDraining(): Response {
  const reason = new EngineError('server: is shutting down; send the request again later', {
    details: { isRetryable: true },
  });
  const { status, headers, body } = toHttpError(reason);
  return Response.json(body, { status, headers: { ...headers, connection: 'close' } });
}

interface Connections {
  /** Resolves when no request for a sample is in flight, or at the limit, to how many there are. */
  sampled(limitMs: number): Promise<number>;
  /** Drops what has no request in flight, and from here on every connection when its request ends. */
  drain(): void;
}

/** Node's `closeIdleConnections` leaves connections that never sent a request, which clients open in advance. */
function trackConnections(server: Server): Connections {
  const busyRequests = new Map<Socket, number>();
  let isDraining = false;
  let samples = 0;
  let onSampled = (): void => undefined;
  const count = (socket: Socket, change: number): void => {
    const requests = (busyRequests.get(socket) ?? 0) + change;
    if (!socket.destroyed) busyRequests.set(socket, requests);
    if (isDraining && requests === 0) socket.destroySoon();
  };
  server.on('connection', (socket: Socket) => {
    count(socket, 0);
    socket.once('close', () => busyRequests.delete(socket));
  });
  server.on('request', ({ socket, url }, response) => {
    const isSample = samplePath.test(url ?? '');
    count(socket, 1);
    if (isSample) samples += 1;
    response.once('close', () => {
      count(socket, -1);
      if (isSample) samples -= 1;
      if (samples === 0) onSampled();
    });
  });
  return {
    sampled: async (limitMs) => {
      if (samples === 0) return 0;
      const allSampled = new Promise<void>((resolve) => {
        onSampled = resolve;
      });
      const timer = new AbortController();
      await Promise.race([allSampled, pause(limitMs, timer.signal)]);
      timer.abort();
      return samples;
    },
    drain: () => {
      isDraining = true;
      for (const socket of busyRequests.keys()) count(socket, 0);
    },
  };
}

async function closeServer(server: Server, connections: Connections): Promise<void> {
  const closed = once(server, 'close');
  server.close();
  connections.drain();
  const timer = setTimeout(() => server.closeAllConnections(), closeGraceMs);
  await closed;
  clearTimeout(timer);
}
