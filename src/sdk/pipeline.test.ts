import { expect, test } from 'vitest';
import { delays, ScriptedBackend, type ScriptedBackendOptions } from '../../test/sdk/scripted-backend.ts';
import { AbortedError, CollapseError, ConfigError, DataError, RolloutError, StallError } from '../core/errors.ts';
import { createRng } from '../core/rng.ts';
import { Trajectory, TrajectoryGroup } from '../core/trajectory.ts';
import type { GroupRollout } from './group-rollout.ts';
import { TrainableModel } from './model.ts';
import { PipelineTrainer } from './pipeline.ts';
import type { PipelineOptions } from './pipeline-options.ts';

const sleep = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms));

type Setup = Partial<PipelineOptions<number>> & {
  readonly backend?: ScriptedBackend;
  readonly backendOptions?: ScriptedBackendOptions;
  readonly rolloutMs?: () => number;
  /** Of the two rewards of a group; 0 = no difference. */
  readonly spread?: (index: number) => number;
};

/** Each group has two trajectories of two turns, sampled by the newest policy. */
async function setUp(
  setup: Setup,
): Promise<{ readonly backend: ScriptedBackend; readonly trainer: PipelineTrainer<number> }> {
  const { backendOptions, rolloutMs = () => 0, spread = () => 1, ...rest } = setup;
  const { backend = new ScriptedBackend(backendOptions), ...options } = rest;
  const model = new TrainableModel({ name: 'a', project: 'p', baseModel: './m' });
  await model.register(backend.asBackend());
  const rollout: GroupRollout<number> = async (scenario, { index, signal }) => {
    const first = backend.sample();
    await sleep(rolloutMs());
    signal.throwIfAborted();
    const second = backend.sample();
    const trajectory = (reward: number): Trajectory => new Trajectory({ messagesAndChoices: [first, second], reward });
    return new TrajectoryGroup([trajectory(0), trajectory(spread(index))], { metadata: { index, scenario } });
  };
  const scenarios = Array.from({ length: 1000 }, (_, index) => index);
  const trainer = new PipelineTrainer({ model, scenarios, rollout, untilStep: 10, onWarning: () => {}, ...options });
  return { backend, trainer };
}

test('200 steps: every group once, in time, and the metrics say what happened', async () => {
  const { backend, trainer } = await setUp({
    ...{ untilStep: 200, rolloutMs: delays(1, 4), spread: (index) => (index % 5 === 0 ? 0 : 1) },
    backendOptions: { trainMs: delays(2, 3) },
  });
  const result = await trainer.run();
  expect(result).toMatchObject({ step: 200, reason: 'untilStep', discardedGroups: { failed: 0 } });
  const trained = backend.calls.flatMap(({ scenarios }) => scenarios);
  expect(new Set(trained).size).toBe(trained.length);
  expect(trained).toHaveLength(result.trainedGroups);
  expect(backend.calls.every(({ scenarios }) => scenarios.length >= 4 && scenarios.length <= 8)).toBe(true);
  expect(Math.max(...backend.calls.flatMap(({ stalenesses }) => stalenesses))).toBeGreaterThan(0);
  const row = backend.rows.find(({ step, split }) => step === 150 && split === 'train');
  expect(Object.keys(row?.metrics ?? {}).sort()).toMatchInlineSnapshot(`
    [
      "discarded/cum/failed_groups",
      "discarded/cum/stale_groups",
      "discarded/cum/zero_variance_groups",
      "discarded/rate/stale_groups",
      "discarded/rate/zero_variance_groups",
      "discarded/step/failed_groups",
      "discarded/step/stale_groups",
      "offpolicy/group_age_steps",
      "offpolicy/group_age_steps_max",
      "pipeline/reward",
      "queue/groups",
      "queue/outstanding_groups",
      "queue/put_wait_s",
      "queue/take_wait_s",
      "throughput/accepted_train_tok_per_s",
      "throughput/avg_actor_tok_per_s",
      "time/actor_idle_s",
      "time/step_actor_s",
      "time/step_train_call_s",
      "time/step_wall_s",
      "time/trainer_idle_s",
    ]
  `);
  expect(row?.metrics['discarded/rate/zero_variance_groups']).toBeCloseTo(0.2, 1);
  const dropped = backend.rows
    .filter(({ split }) => split === 'discarded')
    .reduce((sum, { entries }) => sum + entries, 0);
  const { stale, zeroVariance } = result.discardedGroups;
  // What is dropped after the last step is not logged any more.
  expect(Math.abs(stale + zeroVariance - dropped)).toBeLessThan(12);
  expect(dropped).toBeGreaterThan(100);
});

