import fc from 'fast-check';
import { expect, test } from 'vitest';
import { createApp } from '../app.ts';
import { checkJsonDepth, checkMessageCount, maxJsonDepth, maxMessages } from './json-limits.ts';
import { readJson } from './read-json.ts';

/** How deep a value nests, found by walking through it. */
function depthOf(value: unknown): number {
  if (typeof value !== 'object' || value === null) return 0;
  return 1 + Math.max(0, ...Object.values(value).map(depthOf));
}

const nested = (depth: number): string => '['.repeat(depth) + ']'.repeat(depth);

test('a value passes exactly as long as it does not nest too deep, brackets in strings or not', () => {
  expect(() => checkJsonDepth(nested(maxJsonDepth))).not.toThrow();
  expect(() => checkJsonDepth(nested(maxJsonDepth + 1))).toThrow(
    /must nest at most 100 deep, got more at character 100/,
  );
  fc.assert(
    fc.property(fc.jsonValue({ maxDepth: 5 }), fc.integer({ min: 94, max: 100 }), (value, around) => {
      const text = `${'{"[{\\"":'.repeat(around)}${JSON.stringify(value)}${'}'.repeat(around)}`;
      const isDeep = around + depthOf(value) > maxJsonDepth;
      if (isDeep) expect(() => checkJsonDepth(text)).toThrow(/must nest/);
      else expect(() => checkJsonDepth(text)).not.toThrow();
    }),
    { seed: 4, numRuns: 500 },
  );
});

test('conversations have a limit', () => {
  const entries = (count: number): object[] => Array.from({ length: count }, () => ({}));
  expect(() => checkMessageCount({ messages: entries(maxMessages), input: 'text' })).not.toThrow();
  expect(() => checkMessageCount({ messages: entries(maxMessages + 1) })).toThrow(/^messages: must have at most 10000/);
  expect(() => checkMessageCount({ input: entries(maxMessages + 1) })).toThrow(/^input: must have/);
  for (const other of [null, 1, 'x', [1]]) expect(() => checkMessageCount(other)).not.toThrow();
});

test('no body reaches a handler that breaks them', async () => {
  const app = createApp({
    models: () => [],
    findModel: () => undefined,
    registerRoutes: (routes) => routes.post('/x', async (c) => c.json(await readJson(c, 10 * 2 ** 20))),
  });
  const post = (body: string) =>
    app.request('/x', { method: 'POST', body, headers: { 'content-type': 'application/json' } });
  expect((await post(nested(200_000))).status).toBe(400);
  expect((await post(`{"messages":[${'{},'.repeat(maxMessages)}{}]}`)).status).toBe(400);
  expect((await post('{"messages":[{}]}')).status).toBe(200);
});
