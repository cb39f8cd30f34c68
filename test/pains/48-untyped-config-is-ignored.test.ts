/** Symptom: a misspelt or unsupported option of an untyped config is dropped, and training runs without it. Here it is refused by name, at every depth. */
import { expect, test } from 'vitest';
import { ConfigError, RemoteBackend, TrainableModel, type TrainOptions } from '../../src/index.ts';
import { TestApi } from '../server/test-api.ts';
import { trainRequest } from '../server/training-fixtures.ts';

const backend = new RemoteBackend({ baseURL: 'http://127.0.0.1:9' });
const model = new TrainableModel({ name: 'agent', project: 'pains', baseModel: './models/my-model' });

test.each<[string, object]>([
  ['lr', { lr: 1e-4 }],
  ['normalize_advantages', { normalize_advantages: true }],
  ['weight_decay', { adam: { weight_decay: 0.1 } }],
  ['warmup', { learningRateSchedule: { decay: 'linear', warmup: 3, totalSteps: 9 } }],
  ['filter', { overlong: { filter: true } }],
  ['beta', { klPenalty: { weight: 0.1, beta: 0.1 } }],
  ['lag', { klPenalty: { weight: 0.1, reference: { lag: 2 } } }],
])('the SDK refuses %s', async (name, options) => {
  const call = backend.train(model, [], options as TrainOptions);
  await expect(call).rejects.toThrow(ConfigError);
  await expect(call).rejects.toThrow(new RegExp(`known options are .*; got ${name}$`));
});

test('so does the server, for clients that are not the SDK', async () => {
  const api = await TestApi.open();
  try {
    const send = async (options: object): Promise<{ status: number; message: string }> => {
      const response = await api.app.request('/api/models/agent/train', {
        method: 'POST',
        headers: { 'content-type': 'application/json', host: '127.0.0.1' },
        body: JSON.stringify({ ...trainRequest('k'), options }),
      });
      const body = (await response.json()) as { error: { message: string } };
      return { status: response.status, message: body.error.message };
    };
    expect(await send({ lr: 1 })).toEqual({ status: 400, message: 'options.lr: unknown field' });
    expect(await send({ adam: { beta: 1 } })).toEqual({ status: 400, message: 'options.adam.beta: unknown field' });
    expect((await send({ overlong: { filter: true } })).message).toBe('options.overlong.filter: unknown field');
    expect((await send({ kl_penalty: { weight: 0.1, reference: { lag: 2 } } })).status).toBe(400);
    // Known, but read by nothing: not ignored either.
    expect(await send({ max_completion_tokens: 9 })).toMatchObject({
      status: 400,
      message: expect.stringMatching(/maxCompletionTokens: is read by .* alone/),
    });
  } finally {
    await api.close();
  }
});
