/** Pain 8: a notebook cell that ran again failed to register. Here registering again changes nothing, with the same object or a new one. */
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { LocalBackend, TrainableModel } from '../../src/index.ts';
import { createTinyModelFolder } from '../tiny-model-folder.ts';

test('a model may be registered again, at the same time too', async () => {
  const tiny = await createTinyModelFolder();
  const backend = new LocalBackend({ path: join(tiny.folder, 'runs'), engine: { trainThreads: 1, cacheTokens: 4096 } });
  try {
    const create = (): TrainableModel =>
      new TrainableModel({ name: 'a', project: 'p', baseModel: tiny.modelDirectory, lora: { rank: 2 } });
    const [first, second] = [create(), create()];
    await Promise.all([first.register(backend), second.register(backend), first.register(backend)]);
    await second.register(backend);
    expect([await first.getStep(), await second.getStep()]).toEqual([0, 0]);
    expect(await backend.listModels()).toHaveLength(1);
    const other = new TrainableModel({ name: 'a', project: 'p', baseModel: tiny.modelDirectory, lora: { rank: 3 } });
    await expect(other.register(backend)).rejects.toThrow(/lora|rank/);
  } finally {
    await backend.close();
    await tiny.remove();
  }
});
