/** Push to and pull from S3-compatible storage, against a server on loopback that checks signatures and checksums. */
import { readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';
import type { CopyProgress, RemoteBackend, TrainableModel } from '../../src/index.ts';
import { createModel, openRemoteApi, type RemoteApi } from '../server/remote-api.ts';
import { accessKeyId, region, type S3Fault, type S3Server, secretAccessKey, startS3 } from './s3-server.ts';

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

const limits = { requestTimeoutMs: 2_000, silenceTimeoutMs: 200, maxRetries: 2, retryDelayMs: 1 };
const open = (more: object = {}): Promise<RemoteApi> => openRemoteApi({ remotes: { s3: { ...limits, ...more } } });
const folder = (step: number): string => `bucket-1/runs/demo/models/agent/checkpoints/000${step}`;
const names = (): string[] => [...s3.objects.keys()].sort();
const to = 's3://bucket-1/runs';
const fault = (method: string, path: RegExp, what: S3Fault['what'], times = 1): void => {
  s3.faults = [{ method, path, what, times }];
};

async function trained(api: RemoteApi['api'], ...keys: readonly string[]): Promise<void> {
  for (const key of keys) await api.train(key);
}

/** The model of another server, which has nothing yet but the base model. */
async function elsewhere(
  source: RemoteApi,
  more: object = {},
): Promise<{ remote: RemoteApi; model: TrainableModel; backend: RemoteBackend }> {
  const remote = await open(more);
  await remote.backend.deleteModel({ name: 'agent' }, { confirm: true });
  return { remote, model: createModel(source.api, 'agent'), backend: remote.backend };
}

describe('push', () => {
  test('files, then the manifest, in the layout of the folder of runs; again, nothing is sent twice', async () => {
    const { api, model, backend } = await open();
    await trained(api, 'a');
    const progress: CopyProgress[] = [];
    const pushed = await model.pushCheckpoint({ to, onProgress: (report) => progress.push(report) });
    const checkpoint = await model.getCheckpoint();
    expect(pushed).toEqual({
      ...{ place: `s3://${folder(1)}`, step: 1, adapterSha256: checkpoint.adapterSha256, files: 2, isNew: true },
      ...{ bytes: checkpoint.bytes, skippedFiles: 0, copiedBytes: checkpoint.bytes },
    });
    expect(names()).toEqual(
      ['adapter_config.json', 'adapter_model.safetensors', 'manifest.json'].map((name) => `${folder(1)}/${name}`),
    );
    expect(s3.requests.filter(({ method }) => method === 'PUT').at(-1)?.path).toMatch(/manifest\.json$/);
    expect(progress.at(-1)).toEqual({ stage: 'finish', doneBytes: checkpoint.bytes, totalBytes: checkpoint.bytes });
    const puts = s3.requests.length;
    expect(await model.pushCheckpoint({ to })).toMatchObject({ skippedFiles: 2, copiedBytes: 0 });
    expect(
      s3.requests.slice(puts).filter(({ method, path }) => method === 'PUT' && !path.endsWith('manifest.json')),
    ).toEqual([]);
    const jobs = (await backend.listJobs()).filter(({ kind }) => kind === 'push');
    expect(jobs).toMatchObject([{ model: 'agent', state: 'done', result: { skippedFiles: 2 } }]);
    expect(await backend.followJob(jobs[0]!.id)).toMatchObject({ state: 'done' });
  });

  test('a large file goes in parts, each with its checksum; one that fails leaves no parts behind', async () => {
    const { api, model } = await open({ partBytes: 8 });
    await trained(api, 'a');
    await model.pushCheckpoint({ to });
    const bytes = (await model.getCheckpoint()).files.find(({ name }) => name === 'adapter_model.safetensors')!.bytes;
    const parts = s3.requests.filter(({ query, method }) => method === 'PUT' && query.includes('partNumber'));
    expect(parts.length).toBe(Math.ceil(bytes / 8));
    expect(s3.objects.get(`${folder(1)}/adapter_model.safetensors`)?.body.length).toBe(bytes);
    await trained(api, 'b');
    fault('PUT', /partNumber=2/, { status: 403, code: 'AccessDenied' });
    await expect(model.pushCheckpoint({ to })).rejects.toThrow(
      /credentials must allow it, got AccessDenied \(HTTP 403\)/,
    );
    expect(s3.openUploads()).toBe(0);
    expect(names().some((name) => name.startsWith(`${folder(2)}/manifest`))).toBe(false);
  });

  test.each([
    ['the endpoint is busy', { status: 503, code: 'SlowDown' }],
    ['the endpoint breaks', { status: 500, code: 'InternalError' }],
    ['bytes are damaged on their way', { flip: true }],
  ] as const)('goes on when %s, and not for ever', async (_name, what) => {
    const { api, model } = await open();
    await trained(api, 'a');
    fault('PUT', /adapter_model/, what, 2);
    expect(await model.pushCheckpoint({ to })).toMatchObject({ copiedBytes: expect.any(Number) });
    s3.objects.clear();
    fault('PUT', /adapter_model/, what, 99);
    await expect(model.pushCheckpoint({ to })).rejects.toThrow(
      /push of model agent to s3:\/\/bucket-1\/runs: PUT s3:\/\/bucket-1/,
    );
    expect(names().filter((name) => name.endsWith('manifest.json'))).toEqual([]);
    s3.faults = [];
    expect(await model.pushCheckpoint({ to })).toMatchObject({ skippedFiles: 1 }); // what had arrived is not sent again
  });

  test('another checkpoint in its place, a missing step and a place that cannot be are refused', async () => {
    const { api, model } = await open();
    await trained(api, 'a');
    await model.pushCheckpoint({ to });
    const other = await open();
    await trained(other.api, 'x');
    await other.backend.rollback(other.model, 0, { confirm: true });
    const manifest = s3.objects.get(`${folder(1)}/manifest.json`)!;
    manifest.body = Buffer.from(manifest.body.toString().replaceAll(/"sha256": "[0-9a-f]{4}/g, '"sha256": "ffff'));
    await expect(model.pushCheckpoint({ to })).rejects.toMatchObject({ details: { code: 'remote_exists' } });
    await expect(model.pushCheckpoint({ to, step: 9 })).rejects.toMatchObject({ status: 404 });
    for (const place of [
      's3://Bucket/x',
      's3://10.0.0.1/x',
      's3://b/../c',
      'http://evil.example/b',
      's3://bucket-1/a?b',
    ]) {
      await expect(model.pushCheckpoint({ to: place }), place).rejects.toThrow(/must be s3:\/\//);
    }
    await expect(model.pushCheckpoint({ to, bucket: 'b' } as never)).rejects.toThrow(/got bucket$/);
  });

  test('credentials are those of the server alone, and nothing tells them', async () => {
    const { api, model, backend } = await open();
    await trained(api, 'a');
    vi.stubEnv('AWS_SECRET_ACCESS_KEY', 'wrong-secret-value');
    const wrong = await model.pushCheckpoint({ to }).catch((error: Error) => error.message);
    expect(wrong).toMatch(/credentials must allow it, got SignatureDoesNotMatch/);
    vi.stubEnv('AWS_SECRET_ACCESS_KEY', '');
    await expect(model.pushCheckpoint({ to })).rejects.toThrow(
      /must be in the environment of the server, got no AWS_SECRET_ACCESS_KEY/,
    );
    const audit = await readFile(join(api.root, '.art', 'audit.jsonl'), 'utf8').catch(() => '');
    const told = JSON.stringify([wrong, await backend.listJobs(), audit, api.warnings]);
    for (const secret of ['wrong-secret-value', secretAccessKey, accessKeyId]) expect(told).not.toContain(secret);
  });

  test('only places that the owner lists, where there is such a list', async () => {
    const { api, model } = await openRemoteApi({ remotes: { s3: limits, allowed: ['s3://bucket-1/runs'] } });
    await trained(api, 'a');
    await model.pushCheckpoint({ to: 's3://bucket-1/runs/mine' });
    for (const place of ['s3://bucket-1/runs2', 's3://bucket-2', 'hf://org/name']) {
      await expect(model.pushCheckpoint({ to: place })).rejects.toMatchObject({ status: 403 });
    }
  });

  test('a push is cancelled, and a server that closes does not wait for it', async () => {
    const { api, model, backend } = await open();
    await trained(api, 'a');
    fault('PUT', /adapter_model/, { status: 503, code: 'SlowDown' }, 1e6);
    const slow = await openRemoteApi({ remotes: { s3: { ...limits, maxRetries: 50, retryDelayMs: 400 } } });
    await trained(slow.api, 'a');
    const pushing = slow.model.pushCheckpoint({ to }).catch((error: Error) => error);
    await vi.waitFor(async () => expect(s3.requests.some(({ method }) => method === 'PUT')).toBe(true), 5_000);
    const [job] = (await slow.backend.listJobs({ state: 'running' })).filter(({ kind }) => kind === 'push');
    await slow.backend.cancelJob(job!.id);
    expect(String(await pushing)).toMatch(/was cancelled/);
    expect(await slow.backend.getJob(job!.id)).toMatchObject({ state: 'cancelled' });
    void [model, backend];
  });
});

describe('pull', () => {
  test('another server goes on bit by bit as this one: keys, metrics and steps are there', async () => {
    const source = await open();
    await trained(source.api, 'a', 'b');
    await source.model.pushCheckpoint({ to, step: 1 });
    await source.model.pushCheckpoint({ to });
    const { remote, model, backend } = await elsewhere(source);
    const pulled = await backend.pullCheckpoint(model, { from: to });
    expect(pulled).toMatchObject({ step: 2, skippedFiles: 0, isNew: true, place: `s3://${folder(2)}` });
    await model.register(backend);
    expect((await model.getCheckpoint()).files).toEqual((await source.model.getCheckpoint()).files);
    expect(await backend.history(model)).toMatchObject([{ step: 2 }]);
    expect((await remote.api.train('b')).step).toBe(2); // the key that made it trains once, here too
    expect((await remote.api.train('c')).adapter_sha256).toBe((await source.api.train('c')).adapter_sha256);
    expect(await readdir(join(remote.api.root, '.art', '.pulls'))).toEqual([]);
    expect(await model.pullCheckpoint({ from: to, step: 2 })).toMatchObject({ isNew: false });
  });

  test('a newer checkpoint is put beside the others and served; an older one is only there', async () => {
    const source = await open();
    await trained(source.api, 'a', 'b', 'c');
    for (const step of [1, 2, 3]) await source.model.pushCheckpoint({ to, step });
    const { model, backend } = await elsewhere(source);
    await backend.pullCheckpoint(model, { from: to, step: 2 });
    await model.register(backend);
    await model.pullCheckpoint({ from: to });
    expect(await model.getStep()).toBe(3);
    await model.pullCheckpoint({ from: to, step: 1 });
    expect(await model.getStep()).toBe(3);
    expect((await model.listCheckpoints()).map(({ step }) => step)).toEqual([1, 2, 3]);
  });

  test('under another name it is a fork; a name that is taken, or another shape, is refused', async () => {
    const source = await open();
    await trained(source.api, 'a');
    await source.model.pushCheckpoint({ to });
    const { api, backend } = source;
    const fork = createModel(api, 'fork', 'other');
    const from = { from: to, fromProject: 'demo', fromModel: 'agent' };
    await backend.pullCheckpoint(fork, from);
    await fork.register(backend);
    expect((await fork.getCheckpoint()).provenance.forkedFrom).toMatchObject({
      project: 'demo',
      model: 'agent',
      step: 1,
    });
    const taken = createModel(api, 'taken');
    await taken.register(backend);
    await expect(backend.pullCheckpoint(taken, from)).rejects.toMatchObject({ details: { code: 'model_exists' } });
    const shaped = Object.assign(createModel(api, 'shaped'), { lora: { rank: 16, alpha: 8 } });
    await expect(backend.pullCheckpoint(shaped, from)).rejects.toThrow(
      /lora\.rank: must be that of demo\/agent, 4, got 16/,
    );
  });

  test('cut connections and stalls are resumed from where they stopped', async () => {
    const source = await open();
    await trained(source.api, 'a');
    await source.model.pushCheckpoint({ to });
    const { model, backend } = await elsewhere(source);
    s3.faults = [
      { method: 'GET', path: /adapter_model/, what: { cutAfter: 5 }, times: 1 },
      { method: 'GET', path: /adapter_model/, what: { stallAfter: 3 }, times: 1 },
    ];
    await backend.pullCheckpoint(model, { from: to });
    const ranges = s3.requests
      .filter(({ method, path }) => method === 'GET' && /adapter_model/.test(path))
      .map(({ range }) => range);
    expect(ranges).toEqual([null, 'bytes=5-', 'bytes=8-']);
  });

  test('wrong bytes are fetched once more, then refused, and no model is made of them', async () => {
    const source = await open();
    await trained(source.api, 'a');
    await source.model.pushCheckpoint({ to });
    const { remote, model, backend } = await elsewhere(source);
    fault('GET', /adapter_model/, { flip: true }, 1);
    await expect(backend.pullCheckpoint(model, { from: to })).resolves.toMatchObject({ isNew: true });
    await remote.api.registry.register(remote.api.registration);
    await backend.deleteModel(model, { confirm: true });
    fault('GET', /adapter_model/, { flip: true }, 9);
    await expect(backend.pullCheckpoint(model, { from: to })).rejects.toThrow(/SHA-256 must be [0-9a-f]{64}, got/);
    expect(await readdir(join(remote.api.root, '.art/demo/models'))).toEqual([]);
    s3.faults = [];
    expect(await backend.pullCheckpoint(model, { from: to })).toMatchObject({ skippedFiles: 1 }); // the other file was kept
  });

  test('what is not there, or not finished, is named; a hostile manifest makes no path', async () => {
    const source = await open();
    await trained(source.api, 'a');
    await source.model.pushCheckpoint({ to });
    const { remote, model, backend } = await elsewhere(source);
    await expect(backend.pullCheckpoint(model, { from: 's3://bucket-1/nothing' })).rejects.toThrow(
      /must hold a checkpoint that was pushed/,
    );
    await expect(backend.pullCheckpoint(model, { from: to, step: 7 })).rejects.toThrow(/0007: must hold a checkpoint/);
    const manifest = s3.objects.get(`${folder(1)}/manifest.json`)!;
    const text = manifest.body.toString();
    manifest.body = Buffer.from(text.replace('"adapter_config.json"', '"../../evil.json"'));
    await expect(backend.pullCheckpoint(model, { from: to })).rejects.toThrow(/files must have plain names.*evil/);
    manifest.body = Buffer.from('{}');
    await expect(backend.pullCheckpoint(model, { from: to })).rejects.toThrow(/manifest\.json/);
    s3.objects.delete(`${folder(1)}/manifest.json`);
    await expect(backend.pullCheckpoint(model, { from: to })).rejects.toThrow(/must hold a checkpoint/);
    expect(await readdir(join(remote.api.root, '.art/demo/models'))).toEqual([]);
  });
});
