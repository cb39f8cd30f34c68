/** The table of metrics in docs/training.md against what steps write: neither may have a name that the other lacks. */
import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { writeStarterModel } from '../../src/formats/starter-model.ts';
import { createModelRegistry } from '../../src/server/training/model-registry.ts';
import type { TrainRequest } from '../../src/wire/training.ts';
import { root } from '../source-imports.ts';
import { createCountingEngine } from './counting-engine.ts';
import { completion, group, trainRequest, trajectory } from './training-fixtures.ts';

const steps: readonly TrainRequest['options'][] = [
  {},
  { loss: 'ppo', importance_cap: 2, importance_mask: [0.5, 2], sequence_mask: [0.5, 2] },
  { kl_penalty: { weight: 0.1 }, overlong: { mask: true, buffer_tokens: 2 }, max_completion_tokens: 8 },
];

test('docs/training.md lists every metric of a train step, and no other', async () => {
  const directory = await mkdtemp(join(tmpdir(), 'art-metric-names-'));
  const base = join(directory, 'model');
  const sizes = { width: 16, layers: 1, heads: 2, kvHeads: 1, headSize: 8, ffWidth: 16 };
  await writeStarterModel({ seed: 1, directory: base, corpus: ['go'], ...sizes });
  const registry = createModelRegistry({
    root: join(directory, 'runs'),
    createEngine: async ({ seed }) => createCountingEngine(seed),
    onWarning: () => {},
  });
  try {
    const lora = { rank: 4, alpha: 8 };
    const run = await registry.register({ name: 'agent', project: 'demo', base_model: base, lora, seed: 3 });
    const written = new Set<string>();
    for (const [index, options] of steps.entries()) {
      const ids = [`a${index}`, `b${index}`];
      for (const id of ids) run.model.completions.put(completion(id, { policyStep: run.model.step() }));
      const groups = [group(trajectory(1, [ids[0]!]), trajectory(0, [ids[1]!]))];
      const { metrics } = await run.train({ ...trainRequest(`k${index}`, ...groups), options }).result;
      for (const name of Object.keys(metrics)) written.add(name);
    }
    const page = await readFile(join(root, 'docs', 'training.md'), 'utf8');
    const documented = [...page.matchAll(/^\| `([a-z]+\/[a-z0-9_/]+)` \|/gm)].map(([, name]) => name);
    expect(documented.length).toBe(new Set(documented).size);
    expect([...written].sort()).toEqual(documented.sort());
  } finally {
    await registry.close();
    await rm(directory, { recursive: true });
  }
});
