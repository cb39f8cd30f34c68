import { appendFile, cp, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeAll, beforeEach, expect, test } from 'vitest';
import { type CountingEngine, createCountingEngine } from '../../../test/server/counting-engine.ts';
import { completion, group, trainRequest, trajectory } from '../../../test/server/training-fixtures.ts';
import { ApiError, CheckpointError, ConfigError, DataError, EngineError } from '../../core/errors.ts';
import { writeStarterModel } from '../../formats/starter-model.ts';
import type { RegisterRequest } from '../../wire/training.ts';
import { createModelRegistry, type ModelRegistry, type ModelRegistryOptions } from './model-registry.ts';
import type { TrainingRun } from './training-run.ts';

let base = '';
beforeAll(async () => {
  const parent = await mkdtemp(join(tmpdir(), 'art-base-'));
  base = join(parent, 'model');
  const sizes = { width: 16, layers: 1, heads: 2, kvHeads: 1, headSize: 8, ffWidth: 16 };
  await writeStarterModel({ seed: 1, directory: base, corpus: ['go'], ...sizes });
  return () => rm(parent, { recursive: true });
});

let root = '';
let registries: ModelRegistry[] = [];
let engines: CountingEngine[] = [];
let warnings: string[] = [];
beforeEach(async () => {
  root = await mkdtemp(join(tmpdir(), 'art-root-'));
  registries = [];
  engines = [];
  warnings = [];
});
afterEach(async () => {
  for (const registry of registries) await registry.close();
  await rm(root, { recursive: true });
});

function createRegistry(options: Partial<ModelRegistryOptions> = {}): ModelRegistry {
  const registry = createModelRegistry({
    root,
    createEngine: async ({ seed }) => {
      const engine = createCountingEngine(seed);
      engines.push(engine);
      return engine;
    },
    onWarning: (message) => warnings.push(message),
    ...options,
  });
  registries.push(registry);
  return registry;
}

function registration(init: Partial<RegisterRequest> = {}): RegisterRequest {
  return { name: 'agent', project: 'demo', base_model: base, lora: { rank: 4, alpha: 8 }, seed: 3, ...init };
}

async function open(options: Partial<ModelRegistryOptions> = {}): Promise<TrainingRun> {
  return await createRegistry(options).register(registration());
}

/** Ends the newest registry as a clean stop does, and opens the model again. */
async function reopen(): Promise<TrainingRun> {
  await registries.at(-1)?.close();
  return await open();
}

/** A request whose turns the run holds, sampled at its step by the weights of that step. */
function request(run: TrainingRun, key: string, rewards: readonly number[] = [1, 0]): ReturnType<typeof trainRequest> {
  const logprob = Math.fround(-1 - engines.at(-1)!.weight());
  const ids = rewards.map((_, index) => `${key}-${index}`);
  for (const id of ids) {
    run.model.completions.put(completion(id, { policyStep: run.model.step(), logprobs: [logprob, logprob] }));
  }
  return trainRequest(key, group(...rewards.map((reward, index) => trajectory(reward, [ids[index]!]))));
}

function train(run: TrainingRun, key: string, rewards?: readonly number[]) {
  return run.train(request(run, key, rewards)).result;
}

const read = (run: TrainingRun, ...path: string[]): Promise<string> => readFile(join(run.directory, ...path), 'utf8');
const engine = (): CountingEngine => engines.at(-1)!;

test('a new model is step 0: saved, published and proven before it is handed out', async () => {
  const run = await open();
  expect(engine().calls).toEqual(['save', 'publish@0', 'logprobs', 'logprobs']);
  expect(run.model.step()).toBe(0);
  expect(JSON.parse(await read(run, 'checkpoints', '0000', 'checkpoint.json'))).toMatchObject({
    step: 0,
    parentStep: null,
  });
  expect(await run.info()).toMatchObject({ name: 'agent', project: 'demo', step: 0, directory: run.directory });
});

