/**
 * `node scripts/run.mjs demo|test|bench|build [args…]`: sets the clone up where needed, then runs the target.
 * Plain JavaScript without dependencies: it runs before anything is installed or built.
 */
import { spawn } from 'node:child_process';
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, statSync, utimesSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

const root = fileURLToPath(new URL('..', import.meta.url));
const isWindows = process.platform === 'win32';
const oldestNode = [20, 19];
/** One Ctrl-C arrives twice, from the terminal and from npm, which passes signals on; a person's second one comes later. */
const sameSignalMs = 500;

/** The child's event `disconnect` tells it that this process was killed. */
const withChannel = { stdio: ['inherit', 'inherit', 'inherit', 'ipc'] };
const signalNumbers = { SIGHUP: 1, SIGINT: 2, SIGKILL: 9, SIGTERM: 15 };

let child;
let lastSignalAt = Number.NEGATIVE_INFINITY;

for (const signal of isWindows ? ['SIGINT', 'SIGTERM'] : ['SIGINT', 'SIGTERM', 'SIGHUP']) {
  process.on(signal, () => {
    const now = performance.now();
    if (now - lastSignalAt < sameSignalMs) return;
    lastSignalAt = now;
    if (child === undefined) process.exit(128 + signalNumbers[signal]);
    if (!isWindows) child.kill(signal); // on Windows the console has told it already, and kill would not let it stop cleanly
  });
}

/**
 * Runs a command and resolves to its exit code (128 + n for signal n). The child has a process group of its own, so that
 * the terminal's Ctrl-C reaches it once, through here.
 */
function run(command, args, options = {}) {
  return new Promise((resolve, reject) => {
    child = spawn(command, args, { cwd: root, stdio: 'inherit', detached: !isWindows, ...options });
    child.on('error', reject);
    child.on('exit', (code, signal) => {
      child = undefined;
      resolve(code ?? 128 + (signalNumbers[signal] ?? 0));
    });
  });
}

/** The JavaScript file behind a command of a dependency, so that no shell is needed on any system. */
function bin(name, command) {
  const directory = join(root, 'node_modules', name);
  const manifest = JSON.parse(readFileSync(join(directory, 'package.json'), 'utf8'));
  return join(directory, typeof manifest.bin === 'string' ? manifest.bin : manifest.bin[command]);
}

/** Whether every package that package-lock.json names is installed in that version (optional ones may be missing). */
function isInstalled() {
  const marker = join(root, 'node_modules', '.package-lock.json');
  if (!existsSync(marker)) return false;
  const wanted = JSON.parse(readFileSync(join(root, 'package-lock.json'), 'utf8')).packages;
  const present = JSON.parse(readFileSync(marker, 'utf8')).packages;
  return Object.entries(wanted).every(([path, entry]) => {
    if (path === '') return true;
    const installed = present[path];
    return installed === undefined ? entry.optional === true : installed.version === entry.version;
  });
}

async function stage(name, work) {
  const startedAt = performance.now();
  console.log(`\n── ${name}`);
  const code = await work();
  const seconds = ((performance.now() - startedAt) / 1000).toFixed(1);
  console.log(`── ${name}: ${code === 0 ? 'ok' : `failed with exit code ${code}`} (${seconds} s)`);
  if (code !== 0) process.exit(code);
}

/** Dependencies, only if they are missing. Install scripts stay off (.npmrc); development ones are needed even in production mode. */
async function install() {
  if (isInstalled()) return;
  const npm = process.env.npm_execpath;
  const args = ['ci', '--include=dev', '--include=optional'];
  await stage('install', () =>
    npm?.endsWith('.js')
      ? run(process.execPath, [npm, ...args])
      : run(isWindows ? 'npm.cmd' : 'npm', args, { shell: isWindows }),
  );
}

/** Touched after every build that succeeded, with the time at which that build began. */
const buildStamp = join(root, 'dist', '.built');
const buildInputs = [
  'src',
  'examples',
  'bench',
  'tsconfig.json',
  'tsconfig.build.json',
  'package.json',
  'package-lock.json',
];