test('property: staleness never exceeds the bound, and no scenario is trained twice', async () => {
  for (let seed = 0; seed < 25; seed++) {
    const rng = createRng('pipeline-property', seed);
    const minBatchSize = 1 + rng.integer(4);
    const maxStaleness = rng.integer(4);
    const { backend, trainer } = await setUp({
      ...{ untilStep: 15, minBatchSize, maxStaleness, maxBatchSize: minBatchSize + rng.integer(6), seed },
      ...{ workers: 1 + rng.integer(20), spread: () => (rng.uniform() < 0.3 ? 0 : 1) },
      rolloutMs: rng.uniform() < 0.3 ? () => (rng.uniform() < 0.1 ? 40 : 0) : delays(seed, 6),
      backendOptions: { trainMs: delays(seed + 100, 4) },
    });
    await trainer.run();
    expect(backend.calls).toHaveLength(15);
    for (const { stalenesses, scenarios } of backend.calls) {
      expect(Math.max(...stalenesses)).toBeLessThanOrEqual(maxStaleness);
      expect(scenarios.length).toBeGreaterThanOrEqual(minBatchSize);
    }
    const trained = backend.calls.flatMap(({ scenarios }) => scenarios);
    expect(new Set(trained).size).toBe(trained.length);
  }
});

test('maxStaleness 0 alternates: every group is of the policy that it trains', async () => {
  const { backend, trainer } = await setUp({ maxStaleness: 0, rolloutMs: delays(1, 5) });
  const result = await trainer.run();
  expect(backend.calls.flatMap(({ stalenesses }) => stalenesses)).toEqual(Array(10 * 4).fill(0));
  expect(result.discardedGroups.stale).toBe(0);
});

test('a group slower than all others is dropped as stale, and its policy steps are recorded', async () => {
  const seen: [unknown, unknown][] = [];
  let slow = true;
  const backend = new ScriptedBackend();
  const model = new TrainableModel({ name: 'a', project: 'p', baseModel: './m' });
  await model.register(backend.asBackend());
  const started: number[] = [];
  const rollout: GroupRollout<number> = async (_scenario, { index }) => {
    started.push(index);
    const first = backend.sample();
    const isSlow = slow && index === 0;
    slow = false;
    await sleep(isSlow ? 60 : 2);
    const choices = [first, backend.sample()];
    const group = new TrajectoryGroup([0, 1].map((reward) => new Trajectory({ messagesAndChoices: choices, reward })));
    setTimeout(() => {
      const { initial_policy_step, final_policy_step } = group.trajectories[0]?.metadata ?? {};
      if (isSlow) seen.push([initial_policy_step, final_policy_step]);
    });
    return group;
  };
  const options = { model, scenarios: [1], rollout, untilStep: 40, maxStaleness: 1, minBatchSize: 2 };
  const result = await new PipelineTrainer(options).run();
  expect(result.discardedGroups.stale).toBe(1);
  expect(started.filter((index) => index === 0)).toHaveLength(2);
  expect(seen).toEqual([[0, expect.any(Number)]]);
  expect(seen[0]?.[1]).toBeGreaterThan(1);
});

test('killed at any moment and resumed: no scenario is trained twice, none is left out', async () => {
  for (let seed = 0; seed < 12; seed++) {
    const backend = new ScriptedBackend({ trainMs: delays(seed, 4) });
    const scenarios = Array.from({ length: 120 }, (_, index) => index);
    const setup = {
      backend,
      scenarios,
      epochs: 1,
      untilStep: 1000,
      rolloutMs: delays(seed + 50, 4),
      seed,
      maxStaleness: 8,
    };
    for (let life = 0; life < 5; life++) {
      const { trainer } = await setUp(setup);
      const controller = new AbortController();
      // A step under way goes on, as it does on a server whose client was killed.
      setTimeout(() => controller.abort(), 3 + life + (seed % 4));
      await expect(trainer.run({ signal: controller.signal })).rejects.toThrow(AbortedError);
    }
    const { trainer } = await setUp(setup);
    expect(await trainer.run()).toMatchObject({ reason: 'scenarios' });
    const trained = backend.calls.flatMap((call) => call.scenarios);
    expect([...trained].sort((a, b) => a - b)).toEqual(scenarios);
  }
});

