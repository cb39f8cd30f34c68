/**
 * Which capture a request belongs to. Layer 5.
 * A scope follows the agent through its promises and timers (AsyncLocalStorage). `capture-channels.ts` shows it the requests of all clients;
 * only those to the `/v1` of a registered server are given its rollout id.
 */
import { AsyncLocalStorage } from 'node:async_hooks';
import type { Trajectory } from '../core/trajectory.ts';
import type { InferenceEndpoint } from './backend.ts';

export const ROLLOUT_HEADER = 'x-art-rollout';

/** Address and key of a registered server. */
export type CaptureServer = Pick<InferenceEndpoint, 'baseURL' | 'apiKey'>;

/** Where a request goes: an origin as URLs have it, and a path without its query. */
export interface Place {
  readonly origin: string;
  readonly path: string;
}

interface KnownServer extends CaptureServer {
  readonly url: URL;
}

/** Servers of registered models, by base URL: the only ones whose requests are touched. */
const servers = new Map<string, KnownServer>();
const scopes = new AsyncLocalStorage<CaptureScope | null>();
const active = new Set<CaptureScope>();

export function addCaptureServer({ baseURL, apiKey }: CaptureServer): void {
  servers.set(baseURL, { baseURL, apiKey, url: new URL(baseURL) });
}

export function removeCaptureServer(baseURL: string): void {
  servers.delete(baseURL);
}

/** One capture. */
export class CaptureScope {
  readonly rolloutId: string;
  readonly trajectory: Trajectory;
  /** Servers whose requests were given the id. */
  readonly reached: Set<CaptureServer> = new Set();
  taggedRequests = 0;
  /** Requests to a server that somebody made while this capture ran, and nobody knows who. */
  unknownRequests = 0;
  /** Where other requests went, as far as they were seen; origins alone. */
  readonly otherPlaces: Set<string> = new Set();
  readonly #baseURL: string | null;

  /** `baseURL`: of the only server whose calls count; null = every registered one. */
  constructor(rolloutId: string, trajectory: Trajectory, baseURL: string | null) {
    this.rolloutId = rolloutId;
    this.trajectory = trajectory;
    this.#baseURL = baseURL;
  }

  servers(): readonly CaptureServer[] {
    return this.#known();
  }

  /** Whether a request there is one of this capture's server. */
  owns(place: Place): boolean {
    return this.#known().some(({ url }) => isBelow(place, url));
  }

  /** The rollout that a request there must name; null where that is none of ours, or names one by its path. */
  claim(place: Place): string | null {
    const known = this.#known();
    const server = known.find(({ url }) => isBelow(place, url));
    if (server !== undefined) {
      this.reached.add(server);
      this.taggedRequests += 1;
      return this.rolloutId;
    }
    const isOurs = known.some(({ url }) => isSameServer(place.origin, url));
    const isElsewhere = !isOurs || !/^\/(api|rollouts)\//.test(place.path);
    if (isElsewhere && this.otherPlaces.size < 8) {
      this.otherPlaces.add(isOurs ? `${place.origin} (outside /v1)` : place.origin);
    }
    return null;
  }

  /** The built-in fetch, with the header where it belongs. */
  readonly fetch: typeof globalThis.fetch = (input, init) => {
    const { origin, pathname } = new URL(input instanceof Request ? input.url : input);
    const headers = new Headers(init?.headers ?? (input instanceof Request ? input.headers : undefined));
    const id = headers.has(ROLLOUT_HEADER) ? null : this.claim({ origin, path: pathname });
    if (id === null) return globalThis.fetch(input, init);
    headers.set(ROLLOUT_HEADER, id);
    return globalThis.fetch(input, { ...init, headers });
  };

  #known(): readonly KnownServer[] {
    if (this.#baseURL === null) return [...servers.values()];
    const server = servers.get(this.#baseURL);
    return server === undefined ? [] : [server];
  }
}

export function currentScope(): CaptureScope | null {
  return scopes.getStore() ?? null;
}

export function activeScopes(): Iterable<CaptureScope> {
  return active;
}

/** Runs the work so that its requests, and those of all that it starts, belong to the scope. */
export async function runInScope<T>(scope: CaptureScope, work: () => Promise<T>): Promise<T> {
  active.add(scope);
  try {
    return await scopes.run(scope, work);
  } finally {
    active.delete(scope);
  }
}

/** Runs work whose requests belong to no capture, as those of a judge that an agent asks: they are no turns of the policy. */
export function runOutsideCapture<T>(work: () => T): T {
  return scopes.run(null, work);
}

/** For clients of ours: the innermost capture's `fetch`, or the built-in one. It needs no channel. */
export const captureFetch: typeof globalThis.fetch = (input, init) =>
  (currentScope()?.fetch ?? globalThis.fetch)(input, init);

function isBelow({ origin, path }: Place, base: URL): boolean {
  return isSameServer(origin, base) && (path === base.pathname || path.startsWith(`${base.pathname}/`));
}

/** `localhost` is this computer's loopback address by another name. */
function isSameServer(origin: string, base: URL): boolean {
  if (origin === base.origin) return true;
  const other = new URL(origin);
  const names = [other.hostname, base.hostname];
  const isLoopback = names.includes('localhost') && names.some((name) => name === '127.0.0.1' || name === '[::1]');
  return isLoopback && other.port === base.port && other.protocol === base.protocol;
}
