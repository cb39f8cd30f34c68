/** Environments over WebSocket and HTTP, the real OpenEnv where ART_PYTHON has it, and whole episodes that are trained. */
import { type ChildProcess, spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { connectEnvironment, createHttpEnvironment, environmentRollout } from '../../src/environments/index.ts';
import { LocalBackend, TrainableModel, TrajectoryGroup } from '../../src/index.ts';
import { root } from '../source-imports.ts';
import { createTinyModelFolder, type TinyModelFolder } from '../tiny-model-folder.ts';
import { type CountingServer, startCountingServer } from './counting-server.ts';

const python = process.env.ART_PYTHON;
const hasOpenEnv = python !== undefined && spawnSync(python, ['-c', 'import openenv.core']).status === 0;
const openEnv = hasOpenEnv
  ? 'the real OpenEnv'
  : 'the real OpenEnv (skipped: ART_PYTHON names no Python that has openenv-core)';

let server: CountingServer;
let url = '';
let real: ChildProcess | undefined;
let realUrl = '';

beforeAll(async () => {
  server = await startCountingServer();
  url = server.url;
  if (!hasOpenEnv) return;
  real = spawn(python!, [join(root, 'test', 'environments', 'count_env.py')], { stdio: ['pipe', 'pipe', 'inherit'] });
  const [line] = await once(real.stdout!, 'data');
  realUrl = String(line).trim();
});
afterAll(async () => {
  await server.close();
  real?.kill();
});

describe.each([
  ['a server that speaks OpenEnv', () => url, false],
  [openEnv, () => realUrl, !hasOpenEnv],
])('%s', (_name, address, isSkipped) => {
  test.skipIf(isSkipped)('plays an episode in a session of its own', async () => {
    await using first = await connectEnvironment(address());
    await using second = await connectEnvironment(address());
    expect(await first.reset({ seed: 1 })).toEqual({ observation: { count: 1, target: 3 }, reward: null, done: false });
    expect(await second.reset()).toEqual({ observation: { count: 0, target: 3 }, reward: null, done: false });
    expect(await first.step({ add: 1 })).toEqual({ observation: { count: 2, target: 3 }, reward: 0.25, done: false });
    expect(await first.step({ add: 1 })).toEqual({ observation: { count: 3, target: 3 }, reward: 1, done: true });
    expect(await second.step({ add: 1 })).toMatchObject({ observation: { count: 1 } });
    expect(await first.state()).toMatchObject({ step_count: expect.any(Number) });
  });

  test.skipIf(isSkipped)("an environment's error is told, and its session goes on", async () => {
    await using session = await connectEnvironment(address());
    await session.reset();
    await expect(session.step({ add: -1 })).rejects.toThrow(
      /^environment 127.0.0.1:\d+: step: add must not be negative$/,
    );
    expect(await session.step({ add: 1 })).toMatchObject({ observation: { count: 1 } });
  });

  test.skipIf(isSkipped)('fifty sessions at once do not mix', async () => {
    const counts = await Promise.all(
      Array.from({ length: 50 }, async (_, i) => {
        await using session = await connectEnvironment(address());
        await session.reset({ seed: i % 3 });
        return (await session.step({ add: 0 })).observation.count;
      }),
    );
    expect(counts).toEqual(Array.from({ length: 50 }, (_, i) => i % 3));
  });
});

describe('a session', () => {
  test.each([
    [91, /: step: |: the server closed the connection/],
    [92, /: step: the answer must be a message of OpenEnv, got \{"type":$/],
    [93, /: step: must be an object with observation, reward and done: observation: /],
    [94, /: step: the answer must be of type observation, got state$/],
  ])('says what was wrong with an answer (%i)', async (add, message) => {
    await using session = await connectEnvironment(url);
    await session.reset();
    await expect(session.step({ add })).rejects.toThrow(message);
  });

  test('an answer that does not come ends it by name, and every later call says so', async () => {
    await using session = await connectEnvironment(url);
    await session.reset();
    await expect(session.step({ add: 90 }, { timeoutMs: 100 })).rejects.toThrow(/: step: nothing within 100 ms$/);
    await expect(session.reset()).rejects.toThrow(/: step: nothing within 100 ms$/);
  });

  test('aborting ends a wait; two calls at once are refused', async () => {
    await using session = await connectEnvironment(url);
    const controller = new AbortController();
    const call = session.step({ add: 90 }, { signal: controller.signal });
    await expect(session.reset()).rejects.toThrow(
      /: reset: calls of a session must follow one another, got one during /,
    );
    controller.abort();
    await expect(call).rejects.toThrow(/: step: aborted by the caller$/);
  });

  test('closing it leaves nothing open, and can be done again', async () => {
    const session = await connectEnvironment(url);
    await session.close();
    await session.close();
    await expect(session.step({ add: 1 })).rejects.toThrow(/: is closed$/);
    await expect.poll(server.sessions).toBe(0);
  });

  test('a server that is not there and an address that is none are named', async () => {
    await expect(connectEnvironment('http://127.0.0.1:9')).rejects.toThrow(
      /^environment 127.0.0.1:9: connection: .*ECONNREFUSED/,
    );
    await expect(connectEnvironment('ftp://x')).rejects.toThrow(/must be a URL like http:\/\/127.0.0.1:8000 or ws:/);
    await expect(connectEnvironment(url, { signal: AbortSignal.abort() })).rejects.toThrow(
      /connection: aborted by the caller$/,
    );
  });
});

test('over HTTP a server holds one episode', async () => {
  const environment = createHttpEnvironment(url);
  expect(await environment.reset({ seed: 2 })).toEqual({
    observation: { count: 2, target: 3 },
    reward: null,
    done: false,
  });
  expect(await environment.step({ add: 1 })).toEqual({ observation: { count: 3, target: 3 }, reward: 1, done: true });
  await expect(environment.step({ add: -1 })).rejects.toThrow(
    /POST .*\/step: HTTP 422: Error: add must not be negative$/,
  );
  await expect(createHttpEnvironment('http://127.0.0.1:9').reset()).rejects.toThrow(/could not be sent or was cut \(/);
});

describe('episodes of a model', () => {
  let tiny: TinyModelFolder;
  let model: TrainableModel;
  let backend: LocalBackend;
  beforeAll(async () => {
    tiny = await createTinyModelFolder({ maxPositions: 512 });
    backend = new LocalBackend({ path: tiny.folder });
    model = new TrainableModel({ name: 'agent', project: 'environments', baseModel: tiny.modelDirectory });
    await model.register(backend);
  });
  afterAll(async () => {
    await backend.close();
    await tiny.remove();
  });

  test('are trajectories with summed rewards, and train', async () => {
    const play = async (seed: number, parseAction: (reply: string) => { add: number } | null) => {
      await using session = await connectEnvironment(url);
      const showObservation = ({ count, target }: Readonly<Record<string, unknown>>): string => `${count} of ${target}`;
      return await environmentRollout(model, session, {
        parseAction,
        showObservation,
        seed,
        maxTokens: 4,
        creditTurns: true,
      });
    };
    const steady = await play(0, () => ({ add: 1 }));
    expect(
      steady
        .messages()
        .filter(({ role }) => role === 'user')
        .map(({ content }) => content),
    ).toEqual(['0 of 3', '1 of 3', '2 of 3']);
    expect({ reward: steady.reward, turnRewards: steady.turnRewards }).toEqual({
      reward: 1.5,
      turnRewards: [0.25, 0.25, 1],
    });
    expect(steady.metrics).toMatchObject({ turns: 3, has_finished: true, invalid_action: false });
    const lost = await play(1, () => null);
    expect({ reward: lost.reward, turnRewards: lost.turnRewards }).toEqual({ reward: -1, turnRewards: [-1] });
    expect(lost.metrics).toMatchObject({ turns: 1, has_finished: false, invalid_action: true });
    const { step, metrics } = await backend.train(model, [new TrajectoryGroup([steady, lost])]);
    expect({ step, reward: metrics['train/reward'] }).toEqual({ step: 1, reward: 0.25 });
  });
});
