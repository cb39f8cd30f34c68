/**
 * Destructive calls in two steps: the first is answered 409 with a token, the second carries the token and is done. Layer 5.
 * A token is bound to action, target and caller, is good once, and expires. Tokens live in memory: a restart asks again.
 */
import { randomBytes } from 'node:crypto';
import type { Context } from 'hono';
import { ApiError } from '../../core/errors.ts';
import { type Caller, securityOf } from './caller.ts';

export interface DestructiveAction {
  /** Stable name, as in `checkpoint.delete`; also what the audit log calls it. */
  readonly action: string;
  /** What it is done to, as in `default/agent-001@12`. */
  readonly target: string;
  /** What will happen, for the person who confirms. */
  readonly what: string;
}

export interface Confirmations {
  /** Returns if `token` confirms this action of this caller; else throws ApiError 409 whose body has a new token. */
  readonly require: (caller: Caller, action: DestructiveAction, token: string | undefined) => void;
}

export const confirmationHeader = 'x-art-confirmation';

/** Long enough for a person to read what will happen. */
const lifetimeMs = 120_000;
/** Calls that were never confirmed take no more memory than this many tokens. */
const maxOutstanding = 1_000;

/** `now` in milliseconds. */
export function createConfirmations(now: () => number = Date.now): Confirmations {
  const outstanding = new Map<string, { readonly purpose: string; readonly expiresAt: number }>();
  return {
    require: (caller, action, token) => {
      const purpose = purposeOf(caller, action);
      const known = token === undefined ? undefined : outstanding.get(token);
      if (token !== undefined && known?.purpose === purpose) {
        outstanding.delete(token);
        if (known.expiresAt > now()) return;
      }
      const fresh = randomBytes(24).toString('base64url');
      if (outstanding.size >= maxOutstanding) outstanding.delete(outstanding.keys().next().value as string);
      outstanding.set(fresh, { purpose, expiresAt: now() + lifetimeMs });
      throw notConfirmed(action, fresh, token !== undefined);
    },
  };
}

/**
 * Call before anything is destroyed. Throws ApiError 409 with `{ confirmation_token, expires_in, what }` until the request carries the
 * token in the header `x-art-confirmation` or the query's `confirmation_token`.
 */
export function requireConfirmation(c: Context, action: DestructiveAction): void {
  const { confirmations, caller } = securityOf(c);
  confirmations.require(caller, action, c.req.header(confirmationHeader) ?? c.req.query('confirmation_token'));
}

/** Length-prefixed by JSON, so that no two actions read alike. */
function purposeOf(caller: Caller, { action, target }: DestructiveAction): string {
  return JSON.stringify([caller.kind === 'local' ? null : caller.id, action, target]);
}

function notConfirmed({ action, target, what }: DestructiveAction, token: string, hadToken: boolean): ApiError {
  const got = hadToken ? 'a token that is used, expired, or of another call' : 'none';
  const message =
    `${action} ${target}: must be confirmed by the header ${confirmationHeader}, got ${got}; ` +
    'send the call again with the confirmation_token of this answer';
  const body = { confirmation_token: token, expires_in: lifetimeMs / 1000, what };
  return new ApiError(message, 409, { details: { code: 'confirmation_required', body } });
}