test('a crash between a train call and the next state trains nothing twice', async () => {
  const backend = new ScriptedBackend();
  const setup = { backend, scenarios: Array.from({ length: 12 }, (_, index) => index), epochs: 1, untilStep: 100 };
  const { trainer } = await setUp({
    ...setup,
    maxBatchSize: 4,
    onStep: () => {
      throw new Error('killed');
    },
  });
  await expect(trainer.run()).rejects.toThrow('killed');
  expect(backend.calls).toHaveLength(1);
  const { trainer: second } = await setUp(setup);
  await second.run();
  expect(backend.calls.flatMap((call) => call.scenarios).sort((a, b) => a - b)).toEqual(setup.scenarios);
});

test('requestStop ends after the step under way, and a later run goes on', async () => {
  const backend = new ScriptedBackend({ trainMs: () => 20 });
  const { trainer } = await setUp({ backend, untilStep: 6, rolloutMs: () => 3 });
  setTimeout(() => trainer.requestStop(), 30);
  const result = await trainer.run();
  expect(result.reason).toBe('stopped');
  expect(result.step).toBe(backend.step);
  expect(backend.step).toBeGreaterThan(0);
  expect((await trainer.run()).step).toBe(6);
  const trained = backend.calls.flatMap(({ scenarios }) => scenarios);
  expect(new Set(trained).size).toBe(trained.length);
});

test('a train call that fails ends the run with its error; the next run trains those groups', async () => {
  let fails = true;
  const beforePublish = (fromStep: number): void => {
    if (fromStep !== 2 || !fails) return;
    fails = false;
    throw new DataError('disk full');
  };
  const backend = new ScriptedBackend({ beforePublish });
  const setup = { backend, scenarios: Array.from({ length: 40 }, (_, index) => index), epochs: 1, untilStep: 100 };
  await expect((await setUp(setup)).trainer.run()).rejects.toThrow('disk full');
  await (await setUp(setup)).trainer.run();
  expect(backend.calls.flatMap((call) => call.scenarios).sort((a, b) => a - b)).toEqual(setup.scenarios);
});

test('evaluation runs beside training, on a policy that stays served', async () => {
  for (const servedPolicies of [2, 4]) {
    const backend = new ScriptedBackend({ servedPolicies, trainMs: () => 2 });
    const evaluated: number[] = [];
    let stepsMeanwhile = 0;
    const evaluate: PipelineOptions<number>['evaluate'] = async ({ step, modelName }) => {
      expect(modelName).toBe(`scripted@${step}`);
      const before = backend.step;
      const messagesAndChoices = [];
      for (let turn = 0; turn < 5; turn++) {
        messagesAndChoices.push(backend.sample(step));
        await sleep(8);
      }
      evaluated.push(step);
      stepsMeanwhile = Math.max(stepsMeanwhile, backend.step - before);
      return [new Trajectory({ messagesAndChoices, reward: 1 })];
    };
    const warnings: string[] = [];
    const onWarning = (message: string): unknown => warnings.push(message);
    const options = { backend, untilStep: 23, evaluate, evaluateEvery: 10, servedPolicies, onWarning };
    const result = await (await setUp(options)).trainer.run();
    expect(warnings).toEqual([]);
    expect(evaluated).toEqual([0, 10, 20, 23]);
    expect(result.evaluations).toBe(4);
    expect(stepsMeanwhile).toBe(servedPolicies - 1);
    expect(backend.rows.filter(({ split }) => split === 'val').map(({ step }) => step)).toEqual([0, 10, 20, 23]);
  }
});

test('an evaluation that fails is a warning', async () => {
  const warnings: string[] = [];
  const evaluate = (): Promise<undefined> => Promise.reject(new Error('no judge'));
  const { trainer } = await setUp({ evaluate, onWarning: (message) => warnings.push(message), evaluateAtStart: false });
  expect((await trainer.run()).evaluations).toBe(0);
  expect(warnings).toEqual(['pipeline: evaluation of step 10 failed (no judge); training goes on']);
});

