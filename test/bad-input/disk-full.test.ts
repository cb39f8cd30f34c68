/**
 * A disk that is full while a step is written. Real ones: a small file system in a namespace of its own, where the system lets us make
 * one, and a limit on the size of files, which every process has. The server is the command of the build.
 */
import { type ChildProcess, execFileSync, spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { mkdir, mkdtemp, readdir, readFile, rm, statfs, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { writeStarterModel } from '../../src/formats/starter-model.ts';
import { type ChatChoice, RemoteBackend, TrainableModel, Trajectory, TrajectoryGroup } from '../../src/index.ts';
import { childPids } from '../child-processes.ts';
import { root as repository } from '../source-imports.ts';

const command = join(repository, 'dist/src/cli/main.js');
/** More than the trajectories of a step, less than its adapter. */
const roomBytes = 65_536;

let folder = '';
let server: ChildProcess | undefined;
beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'art-full-'));
  const sizes = { width: 64, layers: 2, heads: 2, kvHeads: 1, headSize: 32, ffWidth: 128, maxPositions: 128 };
  await writeStarterModel({ seed: 1, directory: join(folder, 'base'), corpus: ['yes no'], vocabSize: 280, ...sizes });
  await mkdir(join(folder, 'runs'));
});
afterEach(async () => {
  if (server?.exitCode === null) {
    server.kill('SIGTERM');
    await once(server, 'exit');
  }
  await rm(folder, { recursive: true });
});

interface Disk {
  /** The runs as this process sees them. */
  readonly runs: string;
  readonly fill: () => Promise<void>;
  readonly release: () => Promise<void>;
}

interface Kind {
  readonly start: () => { readonly child: ChildProcess; readonly disk: Disk };
  /** Empty if it can be had here. */
  readonly isMissing: () => string;
}

const serveArguments = (): string[] => [
  command,
  ...['serve', '--model', join(folder, 'base'), '--name', 'agent', '--project', 'full', '--path', join(folder, 'runs')],
  ...['--port', '0', '--rank', '16', '--cache-tokens', '1024', '--microbatch-tokens', '256', '--train-threads', '1'],
];
const pipes = ['ignore', 'pipe', 'inherit'] as const;

const kinds: Readonly<Record<string, Kind>> = {
  'a file system without room': {
    isMissing: () => {
      const mount = 'mount -t tmpfs -o size=1m tmpfs /tmp';
      return spawnSync('unshare', ['-rm', 'sh', '-c', mount]).status === 0 ? '' : 'needs a mount namespace';
    },
    start: () => {
      const runs = join(folder, 'runs');
      const script = `mount -t tmpfs -o size=16m tmpfs "$0" && exec "$@"`;
      const child = spawn('unshare', ['-rm', 'sh', '-c', script, runs, process.execPath, ...serveArguments()], {
        stdio: [...pipes],
      });
      const seen = `/proc/${child.pid}/root${runs}`;
      const filler = join(seen, 'filler');
      const fill = async (): Promise<void> => {
        const { bavail, bsize } = await statfs(seen);
        await writeFile(filler, Buffer.alloc(bavail * bsize - roomBytes));
      };
      return { child, disk: { runs: seen, fill, release: () => rm(filler) } };
    },
  },
  'a limit on the size of files': {
    isMissing: () => (spawnSync('prlimit', ['--version']).status === 0 ? '' : 'needs prlimit'),
    start: () => {
      const child = spawn(process.execPath, serveArguments(), { stdio: [...pipes] });
      const limit = async (bytes: string): Promise<void> => {
        for (const pid of [child.pid as number, ...childPids(child.pid as number)]) {
          execFileSync('prlimit', ['--pid', String(pid), `--fsize=${bytes}:`]);
        }
      };
      const [fill, release] = [() => limit(String(roomBytes)), () => limit('unlimited')];
      return { child, disk: { runs: join(folder, 'runs'), fill, release } };
    },
  },
};

async function urlOf(child: ChildProcess): Promise<string> {
  let said = '';
  for await (const text of child.stdout as NonNullable<ChildProcess['stdout']>) {
    said += String(text);
    const url = /http:\S+:\d+/.exec(said)?.[0];
    if (url !== undefined) return url;
  }
  throw new Error(`the server must print its address, got ${said}`);
}

async function createGroup(model: TrainableModel): Promise<TrajectoryGroup> {
  const question = { role: 'user', content: 'yes' } as const;
  const create = async (seed: number): Promise<Trajectory> => {
    const reply = await model.openaiClient().chat.completions.create({
      model: model.getInferenceName(),
      messages: [question],
      max_tokens: 4,
      seed,
    });
    return new Trajectory({ messagesAndChoices: [question, reply.choices[0] as ChatChoice], reward: seed });
  };
  return new TrajectoryGroup(await Promise.all([create(0), create(1)]));
}

describe.each(Object.entries(kinds))('%s', (_name, { start, isMissing }) => {
  const missing = isMissing();
  test.skipIf(missing !== '')(`undoes the step, and the next one works ${missing}`, async () => {
    const { child, disk } = start();
    server = child;
    const backend = new RemoteBackend({ baseURL: await urlOf(child) });
    const model = new TrainableModel({
      name: 'agent',
      project: 'full',
      baseModel: join(folder, 'base'),
      lora: { rank: 16 },
    });
    await model.register(backend);
    const first = await backend.train(model, [await createGroup(model)]);
    const groups = [await createGroup(model)];
    await disk.fill();
    const error = await backend.train(model, groups).then(
      () => null,
      (reason: unknown) => reason as Error,
    );
    expect(error).toMatchObject({ details: { code: 'disk_full' } });
    expect(error?.message).toContain(
      `checkpoint ${join(folder, 'runs/full/models/agent/checkpoints/0002')}: could not`,
    );
    expect(error?.message).toMatch(
      /adapter_model\.safetensors: must be writable, got E(NOSPC|FBIG).*; \d+ bytes are free/,
    );
    const run = join(disk.runs, 'full/models/agent');
    expect((await readdir(join(run, 'checkpoints'))).sort()).toEqual(['0000', '0001']);
    expect(await model.getStep()).toBe(1);
    await createGroup(model);
    expect((await backend.history(model)).length).toBe(1);
    await disk.release();
    const second = await backend.train(model, groups);
    expect(second.step).toBe(2);
    expect(second.adapterSha256).not.toBe(first.adapterSha256);
    const rows = (await readFile(join(run, 'history.jsonl'), 'utf8')).trim().split('\n');
    expect(rows.map((row) => JSON.parse(row).step)).toEqual([1, 2]);
  });
});

test('a line that does not fit is taken back whole', async () => {
  const path = join(folder, 'history.jsonl');
  await writeFile(path, 'first\n');
  const module = join(repository, 'dist/src/formats/atomic-files.js');
  const script = `const { appendFileAtomic } = await import(${JSON.stringify(module)});
    const say = (e) => console.log(e.code, e.details.code, e.message);
    await appendFileAtomic(${JSON.stringify(path)}, 'x'.repeat(5000)).catch(say);
    await appendFileAtomic(${JSON.stringify(path)}, 'second\\n');`;
  // 2 blocks of 512 or 1,024 bytes, as the shell counts them: less than the line in any case.
  const shell = 'ulimit -f 2; exec "$0" --input-type=module -e "$1"';
  const said = execFileSync('sh', ['-c', shell, process.execPath, script], { encoding: 'utf8' });
  expect(said).toContain(`storage_error disk_full ${path}: must be writable, got EFBIG`);
  expect(await readFile(path, 'utf8')).toBe('first\nsecond\n');
});
