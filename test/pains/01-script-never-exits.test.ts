/** Pain 1: a script never ended after its training. Here it ends by itself, with nothing of ours left running. */
import { spawn } from 'node:child_process';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { expect, test } from 'vitest';
import { childPids } from '../child-processes.ts';
import { root } from '../source-imports.ts';
import { createTinyModelFolder } from '../tiny-model-folder.ts';

/** No exit call, no unref of its own: a plain training script. */
const program = `
  import { createGroupRollout, LocalBackend, PipelineTrainer, TrainableModel, Trajectory } from ENTRY;
  const backend = new LocalBackend({ path: PATH });
  const model = new TrainableModel({ name: 'a', project: 'p', baseModel: MODEL });
  await model.register(backend);
  console.log('registered');
  const rollout = createGroupRollout(async (content, { seed, signal, member }) => {
    const messages = [{ role: 'user', content }];
    const body = { model: model.getInferenceName(), messages, max_tokens: 3, seed };
    const { choices } = await model.openaiClient().chat.completions.create(body, { signal });
    return new Trajectory({ messagesAndChoices: [...messages, choices[0]], reward: member });
  }, { groupSize: 2 });
  const trainer = new PipelineTrainer({ model, scenarios: ['yes', 'no'], rollout, untilStep: 2, minBatchSize: 1 });
  console.log('trained', (await trainer.run()).step);
  await backend.close();
  console.log('closed');
`;

test('a training script exits by itself', async () => {
  const model = await createTinyModelFolder();
  try {
    const values = {
      ENTRY: pathToFileURL(join(root, 'dist/src/index.js')).href,
      PATH: join(model.folder, 'runs'),
      MODEL: model.modelDirectory,
    };
    const code = program.replaceAll(/\b(ENTRY|PATH|MODEL)\b/g, (name) => JSON.stringify(values[name as 'PATH']));
    const child = spawn(process.execPath, ['--input-type=module', '--eval', code]);
    let output = '';
    for (const stream of [child.stdout, child.stderr]) stream.on('data', (chunk) => (output += String(chunk)));
    let children: number[] = [];
    child.stdout.once('data', () => (children = childPids(child.pid ?? -1)));
    const exit = await new Promise<unknown>((resolve) => child.once('close', (status) => resolve(status)));
    expect({ exit, output }).toEqual({
      exit: 0,
      output: expect.stringMatching(/^registered\n(?:step .*\n)*trained 2\nclosed\n$/),
    });
    expect(children.length).toBeGreaterThan(0);
    for (const pid of children) expect(() => process.kill(pid, 0)).toThrow('ESRCH');
  } finally {
    await model.remove();
  }
});
