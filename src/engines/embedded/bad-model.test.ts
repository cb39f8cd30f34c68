/** Model folders whose weights do not fit the configuration: the engine says what and where, before it works. */
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { createTinyModelFolder, type TinyModelFolder } from '../../../test/tiny-model-folder.ts';
import { DataError } from '../../core/errors.ts';
import { readJsonFile } from '../../formats/atomic-files.ts';
import { type FloatTensor, readModelTensors, toSafetensors, writeSafetensors } from '../../formats/safetensors.ts';
import { createEmbeddedEngine } from './engine.ts';

let model: TinyModelFolder;
beforeEach(async () => {
  model = await createTinyModelFolder();
});
afterEach(() => model.remove());

async function startWith(change: (tensors: Map<string, FloatTensor>) => void): Promise<unknown> {
  const tensors = new Map(await readModelTensors(model.modelDirectory));
  change(tensors);
  await writeSafetensors(join(model.modelDirectory, 'model.safetensors'), toSafetensors(tensors));
  return start();
}

function start(): Promise<unknown> {
  const training = { kind: 'lora', rank: 2, alpha: 4 } as const;
  return createEmbeddedEngine({ modelDirectory: model.modelDirectory, training, seed: 1 }).then(
    async (engine) => {
      await engine.close();
      return 'started';
    },
    (error: unknown) => error,
  );
}

const name = 'model.layers.1.mlp.down_proj.weight';

test('a tensor of another shape', async () => {
  const error = await startWith((tensors) => tensors.set(name, { shape: [32, 47], data: new Float32Array(32 * 47) }));
  expect(error).toEqual(new DataError(`${model.modelDirectory}: ${name} must be [32, 48], got [32, 47]`));
});

test('a tensor that is missing, and one too many', async () => {
  const missing = await startWith((tensors) => tensors.delete(name));
  expect(missing).toEqual(new DataError(`${model.modelDirectory}: must hold the tensor ${name} [32, 48], got none`));
  const extra = await startWith((tensors) => {
    tensors.set(name, { shape: [32, 48], data: new Float32Array(32 * 48) });
    tensors.set('vision.weight', { shape: [1], data: new Float32Array(1) });
  });
  expect(extra).toEqual(
    new DataError(`${model.modelDirectory}: must hold nothing but the model's tensors, got vision.weight`),
  );
});

test('a weight that is not a number', async () => {
  const error = await startWith((tensors) => tensors.get(name)!.data.fill(Number.NaN, 5, 6));
  const path = join(model.modelDirectory, 'model.safetensors');
  expect(error).toEqual(new DataError(`${path}: weights must be finite, got NaN in ${name} at value 5`));
});

test('a configuration of another size', async () => {
  const path = join(model.modelDirectory, 'config.json');
  const json = (await readJsonFile(path)) as Record<string, unknown>;
  await writeFile(path, JSON.stringify({ ...json, intermediate_size: 64 }));
  const error = await start();
  expect(error).toBeInstanceOf(DataError);
  expect((error as Error).message).toContain('model.layers.0.mlp.gate_proj.weight must be [64, 32], got [48, 32]');
});
