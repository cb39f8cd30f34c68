import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { Hono } from 'hono';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { allRoutes } from '../../wire/all-routes.ts';
import { createArtApp, createModelRegistry, type ModelRegistry } from '../index.ts';
import { scopeOf } from '../security/route-scopes.ts';
import { type OpenApiDocument, openApiDocument } from './openapi.ts';
import { toHonoPath } from './routes.ts';

let root = '';
let registry: ModelRegistry;
let app: Hono;
let document: OpenApiDocument;
beforeAll(async () => {
  root = await mkdtemp(join(tmpdir(), 'art-openapi-'));
  registry = createModelRegistry({ root, createEngine: async () => Promise.reject(new Error('not needed')) });
  app = createArtApp(registry);
  document = openApiDocument('1.2.3');
});
afterAll(async () => {
  await registry.close();
  await rm(root, { recursive: true });
});

/** Every object inside a value, with where it stands. */
function* walk(value: unknown, path = '#'): Generator<[string, Record<string, unknown>]> {
  if (typeof value !== 'object' || value === null) return;
  if (!Array.isArray(value)) yield [path, value as Record<string, unknown>];
  for (const [key, child] of Object.entries(value)) yield* walk(child, `${path}/${key}`);
}

function resolve(ref: string): unknown {
  const keys = ref.replace(/^#\//, '').split('/');
  return keys.reduce<unknown>((value, key) => (value as Record<string, unknown> | undefined)?.[key], document);
}

describe('the document', () => {
  test('every reference leads somewhere', () => {
    const refs = [...walk(document)].flatMap(([, { $ref }]) => (typeof $ref === 'string' ? [$ref] : []));
    expect(refs.length).toBeGreaterThan(100);
    expect(refs.filter((ref) => resolve(ref) === undefined)).toEqual([]);
  });

  test('every schema is used, and has no id or dialect of its own', () => {
    const used = new Set([...walk(document)].flatMap(([, { $ref }]) => (typeof $ref === 'string' ? [$ref] : [])));
    const unused = Object.keys(document.components.schemas).filter((name) => !used.has(`#/components/schemas/${name}`));
    expect(unused).toEqual([]);
    const marked = [...walk(document.components.schemas)].filter(
      ([, schema]) => '$id' in schema || '$schema' in schema,
    );
    expect(marked).toEqual([]);
  });

  test('operations have ids of their own, summaries, a tag that is declared, and answers', () => {
    const operations = Object.values(document.paths).flatMap((methods) => Object.values(methods));
    const ids = operations.map(({ operationId }) => operationId);
    expect(new Set(ids).size).toBe(ids.length);
    const tags = document.tags.map(({ name }) => name);
    for (const operation of operations) {
      expect(operation.summary).not.toBe('');
      expect(tags).toContain(operation.tags[0]);
      const responses = operation.responses as Record<string, { description: string; content: object }>;
      expect(Object.keys(responses).some((status) => status.startsWith('2'))).toBe(true);
      for (const { description, content } of Object.values(responses)) {
        expect(description).toMatch(/\.$/);
        expect(Object.keys(content)).not.toEqual([]);
      }
    }
  });

  test('parameters of a path are declared, and only they', () => {
    for (const [path, methods] of Object.entries(document.paths)) {
      const inPath = [...path.matchAll(/\{(\w+)\}/g)].map(([, name]) => name);
      for (const { parameters = [] } of Object.values(methods)) {
        const declared = (parameters as { in: string; name: string; required: boolean }[]).filter(
          (parameter) => parameter.in === 'path',
        );
        expect(declared.map(({ name }) => name)).toEqual(inPath);
        expect(declared.every(({ required }) => required)).toBe(true);
      }
    }
  });

  test('it is the same each time', () => {
    expect(openApiDocument('1.2.3')).toEqual(document);
  });
});

test('every route of the application is described, and every described route exists', () => {
  const existing = app.routes.filter(({ method }) => method !== 'ALL').map(({ method, path }) => `${method} ${path}`);
  const described = Object.entries(document.paths).flatMap(([path, methods]) =>
    Object.keys(methods).map((method) => `${method.toUpperCase()} ${toHonoPath(path)}`),
  );
  const normal = (routes: readonly string[]): string[] =>
    [...new Set(routes.map((route) => route.replace(/:\w+/g, ':x')))].sort();
  expect(normal(described)).toEqual(normal(existing));
});

test.each(Object.entries(allRoutes))(
  '%s: the scope in the table is the one that is enforced',
  (_name, { method, path, scope }) => {
    const concrete = path.replace(/\{step\}/g, '3').replace(/\{\w+\}/g, 'x');
    expect(scopeOf(method.toUpperCase(), concrete)).toBe(scope);
  },
);

test('/openapi.json and /docs', async () => {
  const served = await app.request('/openapi.json');
  expect(served.headers.get('content-type')).toMatch(/^application\/json/);
  const json = (await served.json()) as OpenApiDocument;
  expect(json.openapi).toBe('3.1.1');
  expect(json.paths).toEqual(document.paths);
  const docs = await app.request('/docs');
  const html = await docs.text();
  expect(docs.headers.get('content-type')).toMatch(/^text\/html/);
  const policy = docs.headers.get('content-security-policy') ?? '';
  expect(policy).toContain("default-src 'none'");
  const { createHash } = await import('node:crypto');
  const [, style = ''] = /<style>([\s\S]*?)<\/style>/.exec(html) ?? [];
  expect(policy).toContain(`'sha256-${createHash('sha256').update(style).digest('base64')}'`);
  // Nothing runs and nothing comes from elsewhere.
  expect(html).not.toMatch(/<script|<img|<link|<iframe|\son\w+=|style=|https?:\/\//);
  for (const [path, methods] of Object.entries(document.paths)) {
    expect(html).toContain(`<code>${path}</code>`);
    for (const { operationId } of Object.values(methods)) expect(html).toContain(`id="${operationId}"`);
  }
  const targets = [...html.matchAll(/href="#([^"]+)"/g)].map(([, target]) => target);
  expect(targets.filter((target) => !html.includes(`id="${target}"`))).toEqual([]);
});
