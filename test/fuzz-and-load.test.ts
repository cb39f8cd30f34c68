/** Small runs of `npm run fuzz` and `npm run load`, which print what must not happen as numbers. */
import { execFile } from 'node:child_process';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { describe, expect, test } from 'vitest';
import { planAttempt } from '../bench/fuzz/plan.ts';

const root = join(import.meta.dirname, '..');

async function lastLine(script: string, args: readonly string[]): Promise<Record<string, number>> {
  const file = join(root, 'dist', 'bench', script, 'main.js');
  const { stdout } = await promisify(execFile)(process.execPath, [file, '--json', ...args], { timeout: 100_000 });
  return JSON.parse(stdout.trim().split('\n').at(-1) as string) as Record<string, number>;
}

describe('a run', () => {
  test('of fuzz: no 5xx, no hang, no words of another request, and nothing left running', {
    timeout: 110_000,
  }, async () => {
    const line = await lastLine('fuzz', ['--requests', '1500', '--seed', '7']);
    expect(line).toMatchObject({ requests: 1500, status5xx: 0, hangs: 0, crossed: 0, unanswered: 0, running: 0 });
  });

  test('of load: every answer is the one that its request gets alone', { timeout: 110_000 }, async () => {
    const line = await lastLine('load', ['--concurrency', '300', '--overhead-requests', '20']);
    expect(line).toMatchObject({ requests: 300, lost: 0, crossed: 0 });
  });
});

test('a request of a fuzz run depends on seed and number alone', () => {
  const routes = [
    { method: 'POST', path: '/v1/chat/completions' },
    { method: 'GET', path: '/api/models/:name' },
  ];
  const plan = (seed: number): unknown[] => Array.from({ length: 50 }, (_, i) => planAttempt(seed, i, routes, 'base'));
  expect(plan(3)).toEqual(plan(3));
  expect(plan(3)).not.toEqual(plan(4));
});
