/** Who sent a request, and what the server's security holds for it: bound once by the guard, read by every route. Layer 5. */
import { randomUUID } from 'node:crypto';
import type { Context } from 'hono';
import { z } from 'zod';
import type { AuditLog, Change } from './audit.ts';
import type { Confirmations } from './confirmation.ts';

/** What a key may do; `admin` may do everything, `train` may also infer. */
export const scopes = ['infer', 'train', 'admin'] as const;
export type Scope = (typeof scopes)[number];

/** `local`: this computer's user, on a server without keys or by the command line. */
export type Caller =
  | { readonly kind: 'local' }
  | { readonly kind: 'key'; readonly id: string; readonly name: string; readonly scopes: readonly Scope[] };

/** A caller as manifests, the trash and the audit log name it. */
export const whoSchema = z.union([
  z.strictObject({ kind: z.literal('local') }),
  z.strictObject({ kind: z.literal('key'), id: z.string(), name: z.string() }),
]);
export type Who = z.infer<typeof whoSchema>;

export const localCaller: Caller = { kind: 'local' };

export interface RequestSecurity {
  readonly caller: Caller;
  readonly requestId: string;
  /** Null: the server keeps no audit log. */
  readonly audit: AuditLog | null;
  readonly confirmations: Confirmations;
  /** Folders whose models callers may name that are no admins. */
  readonly modelRoots: readonly string[];
}

type SecureContext = Context<{ Variables: { artSecurity: RequestSecurity } }>;

/** Called by the guard, before any route. */
export function bindSecurity(c: Context, security: RequestSecurity): void {
  (c as SecureContext).set('artSecurity', security);
}

export function securityOf(c: Context): RequestSecurity {
  const security = (c as SecureContext).get('artSecurity');
  if (security === undefined) throw new Error('securityOf: the guard must run before every route; use createApp');
  return security;
}

export function callerOf(c: Context): Caller {
  return securityOf(c).caller;
}

/** Whether the caller may do what needs this scope. */
export function hasScope(caller: Caller, needed: Scope): boolean {
  if (caller.kind === 'local' || caller.scopes.includes('admin')) return true;
  return caller.scopes.includes(needed) || (needed === 'infer' && caller.scopes.includes('train'));
}

export function whoOf(caller: Caller): Who {
  return caller.kind === 'local' ? { kind: 'local' } : { kind: 'key', id: caller.id, name: caller.name };
}

/** The client's `x-request-id` where it is short and plain, else a new one. */
export function requestIdOf(c: Context): string {
  const sent = c.req.header('x-request-id');
  return sent !== undefined && /^[\w.:-]{1,100}$/.test(sent) ? sent : randomUUID();
}

/** Adds a change that this request made to the audit log. Secrets have no place in `before` and `after`. */
export async function recordChange(c: Context, change: Change): Promise<void> {
  const { audit, caller, requestId } = securityOf(c);
  await audit?.append(whoOf(caller), change, requestId);
}