/** Newest change under a path, milliseconds; folders count too, since they change when a file in them goes. */
function newestChange(path) {
  if (!existsSync(path)) return 0;
  const { mtimeMs } = statSync(path);
  if (!statSync(path).isDirectory()) return mtimeMs;
  return Math.max(mtimeMs, ...readdirSync(path).map((name) => newestChange(join(path, name))));
}

/** Compiles into dist/, which mirrors the repository, unless nothing has changed since the last time. */
async function build() {
  const builtAt = existsSync(buildStamp) ? statSync(buildStamp).mtimeMs : 0;
  const changedAt = Math.max(...buildInputs.map((name) => newestChange(join(root, name))));
  if (builtAt > changedAt) return 0;
  // The incremental state does not notice every changed compiler option.
  const configChangedAt = Math.max(...buildInputs.slice(3).map((name) => newestChange(join(root, name))));
  if (configChangedAt >= builtAt) rmSync(join(root, 'dist', '.tsbuildinfo'), { force: true });
  const startedAt = new Date();
  const code = await run(process.execPath, [bin('typescript', 'tsc'), '--project', 'tsconfig.build.json']);
  if (code !== 0) return code;
  mkdirSync(join(root, 'dist'), { recursive: true });
  writeFileSync(buildStamp, '');
  utimesSync(buildStamp, startedAt, startedAt);
  return 0;
}

/** Says nothing when all goes well: the target's own output comes first. */
async function setUpQuietly() {
  await install();
  const code = await build();
  if (code !== 0) process.exit(code);
}

/** What `npm install` of this package gives others: entries, types, files. */
async function lintPackage() {
  const code = await run(process.execPath, [bin('publint', 'publint'), '--strict']);
  if (code !== 0) return code;
  return run(process.execPath, [
    bin('@arethetypeswrong/cli', 'attw'),
    '--pack',
    '.',
    '--profile',
    'esm-only',
    '--format',
    'ascii',
  ]);
}

/** Real models, for the tests that need one: without Python or a network those are skipped, and all others run. */
async function fetchModels() {
  const code = await run(process.execPath, ['scripts/fetch-models.mjs']);
  if (code !== 0) console.log('Tests that need a real model are skipped; `npm run fetch-models` tries again.');
  return 0;
}

const targets = {
  demo: async (args) => {
    await setUpQuietly();
    return run(process.execPath, ['dist/examples/demo.js', ...args], withChannel);
  },
  bench: async (args) => {
    await setUpQuietly();
    return run(process.execPath, ['dist/bench/main.js', ...args], withChannel);
  },
  fuzz: async (args) => {
    await setUpQuietly();
    return run(process.execPath, ['dist/bench/fuzz/main.js', ...args], withChannel);
  },
  chaos: async (args) => {
    await setUpQuietly();
    return run(process.execPath, ['dist/bench/chaos/main.js', ...args], withChannel);
  },
  load: async (args) => {
    await setUpQuietly();
    return run(process.execPath, ['dist/bench/load/main.js', ...args], withChannel);
  },
  build: async () => {
    await install();
    await stage('build', build);
    return 0;
  },
  test: async (args) => {
    await install();
    await stage('build', build);
    await stage('types', () => run(process.execPath, [bin('typescript', 'tsc'), '--noEmit']));
    await stage('lint', () =>
      run(process.execPath, [bin('@biomejs/biome', 'biome'), 'check', '--error-on-warnings', '.']),
    );
    await stage('package', () => lintPackage());
    await stage('models', fetchModels);
    await stage('sizes', () => run(process.execPath, ['scripts/sizes.mjs']));
    await stage('tests', () => run(process.execPath, [bin('vitest', 'vitest'), 'run', ...args]));
    return 0;
  },
};

const [major, minor] = process.versions.node.split('.').map(Number);
if (major < oldestNode[0] || (major === oldestNode[0] && minor < oldestNode[1])) {
  console.error(
    `Node.js must be ${oldestNode.join('.')} or newer, got ${process.versions.node}. Get it from https://nodejs.org`,
  );
  process.exit(1);
}
const [name, ...args] = process.argv.slice(2);
if (!Object.hasOwn(targets, name ?? '')) {
  console.error(`usage: node scripts/run.mjs ${Object.keys(targets).join('|')} [arguments…]; got ${name ?? 'nothing'}`);
  process.exit(2);
}
process.exit(await targets[name](args));
