/** A server with keys from registration to training: who may, what is written down, and what of the texts reaches the disk. */
import { createHash } from 'node:crypto';
import { mkdtemp, readdir, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { createCountingEngine } from '../../../test/server/counting-engine.ts';
import { completion, group, trainRequest, trajectory } from '../../../test/server/training-fixtures.ts';
import { writeStarterModel } from '../../formats/starter-model.ts';
import { RemoteBackend } from '../../sdk/http-backend.ts';
import type { TrainRequest } from '../../wire/training.ts';
import { type ArtServer, type ArtServerOptions, createArtServer } from '../index.ts';
import { auditPath, verifyAudit } from './audit.ts';
import { createKey } from './keys.ts';

const secret = 'jane@mail.example';
let folder: string;
let base: string;
const servers: ArtServer[] = [];

beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'art-trust-'));
  base = join(folder, 'base');
  const sizes = { width: 16, layers: 1, heads: 2, kvHeads: 1, headSize: 8, ffWidth: 16 };
  await writeStarterModel({ seed: 1, directory: base, corpus: ['go', secret], ...sizes });
});

afterAll(async () => {
  for (const server of servers) await server.close();
  await rm(folder, { recursive: true });
});

interface Started {
  readonly root: string;
  readonly keys: { readonly train: string; readonly admin: string };
  readonly call: (key: string, path: string, body: unknown) => Promise<Response>;
  readonly server: ArtServer;
}

async function start(name: string, options: Partial<ArtServerOptions> = {}): Promise<Started> {
  const root = join(folder, name);
  const keyOf = async (scope: 'train' | 'admin') => (await createKey(root, { name: scope, scopes: [scope] })).key;
  const keys = { train: await keyOf('train'), admin: await keyOf('admin') };
  const server = await createArtServer({
    root,
    onWarning: () => {},
    createEngine: async ({ seed }) => createCountingEngine(seed),
    ...options,
  });
  servers.push(server);
  const call: Started['call'] = (key, path, body) =>
    fetch(server.url + path, {
      method: 'POST',
      headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json', 'x-request-id': 'r-1' },
      body: JSON.stringify(body),
    });
  return { root, keys, call, server };
}

const registration = () => ({ name: 'agent', project: 'demo', base_model: base, lora: { rank: 4, alpha: 8 }, seed: 3 });

/** Two trajectories; the reply of the first one holds the secret. */
function requestOf({ server }: Started, key: string): TrainRequest {
  const { completions, tokenizer, step } = server.registry.get('agent').model;
  const ids = [tokenizer.encode(`go ${secret}`), tokenizer.encode('go')];
  for (const [index, tokenIds] of ids.entries()) {
    completions.put(completion(`${key}-${index}`, { policyStep: step(), tokenIds }));
  }
  const first = trajectory(1, [`${key}-0`]);
  const told = { ...first, metadata: { mail: secret }, logs: [`asked ${secret}`] };
  return trainRequest(key, group(told, trajectory(0, [`${key}-1`])));
}

async function train(started: Started, request: TrainRequest): Promise<void> {
  const text = await (await started.call(started.keys.train, '/api/models/agent/train', request)).text();
  expect(text).toContain('event: result');
}

async function readAudit(root: string): Promise<Record<string, unknown>[]> {
  const text = await readFile(auditPath(root), 'utf8');
  return text
    .trimEnd()
    .split('\n')
    .map((line) => JSON.parse(line) as Record<string, unknown>);
}

const trajectoriesOf = (root: string, step: string): Promise<string> =>
  readFile(join(root, 'demo', 'models', 'agent', 'trajectories', 'train', `${step}.jsonl`), 'utf8');

/** All files of a run as one text. */
async function readAll(root: string): Promise<string> {
  const entries = await readdir(root, { recursive: true, withFileTypes: true });
  const files = entries.filter((entry) => entry.isFile());
  return (await Promise.all(files.map((file) => readFile(join(file.parentPath, file.name), 'latin1')))).join('\n');
}

