/** An engine that dies is started again: who waits, who fails, and when it is given up. */
import { expect, test } from 'vitest';
import { type CountingEngine, createCountingEngine } from '../../test/server/counting-engine.ts';
import { AbortedError, ConfigError, EngineError } from '../core/errors.ts';
import { type SupervisedEngine, type SupervisionOptions, superviseEngine } from './supervised-engine.ts';

interface Fixture {
  readonly engine: SupervisedEngine;
  readonly lives: readonly CountingEngine[];
  readonly warnings: readonly string[];
}

async function supervise(options: Partial<SupervisionOptions> = {}): Promise<Fixture> {
  const lives: CountingEngine[] = [];
  const warnings: string[] = [];
  const engine = await superviseEngine({
    name: 'agent',
    start: async () => {
      const life = createCountingEngine(lives.length);
      lives.push(life);
      return life;
    },
    recover: (fresh) => fresh.doPublish({ step: 4 }),
    onWarning: (message) => warnings.push(message),
    ...options,
  });
  return { engine, lives, warnings };
}

function gate(): { readonly open: () => void; readonly opened: Promise<void> } {
  let open = (): void => undefined;
  const opened = new Promise<void>((resolve) => {
    open = resolve;
  });
  return { open: () => open(), opened };
}

const running = (engine: SupervisedEngine) => expect.poll(() => engine.state(), { timeout: 5000 }).toBe('running');

test('a dead engine is started again, recovered before anyone may use it, and requests wait for it', async () => {
  const blocked = gate();
  let recoveries = 0;
  const { engine, lives, warnings } = await supervise({
    recover: async (fresh) => {
      if (recoveries++ > 0) await blocked.opened;
      await fresh.doPublish({ step: 4 });
    },
  });
  lives[0]!.die();
  await expect.poll(() => engine.state()).toBe('restarting');
  const info = engine.doInfo();
  blocked.open();
  expect((await info).policySteps).toEqual([4]);
  expect(engine.state()).toBe('running');
  expect(lives).toHaveLength(2);
  expect(lives[0]!.isClosed()).toBe(true);
  expect(warnings).toEqual([
    'engine of agent: died (counting engine: died); it is started again',
    expect.stringMatching(/^engine of agent: runs again after \d+\.\d s$/),
  ]);
});

test('a request waits only so long, and says what for; one whose caller gives up does not', async () => {
  const blocked = gate();
  let recoveries = 0;
  const { engine, lives } = await supervise({
    requestWaitMs: 50,
    recover: async () => {
      if (recoveries++ > 0) await blocked.opened;
    },
  });
  lives[0]!.die();
  await expect.poll(() => engine.state()).toBe('restarting');
  await expect(engine.doInfo()).rejects.toMatchObject({
    message: expect.stringContaining('engine of agent: must run again within 50 ms of its death'),
    details: { isRetryable: true },
  });
  await expect(engine.session({ limitMs: 10_000, signal: AbortSignal.timeout(20) })).rejects.toBeInstanceOf(
    AbortedError,
  );
  blocked.open();
  await running(engine);
});

test('a session is one life: its calls fail for good once that is over', async () => {
  const { engine, lives } = await supervise();
  const session = await engine.session();
  lives[0]!.die();
  await running(engine);
  expect(engine.isCurrent(session)).toBe(false);
  await expect(session.doPublish({ step: 5 })).rejects.toThrow('counting engine: died');
  await engine.doPublish({ step: 5 });
  expect(lives[1]!.newestStep()).toBe(5);
});

test('an engine that dies again and again is given up, with the last cause', async () => {
  const { engine, lives, warnings } = await supervise({ maxQuickDeaths: 2 });
  lives[0]!.die();
  await running(engine);
  lives[1]!.die();
  await expect.poll(() => engine.state()).toBe('failed');
  await expect(engine.doInfo()).rejects.toThrow(
    'engine of agent: died 2 times in a row soon after its start, the last time because: counting engine: died; mend the cause',
  );
  await expect(engine.doInfo()).rejects.toMatchObject({ details: { isRetryable: false } });
  expect(warnings.at(-1)).toContain('died 2 times in a row');
  expect(lives).toHaveLength(2);
});

test('deaths after a long life do not count together', async () => {
  const { engine, lives } = await supervise({ maxQuickDeaths: 2, quickDeathMs: 0 });
  for (let death = 0; death < 4; death++) {
    lives.at(-1)!.die();
    await expect.poll(() => lives.length).toBe(death + 2);
    await running(engine);
  }
});

test('the first start fails at once unless the engine died; later every failure is tried again', async () => {
  const refuse = async (): Promise<never> => {
    throw new ConfigError('model: must fit into memory');
  };
  await expect(supervise({ start: refuse })).rejects.toThrow('model: must fit into memory');
  let starts = 0;
  const { engine, lives } = await supervise({
    start: async () => {
      starts += 1;
      if (starts === 1) throw new EngineError('killed while it loaded', { details: { isRetryable: true } });
      if (starts === 3) throw new ConfigError('memory: is not free yet');
      const life = createCountingEngine();
      made.push(life);
      return life;
    },
  });
  expect(lives).toHaveLength(0);
  made[0]!.die();
  await running(engine);
  expect(starts).toBe(4);
});
const made: CountingEngine[] = [];

test('closing while it is started again ends the start', async () => {
  const blocked = gate();
  let count = 0;
  const { engine, lives } = await supervise({
    recover: async () => {
      if (count++ > 0) await blocked.opened;
    },
  });
  lives[0]!.die();
  await expect.poll(() => lives.length).toBe(2);
  const waiting = engine.doInfo();
  const closing = engine.close();
  blocked.open();
  await closing;
  await expect(waiting).rejects.toMatchObject({ details: { isRetryable: true } });
  expect(lives.every((life) => life.isClosed())).toBe(true);
  await expect(engine.doInfo()).rejects.toThrow('engine of agent: was closed');
});
