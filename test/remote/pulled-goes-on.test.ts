/** A checkpoint that was copied to storage and back, on the real engine: training goes on from it to the same bytes. */
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import type { Backend, TrainableModel } from '../../src/index.ts';
import { sampleChoice, sampleGroup, setUpYesOrNo } from '../yes-or-no.ts';
import { accessKeyId, region, type S3Server, secretAccessKey, startS3 } from './s3-server.ts';

const setup = setUpYesOrNo();
let s3: S3Server;
beforeEach(async () => {
  s3 = await startS3();
  vi.stubEnv('AWS_ENDPOINT_URL_S3', s3.endpoint);
  vi.stubEnv('AWS_REGION', region);
  vi.stubEnv('AWS_ACCESS_KEY_ID', accessKeyId);
  vi.stubEnv('AWS_SECRET_ACCESS_KEY', secretAccessKey);
  vi.stubEnv('AWS_SESSION_TOKEN', '');
});
afterEach(async () => {
  vi.unstubAllEnvs();
  await s3.close();
});

/** One step, whose rollouts come from the model itself, and what it is then. */
async function trainOnce(backend: Backend, model: TrainableModel): Promise<unknown> {
  const { step, adapterSha256 } = await backend.train(model, [await sampleGroup(model, 50)], { learningRate: 1e-2 });
  return { step, adapterSha256, said: (await sampleChoice(model, 7)).message.content };
}

test('push, pull elsewhere, train on: the same adapter as without the journey', async () => {
  const place = 's3://bucket-1/runs';
  await using here = setup.openBackend('here');
  const original = setup.createModel('agent');
  await original.register(here);
  await here.train(original, [await sampleGroup(original, 1)], { learningRate: 1e-2 });
  await original.pushCheckpoint({ to: place });
  await using there = setup.openBackend('there');
  const copy = setup.createModel('agent');
  await there.pullCheckpoint(copy, { from: place });
  await copy.register(there);
  expect(await copy.getStep()).toBe(1);
  expect(await trainOnce(there, copy)).toEqual(await trainOnce(here, original));
});