test('one step: update, publish, prove, commit, history; the result is what was stored', async () => {
  const run = await open();
  engine().calls.length = 0;
  const stages: string[] = [];
  const job = run.train(request(run, 'k'));
  job.subscribe(({ stage }) => stages.push(stage));
  const result = await job.result;
  expect(engine().calls).toEqual(['forwardBackward', 'optimStep', 'publish@1', 'logprobs', 'logprobs', 'save']);
  expect(stages).toEqual(['batch', 'train', 'publish', 'verify', 'checkpoint']);
  expect(run.model.step()).toBe(1);
  expect(result).toMatchObject({ step: 1, checkpoint_path: join(run.directory, 'checkpoints', '0001') });
  expect(result.metrics).toMatchObject({
    'train/reward': 0.5,
    'train/reward_std_dev': 0.5,
    'train/exception_rate': 0,
    'train/served_policy_changed': 1,
    'loss/mismatch_kl': 0,
    'loss/mismatch_max_abs': 0,
    'offpolicy/token_weighted_policy_age_steps': 0,
    'data/step_num_groups_trainable': 1,
    'data/step_trainable_assistant_tokens': 4,
    'time/step_backend_train_s': expect.any(Number),
    'throughput/avg_trainer_tok_per_s': expect.any(Number),
  });
  const [row] = run.metricFiles.history();
  expect(Object.keys(row!).slice(0, 3)).toEqual(['step', 'training_step', 'split']);
  expect(Object.keys(row!).filter((name) => /^(time|throughput|engine)/.test(name))).toEqual([]);
  expect(await read(run, 'history.jsonl')).toBe(`${JSON.stringify(row)}\n`);
  const [line] = (await read(run, 'trajectories', 'train', '0001.jsonl')).split('\n');
  expect(JSON.parse(line!).entries[1].tokens).toMatchObject({ policy_step: 0, token_ids: [7, 8] });
});

test('an idempotency key trains once: while it runs, after it ran, and after a restart', async () => {
  const run = await open();
  const first = request(run, 'k');
  const [a, b] = [run.train(first), run.train(first)];
  expect(b).toBe(a);
  const result = await a.result;
  await train(run, 'other');
  expect(await run.train(first).result).toEqual(result);
  const again = await reopen();
  expect(again.model.step()).toBe(2);
  // The turns are gone with the old process; the stored result needs none.
  expect(await again.train(first).result).toEqual(result);
  expect(engine().calls).not.toContain('forwardBackward');
});

test('resume equals an uninterrupted run, byte for byte', async () => {
  const run = await open();
  await train(run, 'a');
  await train(run, 'b', [0, 2, 5]);
  const uninterrupted = await Promise.all([read(run, 'history.jsonl'), engine().weight()]);
  await registries.at(-1)?.close();
  await rm(root, { recursive: true });
  const second = await open();
  await train(second, 'a');
  const resumed = await reopen();
  await train(resumed, 'b', [0, 2, 5]);
  expect([await read(resumed, 'history.jsonl'), engine().weight()]).toEqual(uninterrupted);
});

test('a process that died between commit and history: the row comes from the checkpoint', async () => {
  const run = await open();
  await train(run, 'a');
  const before = [await read(run, 'history.jsonl'), await read(run, 'timings.jsonl')];
  await train(run, 'b');
  const after = await read(run, 'history.jsonl');
  await registries.at(-1)?.close();
  // Killed in the middle of writing the second row.
  await writeFile(join(run.directory, 'history.jsonl'), before[0] + after.slice(before[0]!.length, -20));
  await writeFile(join(run.directory, 'timings.jsonl'), before[1]!);
  const again = await open();
  expect(again.model.step()).toBe(2);
  expect(await read(again, 'history.jsonl')).toBe(after);
  expect((await read(again, 'timings.jsonl')).trimEnd().split('\n')).toHaveLength(2);
});