test('a policy that answers always alike ends the run with advice', async () => {
  const { trainer } = await setUp({ spread: (index) => (index < 30 ? 1 : 0), collapseAfter: 20, untilStep: 1000 });
  const error = await trainer.run().catch((reason: unknown) => reason);
  expect(error).toBeInstanceOf(CollapseError);
  expect((error as Error).message).toMatch(/^pipeline: 20 groups in a row .* entropyBonus/);
});

test('failing rollouts are borne up to a share, or a count', async () => {
  let calls = 0;
  const rollout: GroupRollout<number> = async (_scenario, { index }) => {
    if (calls++ % 3 === 0) throw new TypeError('no board');
    return new TrajectoryGroup([new Trajectory({ reward: 0 }), new Trajectory({ reward: 1 })], { metadata: { index } });
  };
  const result = await (await setUp({ rollout })).trainer.run();
  expect(result.discardedGroups.failed).toBeGreaterThan(10);
  const error = await (await setUp({ rollout, maxExceptions: 3 })).trainer.run().catch((reason: unknown) => reason);
  expect(error).toBeInstanceOf(RolloutError);
  expect((error as Error).message).toContain(
    'at most 3 rollouts may fail (maxExceptions), got 4; the last with TypeError',
  );
  const dead: GroupRollout<number> = () => Promise.reject(new Error('connection refused'));
  await expect((await setUp({ rollout: dead })).trainer.run()).rejects.toThrow(
    'at most 32 of the latest 64 rollouts may fail (maxExceptions), got 33; the last with Error: connection refused',
  );
  const bug = (async () => 'group') as unknown as GroupRollout<number>;
  await expect((await setUp({ rollout: bug })).trainer.run()).rejects.toThrow(DataError);
});

test('a stall names every stage, what it waits for and since when', async () => {
  const never = (): Promise<void> => new Promise(() => {});
  const stuck = await setUp({ stallTimeoutMs: 60, workers: 13, backendOptions: { beforePublish: never } });
  const error = await stuck.trainer.run().catch((reason: unknown) => reason);
  expect(error).toBeInstanceOf(StallError);
  const { message } = error as Error;
  expect(message).toMatch(/must move within 60 ms \(stallTimeoutMs\)/);
  expect(message).toMatch(/trainer: trains step 1 on \d+ groups, for \d/);
  expect(message).toMatch(/worker 12: waits for the trainer to take groups, for \d/);
  const silent = await setUp({ stallTimeoutMs: 60, rollout: () => new Promise(() => {}) });
  await expect(silent.trainer.run()).rejects.toThrow(/worker 0: rolls out scenario 0.*trainer: waits for 4 groups/s);
});

test('a rollout past its limit is a failure, and does not come back', async () => {
  const rollout: GroupRollout<number> = async (_scenario, { index }) => {
    await sleep(index === 1 ? 60 : 1);
    return new TrajectoryGroup([new Trajectory({ reward: 0 }), new Trajectory({ reward: 1 })], { metadata: { index } });
  };
  const { trainer, backend } = await setUp({ rollout, rolloutTimeoutMs: 20, backendOptions: { trainMs: () => 10 } });
  expect((await trainer.run()).discardedGroups.failed).toBe(1);
  expect(backend.calls.flatMap((call) => call.scenarios)).not.toContain(1);
});

test('options: unknown and senseless ones, and a state of other scenarios, are refused', async () => {
  await expect(setUp({ minBatch: 3 } as Setup)).rejects.toThrow(/known options are .*; got minBatch$/);
  await expect(setUp({ maxBatchSize: 2 })).rejects.toThrow('maxBatchSize must be an integer from 4, got 2');
  await expect(setUp({ scenarios: [] })).rejects.toThrow(ConfigError);
  await expect(setUp({ trainOptions: { learningRat: 1 } as object })).rejects.toThrow(ConfigError);
  const backend = new ScriptedBackend();
  await (await setUp({ backend, untilStep: 1 })).trainer.run();
  const { trainer } = await setUp({ backend, untilStep: 2, scenarios: [1, 2] });
  await expect(trainer.run()).rejects.toThrow(/must go on with seed 0 and 1000 scenarios.*got seed 0 and 2/);
});
