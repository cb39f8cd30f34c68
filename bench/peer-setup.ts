/**
 * Where the peers live: a cache folder outside the repository, one environment each, filled only when asked for.
 * ART_BENCH_PEERS names another folder. A file `<environment>.ready` says which requirements an environment has been filled with.
 */
import { spawn } from 'node:child_process';
import { createHash } from 'node:crypto';
import { existsSync } from 'node:fs';
import { mkdir, readFile, rm, writeFile } from 'node:fs/promises';
import { homedir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

export type EnvironmentName = 'python' | 'llama' | 'vllm' | 'node';

export const environmentNames: readonly EnvironmentName[] = ['python', 'llama', 'vllm', 'node'];

const beside = fileURLToPath(new URL('peers', import.meta.url));

/** Scripts and requirements; a compiled bench stands in `dist/`, they do not. */
export const scriptFolder: string = existsSync(join(beside, 'report.py'))
  ? beside
  : fileURLToPath(new URL('../../bench/peers', import.meta.url));

export const peerFolder: string =
  process.env.ART_BENCH_PEERS ??
  join(process.env.XDG_CACHE_HOME ?? join(homedir(), '.cache'), 'agent-reinforcement-trainer', 'bench-peers');

/** llama.cpp compiled for this processor, without the tools and image models that take most of the time. */
const llamaCmakeArgs = [
  '-DGGML_NATIVE=ON',
  '-DLLAVA_BUILD=OFF',
  ...['C', 'CXX']
    .filter(() => process.platform === 'linux')
    .map((language) => `'-DCMAKE_${language}_FLAGS=-include ${join(scriptFolder, 'amx_gcc.h')}'`),
].join(' ');

interface Environment {
  /** File in `scriptFolder` with exact versions. */
  readonly requirements: string;
  readonly setUp: (directory: string, requirements: string) => Promise<void>;
}

const environments: Readonly<Record<EnvironmentName, Environment>> = {
  python: { requirements: 'requirements-python.txt', setUp: (directory, file) => createVenv(directory, file) },
  llama: {
    requirements: 'requirements-llama.txt',
    setUp: (directory, file) => createVenv(directory, file, { CMAKE_ARGS: llamaCmakeArgs }),
  },
  vllm: { requirements: 'requirements-vllm.txt', setUp: (directory, file) => createVenv(directory, file) },
  node: { requirements: 'package.json', setUp: installNode },
};

export const pythonOf = (name: EnvironmentName): string =>
  process.platform === 'win32'
    ? join(peerFolder, name, 'Scripts', 'python.exe')
    : join(peerFolder, name, 'bin', 'python');

/** null if the environment is there with the versions wanted, otherwise why not. */
export async function missingReason(name: EnvironmentName): Promise<string | null> {
  const found = await readFile(readyFile(name), 'utf8').catch(() => null);
  if (found === null) return `not installed in ${peerFolder}; npm run bench:peers installs it`;
  if (found.trim() === (await requirementsHash(name))) return null;
  return `installed in other versions than ${environments[name].requirements} says; npm run bench:peers installs these`;
}

/** Fills what is missing; says what could not be filled and goes on with the next. */
export async function setUpPeers(say: (text: string) => void): Promise<void> {
  for (const name of environmentNames) {
    if ((await missingReason(name)) === null) {
      say(`${name}: ready`);
      continue;
    }
    say(`${name}: installing into ${join(peerFolder, name)}`);
    try {
      await rm(readyFile(name), { force: true });
      const directory = join(peerFolder, name);
      await mkdir(directory, { recursive: true });
      await environments[name].setUp(directory, join(scriptFolder, environments[name].requirements));
      await writeFile(readyFile(name), `${await requirementsHash(name)}\n`);
      say(`${name}: ready`);
    } catch (error) {
      say(`${name}: cannot be installed: ${error instanceof Error ? error.message : String(error)}`);
    }
  }
}

const readyFile = (name: EnvironmentName): string => join(peerFolder, `${name}.ready`);

async function requirementsHash(name: EnvironmentName): Promise<string> {
  const bytes = await readFile(join(scriptFolder, environments[name].requirements));
  return createHash('sha256').update(bytes).digest('hex');
}

async function createVenv(directory: string, requirements: string, env: Record<string, string> = {}): Promise<void> {
  await run(process.platform === 'win32' ? 'python' : 'python3', ['-m', 'venv', '--clear', directory]);
  const python =
    process.platform === 'win32' ? join(directory, 'Scripts', 'python.exe') : join(directory, 'bin/python');
  // The files list every package, so nothing is left to resolve.
  // A wheel that pip has kept may have been compiled with other flags.
  const flags = Object.keys(env).length > 0 ? ['--no-cache-dir'] : [];
  await run(python, ['-m', 'pip', 'install', '--no-deps', '--no-input', ...flags, '-r', requirements], env);
}

/** The CPU binary of this platform and no other: those for GPUs are hundreds of megabytes. */
async function installNode(directory: string, requirements: string): Promise<void> {
  const manifest = JSON.parse(await readFile(requirements, 'utf8')) as { dependencies: Record<string, string> };
  const platform = { linux: 'linux', darwin: 'mac', win32: 'win' }[process.platform as string];
  const suffix = process.platform === 'darwin' && process.arch === 'arm64' ? '-metal' : '';
  const binary = `@node-llama-cpp/${platform}-${process.arch}${suffix}@${manifest.dependencies['node-llama-cpp']}`;
  await writeFile(join(directory, 'package.json'), JSON.stringify(manifest));
  const npm = process.env.npm_execpath;
  const args = [
    'install',
    '--prefix',
    directory,
    '--ignore-scripts',
    '--omit=optional',
    '--no-audit',
    '--no-fund',
    binary,
  ];
  await (npm?.endsWith('.js') ? run(process.execPath, [npm, ...args]) : run('npm', args));
}

function run(command: string, args: readonly string[], env: Record<string, string> = {}): Promise<void> {
  return new Promise((resolve, reject) => {
    const child = spawn(command, args, { stdio: ['ignore', 'inherit', 'inherit'], env: { ...process.env, ...env } });
    child.on('error', reject);
    child.on('exit', (code, signal) => {
      if (code === 0) resolve();
      else reject(new Error(`${command} ${args.join(' ')}: must exit with 0, got ${signal ?? code}`));
    });
  });
}
