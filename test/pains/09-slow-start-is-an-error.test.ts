/** Pain 9: a model that loaded for longer than a fixed limit was "unreachable". Here registering waits while it loads, as long as its caller wants. */

import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { expect, test } from 'vitest';
import { AbortedError, LocalBackend, TrainableModel } from '../../src/index.ts';
import { createScriptedEngine } from '../../src/testing/index.ts';
import { createTinyModelFolder } from '../tiny-model-folder.ts';

test('registering waits for a slow engine; a caller who gives up is told what was waited for', async () => {
  const tiny = await createTinyModelFolder();
  const backend = new LocalBackend({
    path: join(tiny.folder, 'runs'),
    createEngine: async (_options, signal) => {
      await sleep(3000, undefined, { signal });
      return createScriptedEngine({ reply: () => ({ tokenIds: [1] }) });
    },
  });
  try {
    const create = (name: string): TrainableModel =>
      new TrainableModel({ name, project: 'p', baseModel: tiny.modelDirectory });
    const error = await create('b')
      .register(backend, { signal: AbortSignal.timeout(200) })
      .catch((reason: unknown) => reason);
    expect(error).toBeInstanceOf(AbortedError);
    expect((error as Error).message).toContain('registration of model b');
    const model = create('a');
    await model.register(backend);
    expect(await model.getStep()).toBe(0);
  } finally {
    await backend.close();
    await tiny.remove();
  }
});
