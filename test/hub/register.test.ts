/** A base model of the hub, from registration to chat and back after a restart. The hub is a server on loopback. */
import { mkdtemp, readdir, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { Hono } from 'hono';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { writeStarterModel } from '../../src/formats/starter-model.ts';
import { LocalBackend, RemoteBackend, TrainableModel } from '../../src/index.ts';
import { createApp } from '../../src/server/app.ts';
import { startServer } from '../../src/server/listen.ts';
import { createModelRegistry } from '../../src/server/training/model-registry.ts';
import { registerTrainingRoutes } from '../../src/server/training/training-routes.ts';
import { createCountingEngine } from '../server/counting-engine.ts';
import { type HubServer, startHub } from './hub-server.ts';

let root = '';
let hub: HubServer;
beforeEach(async () => {
  root = await mkdtemp(join(tmpdir(), 'art-hub-run-'));
  const sizes = { width: 32, layers: 1, heads: 2, kvHeads: 1, headSize: 16, ffWidth: 48, maxPositions: 128 };
  await writeStarterModel({ seed: 1, directory: join(root, 'base'), corpus: ['yes no'], vocabSize: 280, ...sizes });
  hub = await startHub({ 'org/tiny': { files: await readFiles(join(root, 'base')) } });
});
afterEach(async () => {
  await hub.close();
  await rm(root, { recursive: true });
});

async function readFiles(directory: string): Promise<Record<string, Uint8Array>> {
  const names = await readdir(directory);
  return Object.fromEntries(
    await Promise.all(
      names.map(async (name) => [name, new Uint8Array(await readFile(join(directory, name)))] as const),
    ),
  );
}

const hubOptions = () => ({
  cacheDirectory: join(root, 'cache'),
  endpoint: hub.endpoint,
  token: 'hf_test',
  isOffline: false,
  maxRetries: 1,
  retryDelayMs: 1,
});
const createBackend = (isOffline = false): LocalBackend =>
  new LocalBackend({
    path: join(root, '.art'),
    engine: { trainThreads: 1, cacheTokens: 1024 },
    hub: { ...hubOptions(), isOffline },
    onWarning: () => {},
  });
const createModel = (baseModel = 'org/tiny'): TrainableModel =>
  new TrainableModel({ name: 'agent', project: 'test', baseModel, lora: { rank: 4, alpha: 8 } });
const runFolder = (): string => join(root, '.art/test/models/agent');

test('a run begins at the commit of its branch, keeps it when the branch moves on, and needs no network then', async () => {
  const commit = hub.commitOf('org/tiny');
  {
    await using backend = createBackend();
    const model = createModel();
    await model.register(backend);
    const reply = await model.openaiClient().chat.completions.create({
      model: model.getInferenceName(),
      messages: [{ role: 'user', content: 'yes' }],
      max_tokens: 2,
    });
    expect(reply.usage?.completion_tokens).toBeGreaterThan(0);
  }
  const registration = JSON.parse(await readFile(join(runFolder(), 'model.json'), 'utf8'));
  expect(registration).toMatchObject({ base_model: 'org/tiny@main', base_model_commit: commit });
  const files = hub.repos.get('org/tiny')?.files ?? {};
  hub.repos.set('org/tiny', { files: { ...files, 'model.safetensors': 'another model' } });
  const asked = hub.requests.length;
  await using backend = createBackend();
  await createModel().register(backend);
  expect(hub.requests.length).toBe(asked);
});

test('a model that cannot be fetched is an error of the registration, which leaves no run; the next one works', async () => {
  await using backend = createBackend();
  await expect(createModel('org/nothing').register(backend)).rejects.toMatchObject({
    status: 400,
    message: expect.stringContaining(`must be a model of ${hub.endpoint}`),
    details: { code: 'hub_model_not_found', param: 'base_model' },
  });
  await expect(readdir(runFolder())).rejects.toThrow('ENOENT');
  await createModel().register(backend);
});

test('a download that takes longer than one answer is waited for, and closing ends it', async () => {
  hub.faults = { stalls: [{ path: 'model.safetensors', afterBytes: 100, times: 1 }] };
  const registry = createModelRegistry({
    root: join(root, '.art'),
    createEngine: async ({ seed }) => createCountingEngine(seed),
    hub: { ...hubOptions(), silenceTimeoutMs: 500 },
    onWarning: () => {},
  });
  const app = createApp({
    ...registry,
    registerRoutes: (routes: Hono) => registerTrainingRoutes(routes, registry, { registerAnswerMs: 50 }),
  });
  const server = await startServer(app);
  try {
    const url = `${server.url}/api/models`;
    const body = JSON.stringify({
      name: 'agent',
      project: 'test',
      base_model: 'org/tiny',
      lora: { rank: 4, alpha: 8 },
      seed: 0,
    });
    const headers = { 'content-type': 'application/json' };
    await expect
      .poll(async () => (await fetch(url, { method: 'POST', headers, body })).json(), { interval: 10 })
      .toEqual({
        status: 'opening',
        received_bytes: 100,
        total_bytes: hub.repos.get('org/tiny')?.files['model.safetensors']?.length,
      });
    await createModel().register(new RemoteBackend({ baseURL: server.url }));
    hub.faults = { stalls: [{ path: 'model.safetensors', afterBytes: 100, times: 9 }] };
    await rm(join(root, 'cache'), { recursive: true });
    const waiting = registry.register({ ...JSON.parse(body), name: 'other' });
    const failed = expect(waiting).rejects.toMatchObject({ code: 'aborted' });
    await expect.poll(() => registry.download('other')?.file).toBe('model.safetensors');
    await registry.close();
    await failed;
  } finally {
    await registry.close();
    await server.close();
  }
});
