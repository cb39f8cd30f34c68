/**
 * Node's diagnostics channels, which show every request before it is sent, and let it have one more header: of `fetch` and undici
 * (`undici:request:create`), and from Node.js 22.12 on of node:http (`http.client.request.created`). Layer 5.
 * Clients made before are seen too, and nothing is patched. What a subscriber throws ends the process, so nothing here throws.
 * Source: Node.js documentation, "Diagnostics Channel"; undici documentation, "Diagnostics Channel Support".
 */
import { subscribe } from 'node:diagnostics_channel';
import type { ClientRequest } from 'node:http';
import { activeScopes, currentScope, type Place, ROLLOUT_HEADER } from './capture-scope.ts';

let isWatching = false;

/** Called by the first capture; there is nothing to undo, since outside of captures requests are left as they are. */
export function watchRequests(): void {
  if (isWatching) return;
  isWatching = true;
  subscribe('undici:request:create', onUndiciRequest);
  subscribe('http.client.request.created', onHttpRequest);
}

/** What undici tells of a request; versions differ in the form of its headers. */
interface UndiciRequest {
  readonly origin?: unknown;
  readonly path?: unknown;
  readonly headers?: unknown;
  readonly addHeader?: (name: string, value: string) => unknown;
}

function onUndiciRequest(message: unknown): void {
  const { request } = message as { readonly request: UndiciRequest };
  const place = placeOf(String(request.origin), request.path);
  if (place === null || hasRolloutHeader(request.headers)) return;
  const scope = currentScope();
  const concerned = [...activeScopes()].filter((each) => each.owns(place));
  if ((concerned.length > 0 || scope?.owns(place)) && !isMadeByCaller()) {
    for (const each of concerned) each.unknownRequests += 1;
    return;
  }
  const id = scope?.claim(place);
  if (typeof id === 'string') request.addHeader?.(ROLLOUT_HEADER, id);
}

function onHttpRequest(message: unknown): void {
  const { request } = message as { readonly request: ClientRequest };
  const port = /:(\d+)$/.exec(String(request.getHeader('host') ?? ''))?.[1];
  const host = request.host.includes(':') ? `[${request.host}]` : request.host;
  const place = placeOf(`${request.protocol}//${host}${port === undefined ? '' : `:${port}`}`, request.path);
  // Headers given as a list are written already.
  if (place === null || request.headersSent || request.hasHeader(ROLLOUT_HEADER)) return;
  const id = currentScope()?.claim(place);
  if (typeof id === 'string') request.setHeader(ROLLOUT_HEADER, id);
}

/** Null where that is no place of a server. */
function placeOf(origin: string, path: unknown): Place | null {
  if (typeof path !== 'string' || !URL.canParse(origin)) return null;
  return { origin: new URL(origin).origin, path: path.replace(/[?#].*$/s, '') };
}

/** undici 5: lines of text; 6 and 7: names and values in turn. */
function hasRolloutHeader(headers: unknown): boolean {
  if (typeof headers === 'string') return headers.toLowerCase().includes(`${ROLLOUT_HEADER}:`);
  if (!Array.isArray(headers)) return false;
  return headers.some((name, index) => index % 2 === 0 && String(name).toLowerCase() === ROLLOUT_HEADER);
}

/**
 * Whether the call that makes the request is on the stack. A dispatcher with a limit of connections makes queued requests, and one that
 * retries makes them anew, when another request's socket is free: the context is then that one's, so that captures would mix.
 */
function isMadeByCaller(): boolean {
  const { stackTraceLimit } = Error;
  const here: { readonly stack?: string } = {};
  Error.stackTraceLimit = 100;
  Error.captureStackTrace(here);
  Error.stackTraceLimit = stackTraceLimit;
  return /^ +at (?:async )?(?:[\w<>]+\.)?(?:httpNetworkFetch|request|stream|pipeline) /m.test(here.stack ?? '');
}
