/** What keeps a server its owner's: who calls, what they may do, and what is written down about it. Layer 5. */
import type { Hono } from 'hono';
import type { AuditLog } from './audit.ts';
import { bindSecurity, localCaller, requestIdOf } from './caller.ts';
import { type Confirmations, createConfirmations } from './confirmation.ts';

export interface SecurityOptions {
  /** Where changes are written down; default nowhere. */
  readonly audit?: AuditLog;
}

export interface Security {
  readonly audit: AuditLog | null;
  readonly confirmations: Confirmations;
}

export function createSecurity(options: SecurityOptions = {}): Security {
  return { audit: options.audit ?? null, confirmations: createConfirmations() };
}

/** Runs before every route: binds caller and request id. */
export function guardApp(app: Hono, { audit, confirmations }: Security): void {
  app.use('*', async (c, next) => {
    const requestId = requestIdOf(c);
    bindSecurity(c, { caller: localCaller, requestId, audit, confirmations });
    await next();
    c.header('x-request-id', requestId);
  });
}
