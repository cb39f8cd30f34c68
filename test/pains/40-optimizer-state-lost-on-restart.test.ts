/** Pain 40: the optimizer's state was lost on restart. Here every checkpoint has it: a run that is closed between two steps makes the same bytes. */
import { expect, test } from 'vitest';
import { sampleGroup, setUpYesOrNo } from '../yes-or-no.ts';

const bed = setUpYesOrNo();
const options = { learningRate: 1e-2, gradientSteps: 2 };

/** Names and hashes of the files of the newest checkpoint, after steps that are made by so many backends one after another. */
async function runSteps(path: string, perBackend: readonly (readonly number[])[]): Promise<readonly unknown[]> {
  let files: readonly unknown[] = [];
  for (const seeds of perBackend) {
    await using backend = bed.openBackend(path);
    const model = bed.createModel('agent');
    await model.register(backend);
    for (const seed of seeds) await backend.train(model, [await sampleGroup(model, seed)], options);
    files = (await model.getCheckpoint()).files;
  }
  return files;
}

test('a run that is closed and opened between two steps ends with the same adapter and optimizer', async () => {
  const whole = await runSteps('whole', [[10, 20, 30]]);
  expect(await runSteps('restarted', [[10], [20], [30]])).toEqual(whole);
  expect(whole).toContainEqual(expect.objectContaining({ name: 'adapter_model.safetensors' }));
  expect(whole).toContainEqual(expect.objectContaining({ name: expect.stringMatching(/optimizer/) }));
}, 180_000);
