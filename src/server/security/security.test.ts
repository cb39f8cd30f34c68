/** Keys, scopes, hosts and origins over the app, and over a port where the connection matters. */
import { mkdtemp, rm } from 'node:fs/promises';
import { request as httpRequest } from 'node:http';
import { connect } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { Hono } from 'hono';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { createApp } from '../app.ts';
import { readJson } from '../http/read-json.ts';
import { startServer } from '../listen.ts';
import { callerOf, type Scope } from './caller.ts';
import { createKey, openKeys, revokeKey } from './keys.ts';
import { createSecurity, type SecurityOptions } from './security.ts';

let root: string;
let app: Hono;
let localKey: string;
const keys = { infer: '', train: '', admin: '' };
const paths = ['/api/models', '/api/models/m/train', '/api/models/m/rollback', '/api/keys', '/api/models/m/history'];

/** Routes that say who came. */
function createTestApp(options: SecurityOptions): { readonly app: Hono; readonly localKey: string } {
  const security = createSecurity(options);
  const registerRoutes = (routes: Hono): void => {
    for (const path of [...paths, '/else']) routes.all(path, (c) => c.json(callerOf(c)));
    routes.post('/v1/read', async (c) => c.json(await readJson(c, 1_000)));
    const begun = new TextEncoder().encode('begun');
    routes.get('/v1/endless', (c) => c.body(new ReadableStream({ start: (stream) => stream.enqueue(begun) })));
    routes.get('/v1/wait', async (c) => {
      await new Promise((resolve) => setTimeout(resolve, 300));
      return c.json({});
    });
  };
  return { app: createApp({ models: () => [], findModel: () => undefined, security, registerRoutes }), ...security };
}

beforeAll(async () => {
  root = await mkdtemp(join(tmpdir(), 'art-security-'));
  for (const scope of ['infer', 'train', 'admin'] as const) {
    keys[scope] = (await createKey(root, { name: scope, scopes: [scope], maxConcurrent: 2 })).key;
  }
  ({ app, localKey } = createTestApp({ keys: await openKeys(root, () => {}) }));
});

afterAll(() => rm(root, { recursive: true }));

const call = (path: string, key: string | null, method = 'GET', headers: Record<string, string> = {}) =>
  app.request(path, { method, headers: { ...headers, ...(key !== null && { authorization: `Bearer ${key}` }) } });

describe('keys', () => {
  test.each<[string, string, Scope]>([
    ['GET', '/v1/models', 'infer'],
    ['GET', '/rollouts/r1/v1/models', 'infer'],
    ['GET', '/api/models', 'infer'],
    ['POST', '/api/models', 'train'],
    ['POST', '/api/models/m/train', 'train'],
    ['GET', '/api/models/m/history', 'train'],
    ['POST', '/api/models/m/rollback', 'admin'],
    ['DELETE', '/api/models/m/train', 'admin'],
    ['GET', '/api/keys', 'admin'],
    ['GET', '/else', 'admin'],
  ])('%s %s needs %s', async (method, path, needed) => {
    const order: readonly Scope[] = ['infer', 'train', 'admin'];
    for (const scope of order) {
      const response = await call(path, keys[scope], method);
      const isEnough = order.indexOf(scope) >= order.indexOf(needed);
      expect(response.status, scope).toBe(isEnough ? 200 : 403);
      if (!isEnough) {
        const { error } = (await response.json()) as { error: { message: string; code: string } };
        expect(error).toMatchObject({ code: 'insufficient_scope' });
        expect(error.message).toContain(`needs the scope ${needed}, got ${scope}`);
      }
    }
    expect((await call(path, null, method)).status).toBe(401);
  });

  test('a request without a good key is told how to get one, in OpenAI form, and no more', async () => {
    const response = await call('/v1/models', null);
    expect(response.headers.get('www-authenticate')).toBe('Bearer realm="art"');
    expect(await response.json()).toMatchObject({ error: { type: 'invalid_request_error', code: 'invalid_api_key' } });
    const wrong = await call('/v1/models', `${keys.infer.slice(0, -1)}!`);
    expect(wrong.status).toBe(401);
    expect(await wrong.text()).not.toContain(keys.infer.slice(17, -1));
    expect((await call('/v1/models', 'art-local')).status).toBe(401);
    expect((await call('/none', null)).status).toBe(401);
  });

  test("Anthropic's header does as well; the process's own key is the local user", async () => {
    expect((await call('/v1/models', null, 'GET', { 'x-api-key': keys.infer })).status).toBe(200);
    expect(await (await call('/else', localKey)).json()).toEqual({ kind: 'local' });
    expect(await (await call('/else', keys.admin)).json()).toMatchObject({ kind: 'key', name: 'admin' });
  });

  test('health is open, its details are not', async () => {
    expect(await (await call('/healthz', null)).json()).toEqual({ status: 'ok' });
    expect(await (await call('/healthz', keys.infer)).json()).toEqual({ status: 'ok', models: [] });
  });

  test('without keys everybody on this computer is the local user, whatever key is sent', async () => {
    const open = createTestApp({}).app;
    const headers = { authorization: 'Bearer art-local' };
    expect(await (await open.request('/api/keys', { method: 'POST', headers })).json()).toEqual({ kind: 'local' });
  });
});

