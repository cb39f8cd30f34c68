/** Keeps a server running that others kill: starts it again, and registers the model again. */
import { type ChildProcess, fork } from 'node:child_process';
import { once } from 'node:events';
import { fileURLToPath } from 'node:url';
import { pause } from '../../src/core/wait.ts';
import type { FromServer } from './server-process.ts';

export const modelName = 'chaos';

const startLimitMs = 60_000;
const answerLimitMs = 2000;

export interface KilledServer {
  /** The URL of a server that has the model, waited for. */
  readonly url: () => Promise<string>;
  /** Kills the server; false if none runs. */
  readonly killServer: () => boolean;
  /** Kills the engine of the server; false if there is none at the moment. */
  readonly killEngine: () => Promise<boolean>;
  readonly close: () => Promise<void>;
}

/** The process is started now, and again each time it ends, until `close`. */
export function startKilledServer(root: string, baseModel: string): KilledServer {
  const file = fileURLToPath(new URL('./server-process.js', import.meta.url));
  let child: ChildProcess;
  let ready: Promise<string>;
  let isClosed = false;
  const start = (): void => {
    child = fork(file, [root], { stdio: ['ignore', 'ignore', 'inherit', 'ipc'] });
    const started = child;
    ready = listen(started).then((url) => register(url, baseModel));
    ready.catch(() => undefined); // It was killed meanwhile; who waits asks again.
    started.once('exit', () => {
      if (!isClosed) start();
    });
  };
  start();
  return {
    url: async () => {
      const startedAt = performance.now();
      while (performance.now() - startedAt < startLimitMs) {
        try {
          return await ready;
        } catch {
          await pause(50);
        }
      }
      throw new Error(`chaos: the server must come up within ${startLimitMs} ms, did not`);
    },
    killServer: () => child.kill('SIGKILL'),
    killEngine: async () => {
      const processId = await askForEngine(child);
      if (processId === null) return false;
      try {
        return process.kill(processId, 'SIGKILL');
      } catch {
        return false; // It died by itself, with its server.
      }
    },
    close: async () => {
      isClosed = true;
      if (child.exitCode !== null || child.signalCode !== null) return;
      const exited = once(child, 'exit');
      child.kill('SIGKILL');
      await exited;
    },
  };
}

/** Rejects when the process ends before. */
async function nextMessage<K extends FromServer['kind']>(
  child: ChildProcess,
  kind: K,
  limitMs: number,
): Promise<Extract<FromServer, { kind: K }>> {
  const over = AbortSignal.timeout(limitMs);
  return await new Promise((resolve, reject) => {
    const end = (error: Error | null, message?: Extract<FromServer, { kind: K }>): void => {
      child.off('message', onMessage);
      child.off('exit', onExit);
      over.removeEventListener('abort', onLimit);
      if (message === undefined) reject(error);
      else resolve(message);
    };
    const onMessage = (message: FromServer): void => {
      if (message.kind === kind) end(null, message as Extract<FromServer, { kind: K }>);
    };
    const onExit = (): void => end(new Error(`chaos: the server ended while '${kind}' was waited for`));
    const onLimit = (): void => end(new Error(`chaos: the server must say '${kind}' within ${limitMs} ms`));
    child.on('message', onMessage);
    child.once('exit', onExit);
    over.addEventListener('abort', onLimit);
  });
}

async function listen(child: ChildProcess): Promise<string> {
  return (await nextMessage(child, 'listening', startLimitMs)).url;
}

async function askForEngine(child: ChildProcess): Promise<number | null> {
  if (!child.connected) return null;
  const answer = nextMessage(child, 'engine', answerLimitMs);
  child.send({}, () => undefined);
  return await answer.then(
    ({ processId }) => processId,
    () => null,
  );
}

/** As an agent's program does it: the same request until the model is there. */
async function register(url: string, baseModel: string): Promise<string> {
  const body = { name: modelName, project: 'chaos', base_model: baseModel, lora: { rank: 4, alpha: 8 }, seed: 1 };
  const startedAt = performance.now();
  let got = '';
  while (performance.now() - startedAt < startLimitMs) {
    const response = await fetch(`${url}/api/models`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify(body),
      signal: AbortSignal.timeout(startLimitMs),
    });
    got = `${response.status} ${await response.text()}`;
    if (response.status === 200) return url;
    await pause(50);
  }
  throw new Error(`chaos: the model must be registered within ${startLimitMs} ms, last answer: ${got}`);
}
