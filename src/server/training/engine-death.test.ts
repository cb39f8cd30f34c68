/** The engine dies under a run: the step in flight is trained again to the same bytes, and what was served is served again. */
import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { type CountingEngine, createCountingEngine, type EngineCall } from '../../../test/server/counting-engine.ts';
import { completion, group, trainRequest, trajectory } from '../../../test/server/training-fixtures.ts';
import { writeStarterModel } from '../../formats/starter-model.ts';
import type { TrainResult } from '../../wire/training.ts';
import { createApp } from '../app.ts';
import { createModelRegistry, type ModelRegistry } from './model-registry.ts';
import type { TrainingRun } from './training-run.ts';

let folder = '';
let lives: CountingEngine[] = [];
let warnings: string[] = [];
let registry: ModelRegistry;
/** Called when a life is made. */
let onLife: (life: CountingEngine) => void = () => undefined;

beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'art-death-'));
  const sizes = { width: 16, layers: 1, heads: 2, kvHeads: 1, headSize: 8, ffWidth: 16 };
  await writeStarterModel({ seed: 1, directory: join(folder, 'base'), corpus: ['go'], ...sizes });
  warnings = [];
  onLife = () => undefined;
});
afterEach(async () => {
  await registry.close();
  await rm(folder, { recursive: true });
});

async function open(root: string): Promise<TrainingRun> {
  lives = [];
  registry = createModelRegistry({
    root: join(folder, root),
    createEngine: async ({ seed }) => {
      const life = createCountingEngine(seed);
      lives.push(life);
      onLife(life);
      return life;
    },
    engineRestart: { maxQuickDeaths: 8, requestWaitMs: 100 },
    onWarning: (message) => warnings.push(message),
  });
  const lora = { rank: 4, alpha: 8 };
  return await registry.register({ name: 'agent', project: 'demo', base_model: join(folder, 'base'), lora, seed: 3 });
}

async function train(run: TrainingRun, key: string): Promise<TrainResult> {
  const logprob = Math.fround(-1 - lives.at(-1)!.weight());
  const ids = [`${key}-0`, `${key}-1`];
  for (const id of ids) {
    run.model.completions.put(completion(id, { policyStep: run.model.step(), logprobs: [logprob, logprob] }));
  }
  return await run.train(trainRequest(key, group(trajectory(1, [ids[0]!]), trajectory(0, [ids[1]!])))).result;
}

/** The engine, by default that of now, dies when it is next called so. */
function dieAt(call: EngineCall, life: CountingEngine = lives.at(-1)!): void {
  const { calls } = life;
  const push = calls.push.bind(calls);
  calls.push = (...entries) => {
    if (entries[0]!.startsWith(call)) life.die();
    return push(...entries);
  };
}

test.each(['forwardBackward', 'optimStep', 'publish', 'logprobs', 'save'] as const)(
  'a death at %s: the step is trained again, and leaves the same bytes as an undisturbed one',
  async (call) => {
    const undisturbed = await open('undisturbed');
    await train(undisturbed, 'a');
    const expected = await train(undisturbed, 'b');
    const history = await readFile(join(undisturbed.directory, 'history.jsonl'), 'utf8');
    await registry.close();

    const run = await open('disturbed');
    await train(run, 'a');
    dieAt(call);
    const result = await train(run, 'b');
    expect(lives).toHaveLength(2);
    expect(result.step).toBe(2);
    expect(result.adapter_sha256).toBe(expected.adapter_sha256);
    expect(await readFile(join(run.directory, 'history.jsonl'), 'utf8')).toBe(history);
    // Step 0 was servable too when the engine died, so it is again, and then step 1, the newest.
    expect(lives[1]!.calls.slice(0, 4)).toEqual(['load', 'publish@0', 'load', 'publish@1']);
    expect((await run.model.engine.doInfo()).policySteps).toEqual([0, 1, 2]);
    expect(warnings.join('\n')).toContain('step 2 is trained again');
  },
);

test('training that kills the engine each time fails as retryable, and the next call trains', async () => {
  const run = await open('killer');
  dieAt('forwardBackward');
  onLife = (life) => dieAt('forwardBackward', life);
  await expect(train(run, 'a')).rejects.toMatchObject({ details: { isRetryable: true } });
  onLife = () => undefined;
  expect(lives.length).toBeGreaterThanOrEqual(4);
  await expect.poll(() => run.model.engine.state?.(), { timeout: 5000 }).toBe('running');
  expect((await train(run, 'a')).step).toBe(1);
});

test('health says what state the engine is in, with 503 while it is not ready', async () => {
  const run = await open('health');
  const health = async (): Promise<[number, Record<string, unknown>]> => {
    const response = await createApp(registry).request('/healthz');
    return [response.status, ((await response.json()) as { models: [Record<string, unknown>] }).models[0]];
  };
  expect(await health()).toMatchObject([200, { status: 'ok', engine_state: 'running' }]);
  let openGate = (): void => undefined;
  onLife = (life) => {
    life.publishGate = new Promise((resolve) => {
      openGate = resolve;
    });
  };
  lives[0]!.die();
  await expect.poll(() => run.model.engine.state?.()).toBe('restarting');
  expect(await health()).toMatchObject([503, { status: 'unavailable', engine_state: 'restarting' }]);
  await expect(run.model.engine.doInfo()).rejects.toThrow('engine of agent: must run again within 100 ms');
  openGate();
  await expect.poll(() => run.model.engine.state?.()).toBe('running');
  expect((await health())[0]).toBe(200);
});