describe('hosts and origins', () => {
  const open = createTestApp({ allowedHosts: ['gpu-box.lan'], allowedOrigins: ['https://app.example'] }).app;

  test.each([
    ['localhost:8000', 200],
    ['LOCALHOST', 200],
    ['127.0.0.1:8000', 200],
    ['[::1]:8000', 200],
    ['gpu-box.lan:1', 200],
    ['app.localhost', 200],
    ['192.168.1.20', 200],
    ['evil.example', 421],
    ['127.0.0.1.evil.example', 421],
    ['localhost.evil.example:8000', 421],
    ['evil-localhost', 421],
    ['localhost:8000@evil.example', 421],
    ['', 421],
  ])('host %j is %d', async (host, status) => {
    expect((await open.request('/v1/models', { headers: { host } })).status).toBe(status);
  });

  test.each([
    ['POST', 'https://evil.example', 403],
    ['DELETE', 'null', 403],
    ['POST', 'https://app.example.evil', 403],
    ['GET', 'https://evil.example', 200],
    ['POST', 'https://app.example', 200],
    ['POST', 'http://localhost:8000', 200],
    ['POST', 'http://localhost:8001', 403],
  ])('%s from %s is %d; only listed pages may read the answer', async (method, origin, status) => {
    const response = await open.request('/else', { method, headers: { host: 'localhost:8000', origin } });
    expect(response.status).toBe(status);
    const isListed = origin === 'https://app.example';
    expect(response.headers.get('access-control-allow-origin')).toBe(isListed ? origin : null);
  });

  test('a preflight needs no key, and names what official clients send', async () => {
    const headers = {
      origin: 'https://app.example',
      'access-control-request-method': 'POST',
      'access-control-request-headers': 'authorization, x-stainless-os, x-art-rollout, x-other',
    };
    const response = await open.request('/v1/chat/completions', { method: 'OPTIONS', headers });
    expect(response.status).toBe(204);
    expect(response.headers.get('access-control-allow-headers')).toBe('authorization, x-stainless-os, x-art-rollout');
    const other = await open.request('/v1/chat/completions', {
      method: 'OPTIONS',
      headers: { ...headers, origin: 'https://evil.example' },
    });
    expect(other.status).toBe(403);
    expect(other.headers.get('access-control-allow-origin')).toBe(null);
  });

  test('every answer, errors too, has the headers that keep it from being taken for a page', async () => {
    for (const path of ['/v1/models', '/none', '/v1/models/none']) {
      const { headers } = await open.request(path, { headers: { 'x-request-id': 'r-1' } });
      expect(headers.get('x-content-type-options')).toBe('nosniff');
      expect(headers.get('content-security-policy')).toBe("default-src 'none'; frame-ancestors 'none'");
      expect(headers.get('cache-control')).toBe('no-store');
      expect(headers.get('x-request-id')).toBe('r-1');
    }
    const { headers } = await open.request('/v1/models', { headers: { 'x-request-id': 'a b\tc' } });
    expect(headers.get('x-request-id')).toMatch(/^[0-9a-f-]{36}$/);
  });

  test('more than a hundred headers are refused', async () => {
    const headers = Object.fromEntries(Array.from({ length: 101 }, (_, i) => [`x-h${i}`, '1']));
    expect((await open.request('/v1/models', { headers })).status).toBe(431);
  });

  test.each([
    [{ allowedOrigins: ['*'] }, /must be origins like/],
    [{ allowedOrigins: ['https://app.example/'] }, /must be origins like/],
    [{ allowedHosts: ['http://gpu-box'] }, /must be host names/],
  ])('%j is no option', (options, message) => {
    expect(() => createSecurity(options)).toThrow(message);
  });
});

