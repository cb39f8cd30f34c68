import { mkdir, readdir, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { createModel, openRemoteApi, type RemoteApi } from '../../../test/server/remote-api.ts';
import { isPresent } from '../../formats/atomic-files.ts';
import { createRun } from './fork.ts';
import { readRegistration } from './run-folder.ts';

const models = ({ api }: RemoteApi, project = 'demo'): string => join(api.registry.root, project, 'models');

test('a fork begins at the newest step that is not after the limit, and goes its own way from there', async () => {
  const remote = await openRemoteApi();
  const { api, backend, model } = remote;
  for (const key of ['a', 'b', 'c']) await api.train(key);
  const fork = createModel(api, 'fork');
  const made = await backend.fork(fork, { fromModel: 'agent', notAfterStep: 2 });
  const parent = await model.getCheckpoint(2);
  const from = { project: 'demo', model: 'agent', step: 2, adapterSha256: parent.adapterSha256 };
  expect(made).toEqual({ step: 2, from, isNew: true });
  await fork.register(backend);
  const first = await fork.getCheckpoint();
  expect(first).toMatchObject({ step: 2, parentStep: null, kind: null, adapterSha256: parent.adapterSha256 });
  expect(first.files).toEqual(parent.files);
  expect(first.provenance.forkedFrom).toEqual(from);
  expect(await backend.history(fork)).toEqual([]);
  expect(await backend.listJobs({ model: 'fork' })).toEqual([]);
  await backend.rollback(model, 2, { confirm: true });
  expect((await model.getCheckpoint()).adapterSha256).toBe((await fork.getCheckpoint()).adapterSha256);
});

test('the same fork made again is the same model, however far either has come', async () => {
  const { api, backend } = await openRemoteApi();
  await api.train('a');
  const fork = createModel(api, 'fork');
  const first = await backend.fork(fork, { fromModel: 'agent' });
  await fork.register(backend);
  await api.train('b');
  expect(await backend.fork(fork, { fromModel: 'agent' })).toEqual({ ...first, isNew: false });
  expect(await backend.fork(fork, { fromModel: 'agent', step: 1 })).toMatchObject({ step: 1, isNew: false });
  await expect(backend.fork(fork, { fromModel: 'agent', step: 2 })).rejects.toMatchObject({
    status: 409,
    message: expect.stringMatching(/model fork: must be new .*, got a fork of demo\/agent@1; use another name/),
  });
  await expect(backend.fork(fork, { fromModel: 'agent', notAfterStep: 0 })).rejects.toMatchObject({ status: 409 });
});

test('a fork crosses projects, and its parent need not be open', async () => {
  const remote = await openRemoteApi();
  const { api, backend } = remote;
  await api.train('a');
  await api.registry.close();
  api.start();
  const fork = createModel(api, 'fork', 'other');
  const body = {
    model: { ...api.registration, name: fork.name, project: fork.project },
    from_project: 'demo',
    step: 1,
  };
  const { status, json } = await api.call('POST', '/api/models/agent/fork', body);
  expect({ status, json }).toMatchObject({ status: 200, json: { project: 'other', step: 1, is_new: true } });
  const { forked_from } = await readRegistration(join(models(remote, 'other'), 'fork'));
  expect(forked_from).toMatchObject({ project: 'demo', model: 'agent', step: 1 });
  expect((await api.call('POST', '/api/models/agent/fork', { ...body, from_project: 'nobody' })).status).toBe(404);
  expect((await api.call('POST', '/api/models/..%2fagent/fork', body)).status).toBe(400);
  await expect(backend.fork(fork, { fromModel: 'agent', step: 1, notAfterStep: 1 })).rejects.toThrow(
    /only one of them/,
  );
});

test('another shape, another base model, a missing step and a taken name are refused, and nothing is made', async () => {
  const remote = await openRemoteApi();
  const { api, backend, model } = remote;
  await api.train('a');
  const call = (change: object, rest: object = {}) =>
    api.call('POST', '/api/models/agent/fork', { model: { ...api.registration, name: 'fork', ...change }, ...rest });
  const rank = await call({ lora: { rank: 8, alpha: 8 } });
  expect(rank.json.error).toMatchObject({
    code: 'fork_differs',
    message: 'lora.rank: must be that of demo/agent, 4, got 8',
    param: 'model.lora.rank',
  });
  const other = join(api.root, 'other-base');
  await mkdir(other);
  await writeFile(join(other, 'model.safetensors'), 'other weights');
  expect((await call({ base_model: other })).json.error.message).toMatch(
    /^base_model \(SHA-256\): must be that of demo/,
  );
  const missing = await call({}, { step: 5 });
  expect(missing).toMatchObject({ status: 404, json: { error: { code: 'checkpoint_not_found' } } });
  expect(missing.json.error.message).toBe('fork: demo/agent must have a checkpoint of step 5, got 0, 1');
  await expect(backend.fork(model, { fromModel: 'agent' })).rejects.toThrow(/got a model that is no fork/);
  expect(await readdir(models(remote))).toEqual(['agent']);
});

test('a damaged checkpoint is not forked', async () => {
  const remote = await openRemoteApi();
  const { api, backend } = remote;
  await api.train('a');
  await writeFile(join(models(remote), 'agent/checkpoints/0001/adapter_model.safetensors'), '{"weight":9}');
  await expect(backend.fork(createModel(api, 'fork'), { fromModel: 'agent' })).rejects.toThrow(/must have \d+ bytes/);
  expect(await readdir(models(remote))).toEqual(['agent']);
});

test('a fork that is cut off leaves nothing that a registration would find', async () => {
  const remote = await openRemoteApi();
  const { api, backend } = remote;
  const directory = join(models(remote), 'fork');
  const request = { ...api.registration, name: 'fork' };
  const [checkpoint] = api.registry.get('agent').checkpoints.list();
  const manifest = checkpoint!.manifest;
  const base = { commit: null, sha256: manifest.baseModelSha256 };
  const cutOff = createRun(directory, { request, base }, manifest, async () => {
    expect(await isPresent(directory)).toBe(false);
    throw new Error('cut off');
  });
  await expect(cutOff).rejects.toThrow('cut off');
  expect(await readdir(models(remote))).toEqual(['agent']);
  // What a killed process leaves is no model, and in nobody's way.
  await mkdir(join(models(remote), '.fork.abandoned.tmp', 'checkpoints'), { recursive: true });
  const fork = createModel(api, 'fork');
  expect(await backend.fork(fork, { fromModel: 'agent' })).toMatchObject({ isNew: true });
  await rm(join(models(remote), '.fork.abandoned.tmp'), { recursive: true });
});
