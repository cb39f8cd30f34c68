/**
 * What keeps a server its owner's, in the order in which a request meets it: host and origin, key, scope, the key's limits. Layer 5.
 * Without keys everybody who reaches the port is the local user; `listen.ts` sees to it that nobody else does.
 */
import { createHash, randomBytes, timingSafeEqual } from 'node:crypto';
import type { ServerResponse } from 'node:http';
import type { Context, Hono } from 'hono';
import { ApiError } from '../../core/errors.ts';
import { type AuditLog, createAuditLog } from './audit.ts';
import { bindSecurity, type Caller, hasScope, localCaller, requestIdOf } from './caller.ts';
import { type Confirmations, createConfirmations } from './confirmation.ts';
import { createHttpGuard, type HttpGuard, type HttpGuardOptions } from './http-guard.ts';
import { createKeyLimits, type KeyLimits } from './key-limits.ts';
import { createKeyWatch } from './key-watch.ts';
import { type KeyStore, openKeys, type StoredKey } from './keys.ts';
import { scopeOf } from './route-scopes.ts';
import { createStoragePolicy, type StorageOptions } from './storage-policy.ts';

export interface SecurityOptions extends ServerSecurityOptions {
  /** Where changes are written down; default nowhere. */
  readonly audit?: AuditLog;
  /** Default: none, every request is the local user's. */
  readonly keys?: KeyStore;
}

/** What a user sets. */
export interface ServerSecurityOptions extends HttpGuardOptions {
  /** Folders of base models that keys without the scope `admin` may name by path; default none: they name ids of the hub. */
  readonly modelRoots?: readonly string[];
}

export interface Security {
  readonly audit: AuditLog | null;
  readonly keys: KeyStore | null;
  /** Makes a caller of this process the local user where keys are wanted. Never stored, gone with the process. */
  readonly localKey: string;
  readonly confirmations: Confirmations;
  readonly guard: HttpGuard;
  readonly limits: KeyLimits;
  readonly modelRoots: readonly string[];
}

/** Throws ConfigError on an origin or host name that is none. */
export function createSecurity(options: SecurityOptions = {}): Security {
  return {
    audit: options.audit ?? null,
    keys: options.keys ?? null,
    localKey: `art_local_${randomBytes(32).toString('base64url')}`,
    confirmations: createConfirmations(),
    guard: createHttpGuard(options),
    limits: createKeyLimits(),
    modelRoots: options.modelRoots ?? [],
  };
}

/** The security of a server that keeps its runs in `root`: the keys and the audit log there. Throws ConfigError on a damaged key file. */
export async function openSecurity(
  root: string,
  options: ServerSecurityOptions & StorageOptions & { readonly onWarning?: (message: string) => void },
): Promise<Security> {
  const onWarning = options.onWarning ?? ((message: string): void => console.warn(message));
  const { redact } = createStoragePolicy(options);
  return createSecurity({ ...options, audit: createAuditLog(root, redact), keys: await openKeys(root, onWarning) });
}

/** Runs before every route: checks the request, binds who sent it, holds its place among the key's requests. */
export function guardApp(app: Hono, security: Security): void {
  const { audit, confirmations, guard, keys, limits, modelRoots } = security;
  const keyWatch = keys === null ? null : createKeyWatch(keys);
  app.use('*', async (c, next) => {
    const requestId = requestIdOf(c);
    c.header('x-request-id', requestId);
    guard.check(c);
    const preflight = guard.answerPreflight(c);
    if (preflight !== null) return preflight;
    await keys?.refresh();
    const { caller, key } = identify(c, security);
    bindSecurity(c, { caller, requestId, audit, confirmations, modelRoots });
    if (key === undefined) return next();
    const leave = limits.enter(key);
    const outgoing = (c.env as { readonly outgoing?: ServerResponse } | undefined)?.outgoing;
    outgoing?.once('close', leave);
    if (outgoing !== undefined) keyWatch?.watch(key.id, outgoing);
    try {
      await next();
    } finally {
      // Over HTTP an answer that streams is complete later; a request without a connection has no other end than this.
      if (outgoing === undefined) leave();
    }
    return undefined;
  });
}

/** A caller without a key on a route that needs none. */
const anonymous: Caller = { kind: 'key', id: 'anonymous', name: 'anonymous', scopes: [] };

/** Throws ApiError 401 without a good key where one is needed, 403 naming the scope that the key lacks. */
function identify(c: Context, { keys, localKey }: Security): { readonly caller: Caller; readonly key?: StoredKey } {
  if (keys === null || !keys.isRequired()) return { caller: localCaller };
  const scope = scopeOf(c.req.method, c.req.path);
  const sent = sentKey(c);
  if (sent !== undefined && isSame(sent, localKey)) return { caller: localCaller };
  const key = sent === undefined ? undefined : keys.find(sent);
  if (key === undefined) {
    if (scope === 'open') return { caller: anonymous };
    throw unauthorized(sent !== undefined);
  }
  const caller: Caller = { kind: 'key', id: key.id, name: key.name, scopes: key.scopes };
  if (scope !== 'open' && !hasScope(caller, scope)) {
    const message = `key ${key.name}: ${c.req.method} ${c.req.path} needs the scope ${scope}, got ${key.scopes.join(', ')}`;
    throw new ApiError(message, 403, { details: { code: 'insufficient_scope' } });
  }
  return { caller, key };
}

/** OpenAI's clients send `Authorization: Bearer`, Anthropic's `x-api-key`. */
function sentKey(c: Context): string | undefined {
  const bearer = /^Bearer +(\S+) *$/i.exec(c.req.header('authorization') ?? '')?.[1];
  return bearer ?? c.req.header('x-api-key');
}

function isSame(a: string, b: string): boolean {
  const hash = (text: string): Buffer => createHash('sha256').update(text).digest();
  return timingSafeEqual(hash(a), hash(b));
}

/** Says nothing about the key that was sent: unknown, revoked and expired ones look alike. */
function unauthorized(hasKey: boolean): ApiError {
  const got = hasKey ? 'one that is unknown, revoked or expired' : 'none';
  const message =
    `api key: must be a key of this server as Authorization: Bearer or x-api-key, got ${got}; ` +
    'make one with art keys create, and give it to clients as apiKey or ART_API_KEY';
  const wwwAuthenticate = `Bearer realm="art"${hasKey ? ', error="invalid_token"' : ''}`;
  return new ApiError(message, 401, { details: { code: 'invalid_api_key', wwwAuthenticate } });
}
