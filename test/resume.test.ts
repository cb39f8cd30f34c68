/**
 * The whole loop as separate processes: two runs of one seed leave the same bytes, and so does a run that is killed again and again.
 * The job is `examples/rl-loop.ts`, built, in a folder of its own. Kills go to the job by its process id; its engine ends with it.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { mkdir, mkdtemp, readdir, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { randomGames } from '../examples/tic-tac-toe/warm-up-data.ts';
import { createRng } from '../src/core/rng.ts';
import { fineTuneModel } from '../src/engines/fine-tune.ts';
import { writeStarterModel } from '../src/formats/starter-model.ts';

const steps = 3;
const kills = 6;
const jobLimitMs = 120_000;
const job = resolve('dist/examples/rl-loop.js');

let folder: string;
let baseModel: string;

beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'art-resume-'));
  const starter = join(folder, 'starter');
  baseModel = join(folder, 'base');
  await writeStarterModel({
    seed: 1,
    directory: starter,
    corpus: ['system user assistant hot Tic-tac-toe. You play X. Answer with a free cell.'],
    width: 64,
    layers: 1,
    heads: 2,
    kvHeads: 1,
    ffWidth: 128,
    maxPositions: 256,
    ropeTheta: 100,
  });
  await fineTuneModel({
    modelDirectory: starter,
    outputDirectory: baseModel,
    conversations: randomGames(480, 1),
    promptWeight: 0.2,
    batchSize: 8,
    learningRate: 5e-3,
    warmupSteps: 5,
    weightDecay: 0,
    seed: 1,
  });
});

afterAll(() => rm(folder, { recursive: true, force: true }));

async function startJob(cwd: string): Promise<ChildProcess> {
  await mkdir(cwd, { recursive: true });
  return spawn(process.execPath, [job, baseModel, String(steps)], { cwd, stdio: ['ignore', 'ignore', 'pipe'] });
}

/** Resolves to the exit code, or to 'killed' when the job was killed after `killAfterMs`; rejects past the limit. */
function finish(child: ChildProcess, killAfterMs = Number.POSITIVE_INFINITY): Promise<number | 'killed'> {
  let said = '';
  child.stderr?.setEncoding('utf8').on('data', (text: string) => {
    said += text;
  });
  return new Promise((resolvePromise, reject) => {
    const limit = setTimeout(() => {
      child.kill('SIGKILL');
      reject(new Error(`the job must end within ${jobLimitMs} ms; it said: ${said}`));
    }, jobLimitMs);
    const kill = Number.isFinite(killAfterMs) ? setTimeout(() => child.kill('SIGKILL'), killAfterMs) : undefined;
    child.once('exit', (code, signal) => {
      clearTimeout(limit);
      clearTimeout(kill);
      if (signal === 'SIGKILL') resolvePromise('killed');
      else if (code === 0) resolvePromise(0);
      else reject(new Error(`the job must end with exit code 0, got ${code ?? signal}; it said: ${said}`));
    });
  });
}

/** Every file that the seed decides, by path: history, adapters, optimizer states, trajectories. */
async function seededFiles(cwd: string): Promise<Record<string, string>> {
  const root = join(cwd, '.art/tic-tac-toe/models/rl-loop');
  const names = (await readdir(root, { recursive: true })).filter((name) =>
    /history\.jsonl$|\.safetensors$|trajectories.*\.jsonl$/.test(name),
  );
  const entries = names.sort().map(async (name) => [name, await readFile(join(root, name), 'base64')] as const);
  return Object.fromEntries(await Promise.all(entries));
}

test('one seed leaves the same bytes twice, and also when the run is killed at any moment and started again', async () => {
  const startedAt = performance.now();
  expect(await finish(await startJob(join(folder, 'undisturbed')))).toBe(0);
  const runMs = performance.now() - startedAt;
  const expected = await seededFiles(join(folder, 'undisturbed'));
  const history = Buffer.from(expected['history.jsonl'] ?? '', 'base64').toString();
  const rows = history
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line) as Record<string, number>);
  const trained = rows.filter((row) => 'loss/train' in row);
  expect(trained.map((row) => row.step)).toEqual([1, 2, 3]);
  expect(trained.map((row) => row['loss/mismatch_kl'])).toEqual([0, 0, 0]);
  expect(trained.map((row) => row['loss/mismatch_max_abs'])).toEqual([0, 0, 0]);
  expect(new Set(Object.keys(expected).filter((name) => name.endsWith('adapter_model.safetensors'))).size).toBe(
    steps + 1,
  );

  expect(await finish(await startJob(join(folder, 'again')))).toBe(0);
  expect(await seededFiles(join(folder, 'again'))).toEqual(expected);

  const rng = createRng('kills');
  const killed = join(folder, 'killed');
  let landed = 0;
  for (let kill = 0; kill < kills; kill++) {
    // Anywhere from before the server listens to after the last step.
    if ((await finish(await startJob(killed), rng.uniform() * runMs)) === 'killed') landed++;
  }
  expect(landed).toBeGreaterThan(0);
  expect(await finish(await startJob(killed))).toBe(0);
  expect(await seededFiles(killed)).toEqual(expected);
}, 400_000);