test('a training key opens no path of its own, trains what is open, and both are on record under its name', async () => {
  const started = await start('keys');
  const { root, keys, call } = started;
  const refused = await call(keys.train, '/api/models', registration());
  expect(refused.status).toBe(403);
  expect(await refused.json()).toMatchObject({ error: { code: 'base_model_not_allowed', param: 'base_model' } });
  expect((await call(keys.admin, '/api/models', registration())).status).toBe(200);
  expect((await call(keys.train, '/api/models', registration())).status).toBe(200);
  const request = requestOf(started, 'first');
  await train(started, request);
  await train(started, request);
  const log = { split: 'val', step: null, groups: [], metrics: { a: 1 } };
  expect((await call(keys.train, '/api/models/agent/log', log)).status).toBe(200);

  const lines = await readAudit(root);
  expect(
    lines.map(({ what, who, target, request_id }) => [what, (who as { name?: string }).name, target, request_id]),
  ).toEqual([
    ['model.register', 'admin', 'demo/agent', 'r-1'],
    ['model.train', 'train', 'demo/agent@1', 'r-1'],
    ['model.log', 'train', 'demo/agent@1', 'r-1'],
  ]);
  expect(lines[1]).toMatchObject({ before: { step: 0 }, after: { step: 1 } });
  expect((await verifyAudit(root)).lines).toBe(3);

  const directory = join(root, 'demo', 'models', 'agent', 'checkpoints', '0001');
  const manifest = JSON.parse(await readFile(join(directory, 'checkpoint.json'), 'utf8'));
  expect(manifest).toMatchObject({
    baseModel: base,
    baseModelSha256: expect.stringMatching(/^[0-9a-f]{64}$/),
    packageVersion: expect.stringMatching(/^\d/),
    parentStep: 0,
    trainedBy: { kind: 'key', name: 'train' },
    config: { learningRate: 0.25 },
    dataSha256: createHash('sha256')
      .update(await trajectoriesOf(root, '0001'))
      .digest('hex'),
  });
  expect(await readAll(root)).not.toContain(keys.train.slice(17));
});

test('redaction takes the text out of messages, metadata, logs and token ids, and training goes on', async () => {
  const started = await start('redact', { redact: true });
  await started.call(started.keys.admin, '/api/models', registration());
  const request = requestOf(started, 'first');
  const secretIds = started.server.registry.get('agent').model.completions.get('first-0', 0)?.tokenIds;
  await train(started, request);
  const [first, second] = (await trajectoriesOf(started.root, '0001'))
    .split('\n')
    .map((line) => line && JSON.parse(line));
  expect(first).toMatchObject({ metadata: { mail: '[redacted:email]' }, logs: ['asked [redacted:email]'], reward: 1 });
  expect(first.entries[1].tokens).toMatchObject({ token_ids: null, logprobs: secretIds?.map(() => -1) });
  expect(second.entries[1].tokens.token_ids).toEqual(expect.arrayContaining([expect.any(Number)]));
  expect(await readAll(started.root)).not.toContain(secret);
});

test('with store: none nothing of a conversation reaches the disk, and training goes on', async () => {
  const started = await start('none', { store: 'none' });
  await started.call(started.keys.admin, '/api/models', registration());
  await train(started, requestOf(started, 'first'));
  const lines = (await trajectoriesOf(started.root, '0001'))
    .trimEnd()
    .split('\n')
    .map((line) => JSON.parse(line));
  expect(lines).toEqual([
    { group: 0, trajectory: 0, reward: 1, metrics: {} },
    { group: 0, trajectory: 1, reward: 0, metrics: {} },
    { group: 0, exceptions: 0, metrics: {} },
  ]);
  const all = await readAll(started.root);
  expect(all).not.toContain(secret);
  expect(all).not.toContain('first-0');
});

test('an address that others reach needs a key, and the mend is named', async () => {
  const options = { root: join(folder, 'open'), host: '0.0.0.0', createEngine: async () => createCountingEngine(1) };
  await expect(createArtServer(options)).rejects.toThrow(
    /must be a loopback address while .* art keys create --name admin/,
  );
  const { server, keys } = await start('public', { host: '0.0.0.0' });
  const url = server.url.replace('0.0.0.0', '127.0.0.1');
  expect((await fetch(`${url}/v1/models`)).status).toBe(401);
  expect((await fetch(`${url}/v1/models`, { headers: { 'x-api-key': keys.train } })).status).toBe(200);
});

test('the SDK takes its key from the option or the environment, and quotes it in no error', async () => {
  const { server, keys } = await start('sdk');
  const model = { name: 'agent' } as Parameters<RemoteBackend['getStep']>[0];
  const withoutKey = new RemoteBackend({ baseURL: server.url });
  await expect(withoutKey.getStep(model)).rejects.toThrow(/api key: must be a key of this server/);
  const before = process.env.ART_API_KEY;
  process.env.ART_API_KEY = keys.train;
  try {
    await expect(new RemoteBackend({ baseURL: server.url }).getStep(model)).rejects.toThrow(/must be registered first/);
  } finally {
    if (before === undefined) delete process.env.ART_API_KEY;
    else process.env.ART_API_KEY = before;
  }
  expect(() => new RemoteBackend({ baseURL: server.url, apiKey: 'geheim ü' })).toThrow(
    /must be printable ASCII .* got 8/,
  );
  expect(() => new RemoteBackend({ baseURL: server.url, apiKey: 'geheim ü' })).not.toThrow(/geheim/);
});
