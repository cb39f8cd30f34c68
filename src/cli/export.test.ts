import { spawnSync } from 'node:child_process';
import { join } from 'node:path';
import { afterAll, expect, test } from 'vitest';
import { createFixtureRun } from '../../test/export/fixture-run.ts';
import { root } from '../../test/source-imports.ts';

const run = await createFixtureRun();
afterAll(run.remove);

/** The built command: tests come after the build. */
function art(...args: string[]): { status: number | null; stdout: string; stderr: string } {
  const main = join(root, 'dist', 'src', 'cli', 'main.js');
  const { status, stdout, stderr } = spawnSync(process.execPath, [main, ...args], {
    encoding: 'utf8',
    cwd: run.folder,
  });
  return { status, stdout, stderr };
}

test('writes, and says what and where; no progress where there is no terminal', () => {
  const out = join(run.folder, 'agent.gguf');
  const result = art('export', 'agent', '--path', 'runs', '--format', 'gguf', '--out', 'agent.gguf');
  expect(result).toEqual({ status: 0, stdout: `agent@1 → ${out} (gguf, bf16, 21.4 kB)\n`, stderr: '' });
});

test.each([
  [['export', 'agent', '--out', 'x'], /required option '--format <format>' not specified/],
  [['export', 'agent', '--out', 'x', '--format', 'onnx'], /Allowed choices are peft, safetensors, gguf-lora, gguf/],
  [['export', 'agent', '--out', 'x', '--format', 'peft', '--step', 'last'], /must be a whole number or newest/],
  [
    ['export', 'agent', '--out', 'x', '--format', 'peft', '--path', 'elsewhere'],
    /^art: run folder: must hold model\.json/,
  ],
])('art %j is refused with exit code 1', (args, message) => {
  const { status, stderr } = art(...args);
  expect({ status, stderr }).toEqual({ status: 1, stderr: expect.stringMatching(message) });
});
