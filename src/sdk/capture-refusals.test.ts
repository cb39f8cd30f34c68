/** What a capture refuses, and what remains of an agent that fails. */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { type RepeatingServer, startRepeatingServer } from '../../test/repeating-agent.ts';
import {
  AbortedError,
  ConfigError,
  captureRollout,
  captureTrajectory,
  DataError,
  failedTrajectory,
  gatherTrajectoryGroups,
  Model,
  TrainableModel,
  Trajectory,
  trajectoryGroup,
} from '../index.ts';

let server: RepeatingServer;
beforeAll(async () => {
  server = await startRepeatingServer();
});
afterAll(() => server[Symbol.asyncDispose]());

const errorOf = (promise: Promise<unknown>): Promise<Error> =>
  promise.then(
    () => new Error('nothing was thrown'),
    (error: Error) => error,
  );

test('an agent without a call is told which base URL was expected, which clients are seen, and where it went instead', async () => {
  const other = await startRepeatingServer();
  try {
    await other.backend.close(); // so that its server is none of a registered model
    const error = await errorOf(captureTrajectory(() => fetch(`${other.url}/v1/models`).catch(() => null)));
    expect(error).toBeInstanceOf(DataError);
    expect(error.message).toContain(`the agent must call the model at ${server.url}/v1, got no call; requests went to`);
    expect(error.message).toContain(`requests went to ${other.url}.`);
    expect(error.message).toContain('axios, node:http, worker threads and other processes need the context');
  } finally {
    await other[Symbol.asyncDispose]();
  }
  const outside = await errorOf(captureTrajectory(() => fetch(`${server.url}/chat/completions`, { method: 'POST' })));
  expect(outside.message).toContain(`requests went to ${server.url} (outside /v1)`);
  const failing = captureTrajectory(() => server.talk('x', 1, server.client, { model: 'nobody' }).catch(() => null));
  expect((await errorOf(failing)).message).toContain('got 1 requests, none of which was answered with a sampled turn');
});

test('calls of another model than the one in training are refused, unless they are named', async () => {
  await server.register('judge');
  const both = async (): Promise<void> => {
    await server.talk('mine', 1);
    await server.talk('judged', 1, server.client, { model: 'judge' });
  };
  const alone = (): Promise<string> => server.talk('judged', 1, server.client, { model: 'judge' });
  const { model } = server;
  await expect(captureTrajectory(both, { model })).rejects.toThrow(/must call agent, got calls of (agent|judge), /);
  await expect(captureTrajectory(alone, { model })).rejects.toThrow(/must call agent, got calls of judge, of which/);
  await expect(captureTrajectory(alone, { model, otherModels: ['judge'] })).rejects.toThrow(/must call agent/);
  await expect(captureTrajectory(both)).rejects.toThrow(/give it the option model/);
  const { trajectory } = await captureTrajectory(both, { model, otherModels: ['judge'] });
  expect(trajectory.allChoices()).toHaveLength(1);
  expect(await server.rollouts('open')).toEqual([]);
});

test('a step that is asked for is the step that answers', async () => {
  const { model } = server;
  const pinned = await captureTrajectory(
    ({ modelName }) => server.talk('pinned', 1, server.client, { model: modelName }),
    { model, step: 0 },
  );
  expect(pinned.trajectory.allChoices()[0]?.art?.policy_step).toBe(0);
  const wrong = captureTrajectory(() => server.talk('newest', 1), { model, step: 7 });
  await expect(wrong).rejects.toThrow(
    'every turn must be of step 7, got one of step 0; let the agent ask for agent@7, which is the context',
  );
});

test('an agent that fails: its own error, what it had done, and a rollout that is over', async () => {
  const failure = new TypeError('no board');
  const rollout = captureRollout(server.model, async ({ trajectory }) => {
    await server.talk('half', 2);
    trajectory.log('at the board');
    throw failure;
  });
  const signal = new AbortController().signal;
  expect(await errorOf(rollout({ signal }))).toBe(failure);
  const trajectory = failedTrajectory(failure);
  expect(trajectory?.messages().map(({ content }) => content)).toContain('half 1');
  expect(trajectory).toMatchObject({ logs: ['at the board'] });
  expect(trajectory?.allChoices()).toHaveLength(2);
  expect(failedTrajectory(new TypeError('another'))).toBeNull();
  expect(await server.rollouts('open')).toEqual([]);
  const [group] = await gatherTrajectoryGroups(
    [trajectoryGroup([rollout, captureRollout(server.model, () => server.talk('whole', 1))])],
    { maxExceptions: 1 },
  );
  expect(group).toMatchObject({ length: 1, exceptions: [{ type: 'TypeError', message: 'no board' }] });
});

