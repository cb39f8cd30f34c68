/** ART #449: no minimal LangGraph example that works offline. Here examples/langgraph.ts runs as it stands, with a tiny model. */
import { execFile } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { expect, test } from 'vitest';
import { root } from '../source-imports.ts';
import { createTinyModelFolder } from '../tiny-model-folder.ts';

test('the example trains two steps, without a network', { timeout: 120_000 }, async () => {
  const tiny = await createTinyModelFolder({ maxPositions: 1024 });
  try {
    const program = join(root, 'dist', 'examples', 'langgraph.js');
    const env = { ...process.env, LANGSMITH_TRACING: 'false' };
    const run = promisify(execFile)(process.execPath, [program, tiny.modelDirectory, '2'], { cwd: tiny.folder, env });
    const { stdout } = await run;
    expect(stdout).toMatch(/^step 1: reward 0\.\d+\nstep 2: reward 0\.\d+\n$/);
    const folder = join(tiny.folder, '.art', 'examples', 'models', 'langgraph');
    const rows = readFileSync(join(folder, 'history.jsonl'), 'utf8').trim().split('\n');
    const [first] = rows.map((row) => JSON.parse(row));
    expect(first).toMatchObject({ step: 1, 'data/step_num_groups_trainable': 2 });
  } finally {
    await tiny.remove();
  }
});
