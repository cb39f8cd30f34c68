/**
 * `npm run test:export`: exported policies in the programs they are for. Installs node-llama-cpp, whose binaries are llama.cpp, into a
 * cache outside the repository, then runs test/export. SmolLM2 is tested if `npm run fetch-models` has fetched it, transformers and PEFT
 * if ART_PYTHON names a Python that has them; what is left out is said. Arguments go to vitest.
 */
import { spawn } from 'node:child_process';
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { cachedModel, modelCacheFolder } from './model-cache.mjs';

const root = fileURLToPath(new URL('..', import.meta.url));
const version = '3.21.1';
/** The package of binaries for this system; those with CUDA or Vulkan are left out. */
const binaries = {
  'linux-x64': 'linux-x64',
  'linux-arm64': 'linux-arm64',
  'darwin-arm64': 'mac-arm64-metal',
  'darwin-x64': 'mac-x64',
  'win32-x64': 'win-x64',
  'win32-arm64': 'win-arm64',
}[`${process.platform}-${process.arch}`];

/** Resolves to the exit code. */
function run(command, args, options = {}) {
  return new Promise((resolve, reject) => {
    const child = spawn(command, args, { stdio: 'inherit', cwd: root, ...options });
    child.on('error', reject);
    child.on('exit', (code) => resolve(code ?? 1));
  });
}

function npm(args, options) {
  const script = process.env.npm_execpath;
  if (script?.endsWith('.js')) return run(process.execPath, [script, ...args], options);
  const isWindows = process.platform === 'win32';
  return run(isWindows ? 'npm.cmd' : 'npm', args, { shell: isWindows, ...options });
}

/** Folder whose node_modules hold node-llama-cpp. */
async function installLlama() {
  if (binaries === undefined) {
    throw new Error(`node-llama-cpp has no binaries for ${process.platform}-${process.arch}`);
  }
  const folder = join(dirname(modelCacheFolder()), `node-llama-cpp-${version}`);
  const isThere = (name) => {
    const manifest = join(folder, 'node_modules', name, 'package.json');
    return existsSync(manifest) && JSON.parse(readFileSync(manifest, 'utf8')).version === version;
  };
  const names = ['node-llama-cpp', `@node-llama-cpp/${binaries}`];
  if (names.every(isThere)) return folder;
  mkdirSync(folder, { recursive: true });
  writeFileSync(join(folder, 'package.json'), '{ "private": true }\n');
  const flags = ['--ignore-scripts', '--omit=optional', '--no-audit', '--no-fund', '--save-exact'];
  const code = await npm(['install', ...flags, ...names.map((name) => `${name}@${version}`)], { cwd: folder });
  if (code !== 0 || !names.every(isThere))
    throw new Error(`node-llama-cpp ${version} could not be installed in ${folder}`);
  return folder;
}

const environment = { ...process.env, ART_NODE_LLAMA_CPP: process.env.ART_NODE_LLAMA_CPP ?? (await installLlama()) };
const smolLm2 = process.env.ART_SMOLLM2 ?? cachedModel('smollm2');
if (smolLm2 === null) console.log('SmolLM2-135M is not there and is left out: npm run fetch-models');
else environment.ART_SMOLLM2 = smolLm2;
if (!process.env.ART_PYTHON)
  console.log('transformers and PEFT are left out: ART_PYTHON names no Python that has them');
const built = await run(process.execPath, [join(root, 'scripts', 'run.mjs'), 'build']);
if (built !== 0) process.exit(built);
const vitest = join(root, 'node_modules', 'vitest', 'vitest.mjs');
process.exit(
  await run(process.execPath, [vitest, 'run', 'test/export', ...process.argv.slice(2)], { env: environment }),
);