test('an agent that is given up: AbortedError at once, its signal fires, further calls are refused', async () => {
  const controller = new AbortController();
  const late: Promise<string>[] = [];
  const capture = captureTrajectory(
    async ({ signal }) => {
      await server.talk('early', 1);
      setTimeout(() => controller.abort(), 10);
      await new Promise((resolve) => signal.addEventListener('abort', resolve));
      await new Promise((resolve) => setTimeout(resolve, 200));
      late.push(server.talk('late', 1));
      late[0]?.catch(() => {});
    },
    { signal: controller.signal },
  );
  await expect(capture).rejects.toBeInstanceOf(AbortedError);
  await expect.poll(() => late.length).toBe(1);
  await expect(late[0]).rejects.toThrow(/must be open to take calls, is captured/);
});

test('messages that the agent pushed itself would stand twice: refused', async () => {
  const pushing = captureTrajectory(async ({ trajectory }) => {
    trajectory.messagesAndChoices.push({ role: 'user', content: 'mine' });
    await server.talk('x', 1);
  });
  await expect(pushing).rejects.toThrow(/the trajectory must have none, got 1; do not push them/);
  const { trajectory } = await captureTrajectory(async () => {
    await server.talk('x', 1);
    return new Trajectory({ reward: 3 });
  });
  expect([trajectory.reward, trajectory.allChoices().length]).toEqual([3, 1]);
});

test('models that no server of ours holds, and options that do not exist, are refused', async () => {
  const endpoint = { inferenceBaseURL: 'http://127.0.0.1:9/v1', inferenceApiKey: 'x' };
  const prompted = new Model({ name: 'other', project: 'tests', ...endpoint });
  const run = (options: object): Promise<unknown> => captureTrajectory(() => null, options);
  await expect(run({ model: prompted })).rejects.toThrow(ConfigError);
  await expect(run({ mdoel: server.model })).rejects.toThrow(/known options are model, step.*got mdoel/);
  await expect(run({ step: 1 })).rejects.toThrow(/need model/);
  const unregistered = new TrainableModel({ name: 'new', project: 'tests', baseModel: './x' });
  await expect(run({ model: unregistered })).rejects.toThrow(/must be registered first/);
});

test('a dispatcher that queues requests hides whose they are: captures refuse it rather than mix', async () => {
  const key = Symbol.for('undici.globalDispatcher.1');
  const holder = globalThis as unknown as Record<symbol, { readonly constructor: new (options: object) => object }>;
  const standard = holder[key]!;
  const talk = (name: string): Promise<unknown> => captureTrajectory(() => server.talk(name, 2));
  holder[key] = new standard.constructor({ connections: 2 }) as never;
  try {
    const results = await Promise.allSettled(Array.from({ length: 12 }, (_, index) => talk(`q${index}`)));
    const reasons = results.map((result) => (result.status === 'rejected' ? String(result.reason) : 'captured'));
    expect(new Set(reasons.map((reason) => reason.replace(/\d+ that/, 'N that').slice(0, 120)))).toEqual(
      new Set([expect.stringContaining('every request to the model must be made by its caller')]),
    );
    const inCaptures = Array.from({ length: 12 }, (_, index) =>
      captureTrajectory(() => server.talk(`own${index}`, 2, server.model.openaiClient())),
    );
    for (const [index, { trajectory }] of (await Promise.all(inCaptures)).entries()) {
      expect(trajectory.messages()[1]?.content).toBe(`own${index} 0`);
      expect([trajectory.allChoices().length, trajectory.additionalHistories.length]).toEqual([2, 0]);
    }
  } finally {
    holder[key] = standard;
  }
});
