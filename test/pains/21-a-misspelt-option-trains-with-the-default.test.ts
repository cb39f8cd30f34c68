/** Pain 21: a warm-up set a field that did not exist, and trained at the full rate. Here a name that nothing reads is an error before anything is sent. */
import { expect, test } from 'vitest';
import { RemoteBackend, TrainableModel, type TrainOptions } from '../../src/index.ts';

test.each([
  [{ lr: 1e-9 }, 'train options', 'lr'],
  [{ learning_rate: 1e-9 }, 'train options', 'learning_rate'],
  [{ adam: { lr: 1e-9 } }, 'train options.adam', 'lr'],
  [
    { learningRateSchedule: { decay: 'linear', warmup: 3, totalSteps: 9 } },
    'train options.learningRateSchedule',
    'warmup',
  ],
  [{ klPenalty: { beta: 0.1 } }, 'train options.klPenalty', 'beta'],
])('%j', async (options, where, name) => {
  // Nothing listens there: a request would fail with another error.
  const backend = new RemoteBackend({ baseURL: 'http://127.0.0.1:9' });
  const model = new TrainableModel({ name: 'agent', project: 'p', baseModel: './base' });
  const error = await backend.train(model, [], options as unknown as TrainOptions).catch((reason: unknown) => reason);
  expect(error).toMatchObject({ code: 'config_error' });
  expect((error as Error).message).toMatch(new RegExp(`^${where}: known options are .*; got ${name}$`));
});
