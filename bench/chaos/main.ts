/**
 * `npm run chaos -- --kills 100 --json`: a training run whose engine or server is killed at random moments, against an undisturbed one.
 * The last line is `{ kills, lostTrajectories, lostSteps, duplicates, sameAdapter }`; exit code 1 if anything was lost, doubled or differs.
 */
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { writeStarterModel } from '../../src/formats/starter-model.ts';
import { countLosses, type Losses } from './check.ts';
import { type JobShape, runJob } from './job.ts';
import { startKiller } from './kills.ts';
import { startKilledServer } from './server.ts';

const { values } = parseArgs({
  options: {
    kills: { type: 'string', default: '100' },
    steps: { type: 'string' },
    seed: { type: 'string', default: '1' },
    json: { type: 'boolean', default: false },
  },
});

function readCount(name: string, text: string): number {
  if (!/^\d{1,6}$/.test(text)) throw new Error(`--${name}: must be a whole number, got '${text}'`);
  return Number(text);
}

const kills = readCount('kills', values.kills);
const steps = values.steps === undefined ? Math.max(3, Math.ceil(kills / 5)) : readCount('steps', values.steps);
const seed = readCount('seed', values.seed);
const shape: JobShape = { steps, groups: 2, rollouts: 4 };

function say(text: string): void {
  if (!values.json) console.log(text);
}

const folder = await mkdtemp(join(tmpdir(), 'art-chaos-'));
try {
  const baseModel = join(folder, 'base');
  const sizes = { width: 32, layers: 1, heads: 2, kvHeads: 1, headSize: 16, ffWidth: 48, maxPositions: 160 };
  await writeStarterModel({
    seed: 1,
    directory: baseModel,
    corpus: ['say yes no up down again'],
    vocabSize: 300,
    ...sizes,
  });

  const calm = startKilledServer(join(folder, 'calm'), baseModel);
  await calm.url();
  const startedAt = performance.now();
  const expected = await runJob(calm, shape, () => undefined).finally(() => calm.close());
  const calmMs = performance.now() - startedAt;
  say(
    `undisturbed: ${steps} steps in ${(calmMs / 1000).toFixed(1)} s, adapter ${expected.steps.get(steps)?.slice(0, 12)}`,
  );

  const server = startKilledServer(join(folder, 'killed'), baseModel);
  try {
    const killer = startKiller(server, { kills, steps, seed, stepMs: calmMs / steps });
    const disturbedAt = performance.now();
    const [got, counts] = await Promise.all([runJob(server, shape, killer.onStep), killer.done]);
    const seconds = ((performance.now() - disturbedAt) / 1000).toFixed(1);
    say(`disturbed: ${seconds} s, ${counts.engine} kills of the engine, ${counts.server} of the server`);
    for (const [kind, count] of [...got.failures].sort((a, b) => b[1] - a[1]).slice(0, 12)) say(`  ${count} × ${kind}`);
    const losses: Losses = await countLosses(server, shape, got, {
      calm: join(folder, 'calm'),
      killed: join(folder, 'killed'),
    });
    const sameAdapter = losses.isSame && got.steps.get(steps) === expected.steps.get(steps);
    const { lostTrajectories, lostSteps, duplicates } = losses;
    console.log(JSON.stringify({ kills, lostTrajectories, lostSteps, duplicates, sameAdapter }));
    if (lostTrajectories + lostSteps + duplicates > 0 || !sameAdapter) process.exitCode = 1;
  } finally {
    await server.close();
  }
} finally {
  await rm(folder, { recursive: true, force: true });
}
