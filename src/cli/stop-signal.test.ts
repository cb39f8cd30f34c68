/** `art serve` and signals, as a process: it stops while the model loads, and after; a second signal ends it at once. */
import { type ChildProcess, spawn } from 'node:child_process';
import { join, resolve } from 'node:path';
import { afterAll, expect, onTestFinished, test } from 'vitest';
import { childPids, expectGone } from '../../test/child-processes.ts';
import { createTinyModelFolder } from '../../test/tiny-model-folder.ts';

const model = await createTinyModelFolder();
afterAll(model.remove);

function serve(name: string): { child: ChildProcess; said: () => string; exited: Promise<number | null> } {
  const args = ['serve', '--model', model.modelDirectory, '--path', join(model.folder, name), '--port', '0'];
  const child = spawn(process.execPath, [resolve('dist/src/cli/main.js'), ...args], {
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  let text = '';
  for (const stream of [child.stdout, child.stderr]) {
    stream?.setEncoding('utf8').on('data', (part: string) => {
      text += part;
    });
  }
  onTestFinished(() => void child.kill('SIGKILL'));
  return { child, said: () => text, exited: new Promise((done) => child.once('exit', done)) };
}

test('SIGTERM while the model is still loading ends it, and its engine', { timeout: 60_000 }, async () => {
  const { child, said, exited } = serve('loading');
  await expect.poll(() => childPids(child.pid!).length, { timeout: 30_000, interval: 5 }).toBe(1);
  const [enginePid] = childPids(child.pid!);
  child.kill('SIGTERM');
  expect(await exited, said()).toBe(0);
  expect(said()).toContain('Stopped before the model was loaded.');
  await expectGone(enginePid!, 2000);
});

test('Ctrl-C ends a server that runs', { timeout: 60_000 }, async () => {
  const { child, said, exited } = serve('running');
  await expect.poll(said, { timeout: 40_000 }).toContain('Ctrl-C stops it');
  child.kill('SIGINT');
  expect(await exited, said()).toBe(0);
});
