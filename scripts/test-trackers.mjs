/**
 * `npm run test:trackers`: trackers against the programs themselves. Installs MLflow, TensorBoard and OpenTelemetry's protocol for Python, pinned, into a cache
 * outside the repository, then runs test/trackers. Needs a Python 3 with venv and pip. Arguments go to vitest.
 */
import { spawn } from 'node:child_process';
import { createHash } from 'node:crypto';
import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { modelCacheFolder } from './model-cache.mjs';

const root = fileURLToPath(new URL('..', import.meta.url));
const requirements = join(root, 'test', 'trackers', 'requirements.txt');

/** Resolves to the exit code; 1 where the command is not there. */
function run(command, args, options = {}) {
  return new Promise((resolve) => {
    const child = spawn(command, args, { stdio: 'inherit', cwd: root, ...options });
    child.on('error', () => resolve(1));
    child.on('exit', (code) => resolve(code ?? 1));
  });
}

const hash = createHash('sha256').update(readFileSync(requirements)).digest('hex').slice(0, 12);
const folder = join(dirname(modelCacheFolder()), `trackers-${hash}`);
const stamp = join(folder, '.complete'); // written last
const python = join(folder, process.platform === 'win32' ? 'Scripts/python.exe' : 'bin/python');
if (!existsSync(stamp)) {
  const pip = ['-m', 'pip', 'install', '--quiet', '--disable-pip-version-check', '-r', requirements];
  if ((await run('python3', ['-m', 'venv', folder])) !== 0 || (await run(python, pip)) !== 0) {
    console.error(
      `the packages of ${requirements} could not be installed in ${folder}; needs Python 3 with venv and pip`,
    );
    process.exit(1);
  }
  writeFileSync(stamp, '');
}
const vitest = join(root, 'node_modules', 'vitest', 'vitest.mjs');
const env = { ...process.env, ART_TRACKERS_PYTHON: python };
process.exit(await run(process.execPath, [vitest, 'run', 'test/trackers', ...process.argv.slice(2)], { env }));