test('a process that died before the commit: the step did not happen', async () => {
  const run = await open();
  await train(run, 'a');
  await registries.at(-1)?.close();
  const checkpoints = join(run.directory, 'checkpoints');
  await cp(join(checkpoints, '0001'), join(checkpoints, '.tmp-2-dead'), { recursive: true });
  const again = await open();
  expect(again.model.step()).toBe(1);
  expect((await train(again, 'b')).step).toBe(2);
});

test.each(['forwardBackward', 'optimStep', 'publish', 'logprobs', 'save'] as const)(
  'a step that fails at %s is undone: the newest checkpoint is served, and the same key trains later',
  async (call) => {
    const run = await open();
    await train(run, 'a');
    const weight = engine().weight();
    const second = request(run, 'b');
    engine().failing = call;
    await expect(run.train(second).result).rejects.toThrow(call === 'save' ? CheckpointError : EngineError);
    expect(run.model.step()).toBe(1);
    expect(run.metricFiles.history()).toHaveLength(1);
    engine().failing = null;
    if (call === 'publish' || call === 'logprobs')
      expect(warnings.join()).toContain('tried again before the next step');
    else expect([engine().newestStep(), engine().weight()]).toEqual([1, weight]);
    expect((await run.train(second).result).step).toBe(2);
    expect(engine().calls.filter((entry) => entry === 'load').length).toBeGreaterThan(0);
  },
);

test('a server that serves other weights than it trained is found out, naming the step and the difference', async () => {
  const run = await open();
  engine().servedError = 0.5;
  await expect(train(run, 'a')).rejects.toThrow(/step 1 must score .* largest difference got 0\.5/);
  engine().servedError = 0;
  expect((await train(run, 'b')).step).toBe(1);
});

test('a tolerance for engines that are not bit-exact', async () => {
  const run = await open({ probeTolerance: 0.01 });
  engine().servedError = 0.005;
  expect((await train(run, 'a')).step).toBe(1);
});

test('nothing to train on: the step counts, the weights stay, and it is said', async () => {
  const run = await open();
  const weight = engine().weight();
  const { step, metrics } = await train(run, 'a', [1, 1]);
  expect(step).toBe(1);
  expect(engine().weight()).toBe(weight);
  expect(metrics).toMatchObject({
    'data/step_num_groups_trainable': 0,
    'discarded/step/zero_variance_groups': 1,
    'train/served_policy_changed': 0,
  });
  expect(warnings).toEqual([expect.stringContaining('step 1: nothing to train on')]);
  expect((await reopen()).model.step()).toBe(1);
});

test('calls wait their turn, at most as many as allowed', async () => {
  const run = await open({ maxWaitingTrainCalls: 1 });
  let openGate = (): void => {};
  engine().gate = new Promise((resolve) => {
    openGate = resolve;
  });
  const running = train(run, 'a');
  const waiting = train(run, 'b');
  expect(() => run.train(request(run, 'c'))).toThrow(ApiError);
  expect(() => run.train(request(run, 'c'))).toThrow(/at most 1 train calls may wait/);
  openGate();
  expect([(await running).step, (await waiting).step]).toEqual([1, 2]);
  expect((await waiting).metrics['offpolicy/token_weighted_policy_age_steps']).toBe(1);
});

test('closing ends the running step and those that wait; both can be sent again later', async () => {
  const run = await open();
  let openGate = (): void => {};
  engine().gate = new Promise((resolve) => {
    openGate = resolve;
  });
  const results = [train(run, 'a'), train(run, 'b')];
  const settled = Promise.allSettled(results);
  // One turn of the loop, so that the first step is inside the engine.
  await new Promise((resolve) => setImmediate(resolve));
  const closing = registries.at(-1)!.close();
  openGate();
  await closing;
  for (const outcome of await settled) {
    expect(outcome).toMatchObject({ reason: { details: { isRetryable: true } } });
  }
  expect(engine().isClosed()).toBe(true);
  const again = await open();
  expect(again.model.step()).toBe(0);
  expect((await train(again, 'a')).step).toBe(1);
});

