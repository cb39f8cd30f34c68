/** Serves an app over HTTP/1.1. Layer 5. Left out: TLS and authentication; a public address needs both in front of it. */
import { once } from 'node:events';
import type { Server } from 'node:http';
import { type AddressInfo, isIP, type Socket } from 'node:net';
import { createAdaptorServer } from '@hono/node-server';
import type { Hono } from 'hono';
import { ConfigError, messageOf } from '../core/errors.ts';

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

/** Throws ConfigError if the address is public without `isPublic`, or taken, or no port. */
export async function startServer(app: Hono, options: ListenOptions = {}): Promise<RunningServer> {
  const host = options.host ?? '127.0.0.1';
  if (!isLoopback(host) && options.isPublic !== true) {
    throw new ConfigError(
      `host: must be a loopback address unless isPublic is true (this server has no authentication), got ${host}`,
    );
  }
  const wantedPort = options.port ?? 0;
  if (!Number.isInteger(wantedPort) || wantedPort < 0 || wantedPort > 65_535) {
    throw new ConfigError(`port: must be a whole number from 0 to 65535, got ${wantedPort}`);
  }
  const server = createAdaptorServer({ fetch: app.fetch }) as Server;
  server.keepAliveTimeout = keepAliveTimeoutMs;
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
    close: () => {
      closing ??= closeServer(server, connections);
      return closing;
    },
  };
}

interface Connections {
  /** Drops what has no request in flight, and from here on every connection when its request ends. */
  drain(): void;
}

/** Node's `closeIdleConnections` leaves connections that never sent a request, which clients open in advance. */
function trackConnections(server: Server): Connections {
  const busyRequests = new Map<Socket, number>();
  let isDraining = false;
  const count = (socket: Socket, change: number): void => {
    const requests = (busyRequests.get(socket) ?? 0) + change;
    if (!socket.destroyed) busyRequests.set(socket, requests);
    if (isDraining && requests === 0) socket.destroySoon();
  };
  server.on('connection', (socket: Socket) => {
    count(socket, 0);
    socket.once('close', () => busyRequests.delete(socket));
  });
  server.on('request', ({ socket }, response) => {
    count(socket, 1);
    response.once('close', () => count(socket, -1));
  });
  return {
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

function isLoopback(host: string): boolean {
  return host === 'localhost' || host === '::1' || (isIP(host) === 4 && host.startsWith('127.'));
}
