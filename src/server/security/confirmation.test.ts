import type { Hono } from 'hono';
import { expect, test } from 'vitest';
import { ApiError } from '../../core/errors.ts';
import { createApp } from '../app.ts';
import { type Caller, localCaller } from './caller.ts';
import { createConfirmations, requireConfirmation } from './confirmation.ts';

const remove = { action: 'checkpoint.delete', target: 'p/m@3', what: 'moves checkpoint 3 to the trash' };
const key = (id: string): Caller => ({ kind: 'key', id, name: 'ci', scopes: ['admin'] });

/** The token that a refused call is answered with. */
function tokenOf(work: () => void): string {
  try {
    work();
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    return (error.details.body as { confirmation_token: string }).confirmation_token;
  }
  throw new Error('was not refused');
}

test('a token is good once, for its action, its target and its caller', () => {
  const { require } = createConfirmations();
  const token = tokenOf(() => require(key('a'), remove, undefined));
  for (const [caller, action] of [
    [key('b'), remove],
    [localCaller, remove],
    [key('a'), { ...remove, target: 'p/m@4' }],
    [key('a'), { ...remove, action: 'model.delete' }],
  ] as const) {
    expect(() => require(caller, action, token)).toThrow(/got a token that is used, expired, or of another call/);
  }
  expect(() => require(key('a'), remove, token)).not.toThrow();
  expect(() => require(key('a'), remove, token)).toThrow(/x-art-confirmation/);
});

test('a token expires', () => {
  let now = 0;
  const { require } = createConfirmations(() => now);
  const token = tokenOf(() => require(localCaller, remove, undefined));
  now = 120_000;
  expect(() => require(localCaller, remove, token)).toThrow(/must be confirmed/);
});

test('tokens that are never used take bounded memory: the oldest goes first', () => {
  const { require } = createConfirmations();
  const tokens = Array.from({ length: 1_001 }, () => tokenOf(() => require(localCaller, remove, undefined)));
  expect(() => require(localCaller, remove, tokens[1])).not.toThrow();
  expect(() => require(localCaller, remove, tokens[0])).toThrow(/must be confirmed/);
});

test('over HTTP: 409 with the token, then done', async () => {
  let deleted = 0;
  const registerRoutes = (routes: Hono): void => {
    routes.delete('/x', (c) => {
      requireConfirmation(c, remove);
      deleted++;
      return c.body(null, 204);
    });
  };
  const app = createApp({ models: () => [], findModel: () => undefined, registerRoutes });
  const first = await app.request('/x', { method: 'DELETE' });
  expect(first.status).toBe(409);
  const body = (await first.json()) as { confirmation_token: string };
  expect(body).toMatchObject({
    error: { code: 'confirmation_required', type: 'invalid_request_error' },
    expires_in: 120,
    what: remove.what,
  });
  expect(deleted).toBe(0);
  const headers = { 'x-art-confirmation': body.confirmation_token };
  expect((await app.request('/x', { method: 'DELETE', headers })).status).toBe(204);
  expect((await app.request('/x', { method: 'DELETE', headers })).status).toBe(409);
  expect(deleted).toBe(1);
});