test('invalid groups are refused before anything runs', async () => {
  const run = await open();
  const unknown = trainRequest('k', group(trajectory(1, ['gone']), trajectory(0, ['gone'])));
  expect(() => run.train(unknown)).toThrow(DataError);
  const taken = request(run, 'k');
  taken.groups[0]!.trajectories[0]!.metrics = { served_policy_changed: 1 };
  expect(() => run.train(taken)).toThrow(/train\/served_policy_changed: the name is taken/);
  expect(engine().calls).not.toContain('forwardBackward');
});

test('an evaluation is logged once for the same content', async () => {
  const run = await open();
  const entry = { split: 'val', step: null, groups: request(run, 'e', [1, 0]).groups, metrics: { accuracy: 0.5 } };
  expect(await run.log(entry)).toBe(0);
  await run.log(entry);
  expect(run.metricFiles.history()).toEqual([
    {
      step: 0,
      training_step: 0,
      split: 'val',
      'val/accuracy': 0.5,
      'val/exception_rate': 0,
      'val/reward': 0.5,
      'val/reward_std_dev': 0.5,
    },
  ]);
  const stored = await read(run, 'trajectories', 'val', '0000.jsonl');
  expect(stored.trimEnd().split('\n')).toHaveLength(3);
  await run.log({ ...entry, groups: request(run, 'f', [1, 1]).groups });
  expect((await read(run, 'trajectories', 'val', '0000.jsonl')).startsWith(stored)).toBe(true);
  expect(run.metricFiles.history()).toHaveLength(2);
  await expect(run.log({ ...entry, groups: [], metrics: {} })).rejects.toThrow(/at least one group or metric/);
});

test('stored trajectories do not depend on completion ids or clocks', async () => {
  const run = await open();
  const text = async (key: string): Promise<string> => {
    const { groups } = request(run, key);
    for (const one of groups[0]!.trajectories) {
      one.metrics = { duration: Math.random() };
      for (const entry of one.entries) entry.message = { role: entry.message.role, content: '' };
    }
    await run.log({ split: key, step: 0, groups, metrics: {} });
    return await read(run, 'trajectories', key, '0000.jsonl');
  };
  expect(await text('a')).toBe(await text('b'));
});

test('registering twice is the same as once; another model under the name is refused by field', async () => {
  const registry = createRegistry();
  const [a, b] = await Promise.all([registry.register(registration()), registry.register(registration())]);
  expect(a).toBe(b);
  expect(engines).toHaveLength(1);
  await expect(registry.register(registration({ seed: 4 }))).rejects.toThrow(/seed must stay .* 3, got 4/);
  await expect(registry.register(registration({ project: 'other' }))).rejects.toThrow(/project must stay/);
  await registry.close();
  const changed = createRegistry().register(registration({ lora: { rank: 8, alpha: 8 } }));
  await expect(changed).rejects.toThrow(/lora\.rank must stay/);
  await expect(open()).resolves.toBeDefined();
});

test('a second registry on the same folder is refused; the folder is free again after close', async () => {
  await open();
  await expect(open()).rejects.toThrow(ConfigError);
  await registries[0]?.close();
  await expect(open()).resolves.toBeDefined();
});

test('a registration that fails leaves no lock and no engine behind', async () => {
  const failing = createRegistry({
    createEngine: async () => {
      const broken = createCountingEngine();
      broken.failing = 'publish';
      engines.push(broken);
      return broken;
    },
  });
  await expect(failing.register(registration())).rejects.toThrow(EngineError);
  expect(engine().isClosed()).toBe(true);
  expect(failing.list()).toEqual([]);
  expect(() => failing.get('agent')).toThrow(/model agent: must be registered first/);
  await expect(open()).resolves.toBeDefined();
});

test('a damaged newest checkpoint is refused at start', async () => {
  const run = await open();
  await train(run, 'a');
  await registries.at(-1)?.close();
  await appendFile(join(run.directory, 'checkpoints', '0001', 'adapter_model.safetensors'), ' ');
  await expect(open()).rejects.toThrow(/newest intact step: 0/);
});
