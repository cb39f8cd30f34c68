/** `scripts/run.mjs` in a clone made up for the purpose: installed and built, with a demo that says what reaches it. */
import { type ChildProcess, spawn } from 'node:child_process';
import { cp, mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, expect, test } from 'vitest';

let clone = '';
const lock = JSON.stringify({ packages: { '': {}, 'node_modules/a': { version: '1.0.0' } } });

async function write(path: string, text: string): Promise<void> {
  await mkdir(dirname(join(clone, path)), { recursive: true });
  await writeFile(join(clone, path), text);
}

beforeAll(async () => {
  clone = await mkdtemp(join(tmpdir(), 'art-run-'));
  await cp(fileURLToPath(new URL('../scripts', import.meta.url)), join(clone, 'scripts'), { recursive: true });
  await write('package.json', '{"type":"module"}');
  await write('package-lock.json', lock);
  await write('node_modules/.package-lock.json', lock);
  await write('node_modules/typescript/package.json', '{"bin":{"tsc":"tsc.js"}}');
  await write(
    'node_modules/typescript/tsc.js',
    'console.log("compiled"); process.exitCode = Number(process.env.TSC_EXIT ?? 0);',
  );
  await write(
    'dist/examples/demo.js',
    `console.log('arguments', ...process.argv.slice(2));
     if (process.argv[2] === 'exit') process.exit(7);
     const timer = setInterval(() => {}, 1000);
     process.on('SIGINT', () => { console.log('told'); setTimeout(() => process.exit(3), 1000); });
     process.once('disconnect', () => process.exit(9));
     console.log('ready', process.pid);`,
  );
});
afterAll(() => rm(clone, { recursive: true, force: true }));

interface Run {
  readonly child: ChildProcess;
  readonly output: () => string;
  readonly exitCode: Promise<number | null>;
}

function start(args: readonly string[], env: Readonly<Record<string, string>> = {}): Run {
  const child = spawn(process.execPath, ['scripts/run.mjs', ...args], { cwd: clone, env: { ...process.env, ...env } });
  const chunks: string[] = [];
  for (const stream of [child.stdout, child.stderr]) stream.on('data', (chunk) => chunks.push(String(chunk)));
  const exitCode = new Promise<number | null>((resolve) => {
    child.on('close', resolve);
  });
  return { child, output: () => chunks.join(''), exitCode };
}

const untilReady = (run: Run): Promise<void> =>
  expect.poll(run.output, { timeout: 10_000 }).toContain('ready') as Promise<void>;

test('builds once, then runs the demo with its arguments and exit code', async () => {
  const failed = start(['demo', 'exit'], { TSC_EXIT: '2' });
  expect(await failed.exitCode).toBe(2);
  expect(failed.output()).toBe('compiled\n');
  const first = start(['demo', 'exit', '--json']);
  expect(await first.exitCode).toBe(7);
  expect(first.output()).toBe('compiled\narguments exit --json\n');
  const second = start(['demo', 'exit']);
  expect(await second.exitCode).toBe(7);
  expect(second.output()).toBe('arguments exit\n');
});

test('a Ctrl-C that arrives twice, from terminal and npm, reaches the demo once and lets it stop', async () => {
  const run = start(['demo']);
  await untilReady(run);
  run.child.kill('SIGINT');
  setTimeout(() => run.child.kill('SIGINT'), 50);
  expect(await run.exitCode).toBe(3);
  expect(run.output().match(/told/g)).toHaveLength(1);
});

test('the demo learns when its starter is killed', async () => {
  const run = start(['demo']);
  await untilReady(run);
  const pid = Number(run.output().match(/ready (\d+)/)?.[1]);
  run.child.kill('SIGKILL');
  const isAlive = (): boolean => {
    try {
      return process.kill(pid, 0);
    } catch {
      return false;
    }
  };
  await expect.poll(isAlive, { timeout: 10_000 }).toBe(false);
});

test('an unknown target is refused with what there is', async () => {
  const run = start(['deploy']);
  expect(await run.exitCode).toBe(2);
  expect(run.output()).toMatch(/run\.mjs demo\|bench\|.*\|test \[arguments…\]; got deploy/);
});
