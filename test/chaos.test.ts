/** A small `npm run chaos`: kills of the engine and the server lose nothing, double nothing and change no byte. Runs the built benchmark. */
import { spawn } from 'node:child_process';
import { resolve } from 'node:path';
import { expect, test } from 'vitest';

const limitMs = 150_000;

async function runChaos(...args: readonly string[]): Promise<{ code: number | null; lines: string[]; said: string }> {
  const child = spawn(process.execPath, [resolve('dist/bench/chaos/main.js'), ...args], {
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  let [out, said] = ['', ''];
  child.stdout.setEncoding('utf8').on('data', (text: string) => {
    out += text;
  });
  child.stderr.setEncoding('utf8').on('data', (text: string) => {
    said += text;
  });
  const timer = setTimeout(() => child.kill('SIGKILL'), limitMs);
  const code = await new Promise<number | null>((done) => child.once('exit', done));
  clearTimeout(timer);
  return { code, lines: out.trim().split('\n'), said };
}

test('six kills at random moments: the same adapter, nothing lost, nothing twice', { timeout: limitMs }, async () => {
  const { code, lines, said } = await runChaos('--kills', '6', '--seed', '2', '--json');
  expect(said).toBe('');
  expect(lines).toHaveLength(1);
  expect(JSON.parse(lines[0]!)).toEqual({
    kills: 6,
    lostTrajectories: 0,
    lostSteps: 0,
    duplicates: 0,
    sameAdapter: true,
  });
  expect(code).toBe(0);
});

test('an argument that is no number is refused by name', async () => {
  const { code, said } = await runChaos('--kills', 'many');
  expect(code).toBe(1);
  expect(said).toContain("--kills: must be a whole number, got 'many'");
});
