/** The Python that `npm run test:trackers` sets up, and what tests run in it. */
import { type ChildProcess, execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { createServer } from 'node:net';
import { promisify } from 'node:util';

/** Undefined outside of `npm run test:trackers`. */
export const python: string | undefined = process.env.ART_TRACKERS_PYTHON;

/** Runs a program and reads what it prints as JSON. */
export async function runPython(program: string, ...args: readonly string[]): Promise<unknown> {
  const { stdout } = await promisify(execFile)(python!, ['-c', program, ...args], { maxBuffer: 1e8 });
  return JSON.parse(stdout);
}

export interface MlflowServer extends AsyncDisposable {
  readonly url: string;
}

/** A real MLflow server with an empty store in `folder`. */
export async function startMlflow(folder: string): Promise<MlflowServer> {
  const port = await freePort();
  const url = `http://127.0.0.1:${port}`;
  const store = [
    '--backend-store-uri',
    `sqlite:///${folder}/mlflow.db`,
    '--artifacts-destination',
    `${folder}/artifacts`,
  ];
  const args = ['-m', 'mlflow', 'server', '--host', '127.0.0.1', '--port', String(port), '--workers', '1', ...store];
  const env = { ...process.env, MLFLOW_DISABLE_TELEMETRY: 'true' };
  const child = spawn(python!, args, { stdio: 'ignore', cwd: folder, env, detached: true });
  const server = { url, [Symbol.asyncDispose]: () => endGroup(child) };
  for (let attempt = 0; attempt < 240; attempt++) {
    if (child.exitCode !== null) throw new Error(`mlflow server ended with code ${child.exitCode}`);
    const isUp = await fetch(`${url}/health`)
      .then((response) => response.ok)
      .catch(() => false);
    if (isUp) return server;
    await new Promise((resolve) => setTimeout(resolve, 500));
  }
  await endGroup(child);
  throw new Error('mlflow server: not up within 120 s');
}

/** Ends a child with its workers. */
async function endGroup(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.pid === undefined) return;
  const exited = once(child, 'exit');
  process.kill(-child.pid, 'SIGTERM');
  await exited;
}

async function freePort(): Promise<number> {
  const server = createServer();
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const address = server.address();
  await new Promise((resolve) => server.close(resolve));
  if (address === null || typeof address === 'string') throw new Error('no free port');
  return address.port;
}