describe('over a port', () => {
  test('requests at the same time are counted until their answer is complete', async () => {
    const server = await startServer(app);
    try {
      const wait = () => fetch(`${server.url}/v1/wait`, { headers: { 'x-api-key': keys.infer } });
      const answers = await Promise.all([wait(), wait(), wait()]);
      expect(answers.map(({ status }) => status).sort()).toEqual([200, 200, 429]);
      expect(answers.find(({ status }) => status === 429)?.headers.get('retry-after')).toBe('1');
      for (const answer of answers) await answer.arrayBuffer();
      expect((await wait()).status).toBe(200);
    } finally {
      await server.close();
    }
  });

  test.each(['revoked', 'expired'])('an answer that is open when its key is %s ends; others go on', async (how) => {
    const expiresAt = new Date(Date.now() + 1_500);
    const init = { name: how, scopes: ['infer'] as const, ...(how === 'expired' && { expiresAt }) };
    const { key, stored } = await createKey(root, init);
    const server = await startServer(createTestApp({ keys: await openKeys(root, () => {}) }).app);
    const stop = new AbortController();
    const follow = async (apiKey: string): Promise<ReadableStreamDefaultReader<Uint8Array>> => {
      const headers = { 'x-api-key': apiKey };
      const { status, body } = await fetch(`${server.url}/v1/endless`, { headers, signal: stop.signal });
      expect(status).toBe(200);
      const reader = body!.getReader();
      expect(new TextDecoder().decode((await reader.read()).value)).toBe('begun');
      return reader;
    };
    try {
      const [own, other] = await Promise.all([follow(key), follow(keys.infer)]);
      if (how === 'revoked') await revokeKey(root, stored.id);
      let hasOtherEnded = false;
      void other.read().then(
        () => undefined,
        () => {
          hasOtherEnded = true;
        },
      );
      await expect(own.read()).rejects.toThrow('terminated');
      expect(hasOtherEnded).toBe(false);
    } finally {
      stop.abort();
      await server.close();
    }
  });

  test.each([
    ['headers', 'POST /v1/read HTTP/1.1\r\nHost: localhost\r\nX-A: '],
    [
      'body',
      'POST /v1/read HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{',
    ],
  ])('a client that never sends the rest of its %s is cut off', async (_part, text) => {
    const server = await startServer(createTestApp({}).app, { headersTimeoutMs: 300, requestTimeoutMs: 400 });
    const socket = connect(server.port, '127.0.0.1');
    try {
      socket.on('error', () => {});
      socket.write(text);
      const answer = await new Promise<string>((resolve) => {
        let received = '';
        socket.on('data', (data) => {
          received += data.toString();
        });
        socket.on('close', () => resolve(received));
      });
      expect(answer).toMatch(/^HTTP\/1\.1 408 /);
    } finally {
      socket.destroy();
      await server.close();
    }
  });

  test('headers beyond 16 KiB are refused', async () => {
    const server = await startServer(app);
    try {
      const status = await new Promise((resolve, reject) => {
        const headers = { 'x-long': 'a'.repeat(17_000) };
        httpRequest(`${server.url}/healthz`, { headers }, (response) => resolve(response.statusCode))
          .on('error', reject)
          .end();
      });
      expect(status).toBe(431);
    } finally {
      await server.close();
    }
  });
});

test('an answer of the Messages API has its own form, and the headers of a refusal all the same', async () => {
  const response = await call('/v1/messages', null, 'POST');
  expect(response.status).toBe(401);
  expect(response.headers.get('www-authenticate')).toBe('Bearer realm="art"');
  expect(await response.json()).toMatchObject({ type: 'error', error: { type: 'authentication_error' } });
});
