/** Models of the hub, against a server on loopback that speaks its protocol. */
import { randomBytes } from 'node:crypto';
import { mkdir, mkdtemp, readdir, readFile, readlink, rm, stat, symlink, utimes, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import type { DownloadProgress, HubOptions } from '../../src/hub/options.ts';
import { fetchSnapshot } from '../../src/hub/snapshot.ts';
import { checksumsOf, type HubServer, startHub, validToken } from './hub-server.ts';

const weights = randomBytes(300_000);
const texts = { 'config.json': '{}', 'tokenizer.json': '{"a":1}', 'tokenizer_config.json': '{}' };
const files = { ...texts, 'README.md': '# m', 'model.safetensors': weights, 'pytorch_model.bin': 'x' };
const id = { repo: 'org/tiny', revision: 'main', file: null };

let hub: HubServer;
let cacheDirectory: string;
let options: HubOptions;

beforeEach(async () => {
  hub = await startHub({ 'org/tiny': { files, refs: ['v1.0', 'refs/pr/1'] } });
  cacheDirectory = await mkdtemp(join(tmpdir(), 'art-hub-'));
  // A token is given so that a login of the machine is not used.
  const limits = { requestTimeoutMs: 2_000, silenceTimeoutMs: 300, maxRetries: 2, retryDelayMs: 1 };
  options = { cacheDirectory, endpoint: hub.endpoint, token: validToken, isOffline: false, ...limits };
});

afterEach(async () => {
  await hub.close();
  await rm(cacheDirectory, { recursive: true, force: true });
});

const folder = (): string => join(cacheDirectory, 'models--org--tiny');
const failure = async (work: Promise<unknown>): Promise<Error & { code?: string; details?: Record<string, unknown> }> =>
  work.then(
    () => new Error('nothing was thrown'),
    (error: Error) => error,
  );

describe('the cache', () => {
  test('holds only what a model needs, in the layout of huggingface_hub, and is used again', async () => {
    const snapshot = await fetchSnapshot(id, options);
    const commit = hub.commitOf('org/tiny');
    expect(snapshot).toEqual({ commit, path: join(folder(), 'snapshots', commit) });
    expect((await readdir(snapshot.path)).sort()).toEqual([...Object.keys(texts), 'model.safetensors'].sort());
    expect(await readlink(join(snapshot.path, 'model.safetensors'))).toBe(
      join('../../blobs', checksumsOf(weights).sha256),
    );
    expect(await readlink(join(snapshot.path, 'config.json'))).toBe(join('../../blobs', checksumsOf('{}').blobId));
    expect(await readFile(join(snapshot.path, 'model.safetensors'))).toEqual(weights);
    expect(await readFile(join(folder(), 'refs/main'), 'utf8')).toBe(commit);
    const asked = hub.requests.length;
    await fetchSnapshot(id, options);
    expect(hub.requests.slice(asked).map(({ path }) => path)).toEqual(['/api/models/org/tiny/revision/main']);
  });

  test('keeps refs of branches, tags and pull requests; a commit asks the network nothing', async () => {
    const { commit } = await fetchSnapshot({ ...id, revision: 'v1.0' }, options);
    await fetchSnapshot({ ...id, revision: 'refs/pr/1' }, options);
    expect(await readFile(join(folder(), 'refs/v1.0'), 'utf8')).toBe(commit);
    expect(await readFile(join(folder(), 'refs/refs/pr/1'), 'utf8')).toBe(commit);
    const asked = hub.requests.length;
    expect((await fetchSnapshot({ ...id, revision: commit }, options)).commit).toBe(commit);
    expect(hub.requests.length).toBe(asked);
  });

  test('serves what Python put there, offline or by its commit, without asking the network', async () => {
    // The folder that huggingface_hub 2.4.0 wrote for the same repository, apart from its empty lock files.
    const commit = hub.commitOf('org/tiny');
    const wanted = { ...texts, 'model.safetensors': weights };
    for (const name of ['blobs', 'refs', `snapshots/${commit}`]) await mkdir(join(folder(), name), { recursive: true });
    await writeFile(join(cacheDirectory, 'CACHEDIR.TAG'), 'Signature: 8a477f597d28d172789f06886806bc55\n');
    await writeFile(join(folder(), 'refs/main'), commit);
    for (const [path, content] of Object.entries(wanted)) {
      const { blobId, sha256 } = checksumsOf(content);
      const blob = path === 'model.safetensors' ? sha256 : blobId;
      await writeFile(join(folder(), 'blobs', blob), content);
      await symlink(`../../blobs/${blob}`, join(folder(), 'snapshots', commit, path));
    }
    const offline = { ...options, isOffline: true };
    expect((await fetchSnapshot(id, offline)).commit).toBe(commit);
    expect((await fetchSnapshot({ ...id, revision: commit }, options)).commit).toBe(commit);
    await rm(join(folder(), 'snapshots', commit, 'tokenizer.json'));
    expect((await failure(fetchSnapshot(id, offline))).message).toBe(
      `base model org/tiny@main: must be in the cache while HF_HUB_OFFLINE is set, got no tokenizer.json in ${folder()}`,
    );
    expect(hub.requests).toEqual([]);
  });

  test('is used with a warning when nobody answers, and is not when it lacks a file', async () => {
    const { commit } = await fetchSnapshot(id, options);
    await hub.close();
    const warnings: string[] = [];
    const cut = { ...options, onWarning: (message: string) => warnings.push(message) };
    expect((await fetchSnapshot(id, cut)).commit).toBe(commit);
    expect(warnings.join()).toContain(`commit ${commit} of the cache is used`);
    await rm(join(folder(), 'blobs', checksumsOf(weights).sha256));
    const error = await failure(fetchSnapshot(id, cut));
    expect(error).toMatchObject({ status: 424, details: { code: 'hub_unreachable' } });
    expect(error.message).toContain(`${hub.endpoint} must be reachable`);
    hub = await startHub({});
  });

  test('a blob of the wrong size is fetched again', async () => {
    await mkdir(join(folder(), 'blobs'), { recursive: true });
    await writeFile(join(folder(), 'blobs', checksumsOf(weights).sha256), 'short');
    const { path } = await fetchSnapshot(id, options);
    expect(await readFile(join(path, 'model.safetensors'))).toEqual(weights);
  });
});

describe('what is fetched', () => {
  test('shards by their index; a shard that is not there is named', async () => {
    const index = (names: string[]): string =>
      JSON.stringify({ weight_map: Object.fromEntries(names.map((name, i) => [`t${i}`, name])) });
    const shards = { 'a.safetensors': randomBytes(10), 'b.safetensors': randomBytes(10) };
    const sharded = { ...texts, ...shards, 'c.safetensors': 'x' };
    hub.repos.set('org/sharded', {
      files: { ...sharded, 'model.safetensors.index.json': index(['a.safetensors', 'b.safetensors', 'a.safetensors']) },
    });
    const { path } = await fetchSnapshot({ ...id, repo: 'org/sharded' }, options);
    expect(await readdir(path)).not.toContain('c.safetensors');
    expect(await readFile(join(path, 'b.safetensors'))).toEqual(shards['b.safetensors']);
    hub.repos.set('org/sharded', { files: { ...sharded, 'model.safetensors.index.json': index(['z.safetensors']) } });
    await expect(fetchSnapshot({ ...id, repo: 'org/sharded' }, options)).rejects.toThrow(
      'base model org/sharded@main: every shard of model.safetensors.index.json must be a file, missing z.safetensors',
    );
  });

  test('one GGUF file, which must be named where there is nothing else', async () => {
    const gguf = randomBytes(20);
    hub.repos.set('org/quants', { files: { 'README.md': '', 'q4.gguf': gguf, 'sub/q8.gguf': gguf } });
    const quants = { ...id, repo: 'org/quants' };
    await expect(fetchSnapshot(quants, options)).rejects.toThrow(
      'base model org/quants@main: has GGUF files only, so one must be named, as in org/quants:q4.gguf; it has q4.gguf, sub/q8.gguf',
    );
    await expect(fetchSnapshot({ ...quants, file: 'q2.gguf' }, options)).rejects.toThrow('got q2.gguf');
    const { path } = await fetchSnapshot({ ...quants, file: 'sub/q8.gguf' }, options);
    expect(path.endsWith(join('sub', 'q8.gguf'))).toBe(true);
    expect(await readlink(path)).toBe(join('../../../blobs', checksumsOf(gguf).sha256));
    expect(await readFile(path)).toEqual(gguf);
  });

  test('a repository without safetensors is refused with what it has', async () => {
    hub.repos.set('org/pickle', { files: { ...texts, 'pytorch_model.bin': 'x' } });
    await expect(fetchSnapshot({ ...id, repo: 'org/pickle' }, options)).rejects.toThrow(
      'base model org/pickle@main: must have model.safetensors; its files are config.json, tokenizer.json, ' +
        'tokenizer_config.json, pytorch_model.bin',
    );
  });
});

describe('a download', () => {
  const partPath = (): string => join(folder(), 'blobs', `${checksumsOf(weights).sha256}.art.incomplete`);
  const ranges = (): (string | null)[] =>
    hub.requests.filter(({ host }) => host === 'storage').map(({ range }) => range);

  test('that is cut goes on where it stopped, and reports bytes up to their total', async () => {
    hub.faults = { cuts: [{ path: 'model.safetensors', afterBytes: 100_000, times: 2 }] };
    const reports: DownloadProgress[] = [];
    const { path } = await fetchSnapshot(id, { ...options, onProgress: (report) => reports.push(report) });
    expect(await readFile(join(path, 'model.safetensors'))).toEqual(weights);
    const [first, second, third] = ranges();
    expect(first).toBe(null);
    expect(second).toMatch(/^bytes=\d+-$/);
    expect(third).toMatch(/^bytes=\d+-$/);
    const ofWeights = reports.filter(({ file }) => file === 'model.safetensors');
    expect(ofWeights.at(-1)).toMatchObject({ receivedBytes: weights.length, totalBytes: weights.length });
  });

  test('of an earlier process goes on too; a damaged part is fetched anew', async () => {
    await mkdir(join(folder(), 'blobs'), { recursive: true });
    await writeFile(partPath(), weights.subarray(0, 200_000));
    await fetchSnapshot(id, options);
    expect(ranges()).toEqual(['bytes=200000-']);
    await rm(join(folder(), 'blobs', checksumsOf(weights).sha256));
    await writeFile(partPath(), randomBytes(200_000));
    const { path } = await fetchSnapshot(id, options);
    expect(ranges()).toEqual(['bytes=200000-', 'bytes=200000-', null]);
    expect(await readFile(join(path, 'model.safetensors'))).toEqual(weights);
  });

  test('from a host without ranges starts over', async () => {
    hub.faults = { hasNoRanges: true, cuts: [{ path: 'model.safetensors', afterBytes: 70_000, times: 1 }] };
    const { path } = await fetchSnapshot(id, options);
    expect(await readFile(join(path, 'model.safetensors'))).toEqual(weights);
  });

  test('with a wrong checksum is refused after one more try, for large files and small ones; nothing is left', async () => {
    for (const file of ['model.safetensors', 'tokenizer.json']) {
      hub.faults = { damages: [{ path: file, times: 2 }] };
      await rm(folder(), { recursive: true, force: true });
      const error = await failure(fetchSnapshot(id, options));
      expect(error).toMatchObject({ code: 'data_error', details: { code: 'checksum_mismatch' } });
      expect(error.message).toContain(`base model org/tiny: ${file} must have checksum`);
      expect((await readdir(join(folder(), 'blobs'))).filter((name) => name.includes('incomplete'))).toEqual([]);
    }
    hub.faults = { damages: [{ path: 'model.safetensors', times: 1 }] };
    const { path } = await fetchSnapshot(id, options);
    expect(await readFile(join(path, 'model.safetensors'))).toEqual(weights);
  });

  test('that stalls is tried again, and given up with the limit named; the part stays', async () => {
    hub.faults = { stalls: [{ path: 'model.safetensors', afterBytes: 1_000, times: 1 }] };
    await fetchSnapshot(id, options);
    await rm(folder(), { recursive: true });
    hub.faults = {
      stalls: [{ path: 'model.safetensors', afterBytes: 0, times: 9 }],
      cuts: [{ path: 'model.safetensors', afterBytes: 5_000, times: 1 }],
    };
    const error = await failure(fetchSnapshot(id, options));
    expect(error).toMatchObject({ details: { code: 'hub_unreachable' } });
    expect(error.message).toContain('base model org/tiny: model.safetensors: ');
    expect(error.message).toContain('nothing within 300 ms');
    expect((await stat(partPath())).size).toBe(5_000);
  });

  test('is tried again when the hub is busy, and given up when it stays so', async () => {
    hub.faults = {
      statuses: [
        { path: '/api/models/org/tiny/revision/main', status: 503, times: 2 },
        { path: 'config.json', status: 429, times: 2 },
      ],
    };
    await fetchSnapshot(id, options);
    hub.faults = { statuses: [{ path: '/api/models/org/tiny/revision/main', status: 500, times: 9 }] };
    await rm(folder(), { recursive: true });
    await expect(fetchSnapshot(id, options)).rejects.toThrow(`${hub.endpoint}/org/tiny must be readable, got HTTP 500`);
  });

  test('ends with the signal', async () => {
    hub.faults = { stalls: [{ path: 'model.safetensors', afterBytes: 10, times: 9 }] };
    const signal = AbortSignal.timeout(100);
    const error = await failure(fetchSnapshot(id, { ...options, silenceTimeoutMs: 60_000, signal }));
    expect(error.code).toBe('aborted');
  });

  test('of two at once waits for the first, and finds its files; a lock of a dead process does not hold', async () => {
    hub.faults = { stalls: [{ path: 'model.safetensors', afterBytes: 10, times: 1 }] };
    const warnings: string[] = [];
    const onWarning = (message: string): void => void warnings.push(message);
    const both = await Promise.all([
      fetchSnapshot(id, { ...options, onWarning }),
      fetchSnapshot(id, { ...options, onWarning }),
    ]);
    expect(both[0]).toEqual(both[1]);
    expect(warnings.join()).toContain(`waits for process ${process.pid} on`);
    expect(ranges()).toEqual([null, 'bytes=10-']);
    await rm(folder(), { recursive: true });
    await writeFile(join(cacheDirectory, '.locks/models--org--tiny/snapshot.art.lock'), '999999999 elsewhere');
    await utimes(join(cacheDirectory, '.locks/models--org--tiny/snapshot.art.lock'), 0, 0);
    await fetchSnapshot(id, options);
    expect(await readdir(join(cacheDirectory, '.locks/models--org--tiny'))).toEqual([]);
  });

  test('that cannot fit is refused before it begins, with both numbers', async () => {
    hub.faults = { claimedSizes: { 'model.safetensors': 2 ** 50 } };
    const error = await failure(fetchSnapshot(id, options));
    expect(error).toMatchObject({ code: 'storage_error', details: { code: 'disk_full', neededBytes: 2 ** 50 } });
    expect(error.message).toMatch(/1125899906842624 bytes must fit on the disk of \S+, got \d+ free/);
    expect(ranges()).toEqual([]);
  });
});

describe('access', () => {
  test('the token goes to the hub, and never to the storage host', async () => {
    await fetchSnapshot(id, options);
    const sent = (host: string): Set<string | null> =>
      new Set(hub.requests.filter((request) => request.host === host).map(({ authorization }) => authorization));
    expect([...sent('hub')]).toEqual([`Bearer ${validToken}`]);
    expect([...sent('storage')]).toEqual([null]);
  });

  test('a gated model names its page and the variable, not the token', async () => {
    hub.repos.set('org/gated', { files, isGated: true });
    const gated = { ...id, repo: 'org/gated' };
    const secret = 'hf_secretOfSomeone';
    const error = await failure(fetchSnapshot(gated, { ...options, token: secret }));
    expect(error).toMatchObject({ code: 'config_error', details: { code: 'model_gated', param: 'base_model' } });
    expect(error.message).toBe(
      `base model org/gated: access must be granted first (HTTP 403): accept its terms at ${hub.endpoint}/org/gated, ` +
        'then set HF_TOKEN to a token of that account; the token that is set has no access',
    );
    expect(JSON.stringify(error) + String(error.stack)).not.toContain(secret);
    expect((await failure(fetchSnapshot(gated, { ...options, token: '' }))).message).toContain('HF_TOKEN is not set');
    await fetchSnapshot(gated, options);
  });

  test('a token that no header can carry is refused without being shown, and so is a misspelt option', async () => {
    for (const token of ['hf_secret\nx', 'hf_secret\u0007', '“hf_secret”', 'hf_secret of someone']) {
      const error = await failure(fetchSnapshot(id, { ...options, token }));
      expect(error).toMatchObject({ code: 'config_error', message: expect.stringContaining('HF_TOKEN: must be') });
      expect(JSON.stringify(error) + String(error.stack)).not.toContain('secret');
    }
    const misspelt = { ...options, cacheFolder: cacheDirectory };
    await expect(fetchSnapshot(id, misspelt)).rejects.toThrow('got cacheFolder');
  });

  test('a model or revision that is not there is named', async () => {
    hub.repos.set('org/private', { files, isPrivate: true });
    await expect(fetchSnapshot({ ...id, repo: 'org/private' }, { ...options, token: 'hf_other' })).rejects.toThrow(
      `base model org/private: must be a model of ${hub.endpoint} (HTTP 401); a private one needs HF_TOKEN`,
    );
    await expect(fetchSnapshot({ ...id, repo: 'org/none' }, options)).rejects.toThrow('(HTTP 404)');
    await expect(fetchSnapshot({ ...id, revision: 'v9' }, options)).rejects.toThrow(
      `base model org/tiny: revision must be a branch, tag or commit of ${hub.endpoint}/org/tiny, got v9`,
    );
  });

  test('a file that leaves its folder is refused', async () => {
    hub.repos.set('org/evil', {
      files: { ...texts, 'model.safetensors.index.json': '{"weight_map":{"a":"../../../x"}}', '../../../x': 'y' },
    });
    await expect(fetchSnapshot({ ...id, repo: 'org/evil' }, options)).rejects.toThrow(
      "must be a relative path without '..'",
    );
  });

  test('a cache folder that cannot be written is named', async () => {
    const file = join(cacheDirectory, 'file');
    await symlink('/dev/null', file);
    await expect(fetchSnapshot(id, { ...options, cacheDirectory: file })).rejects.toThrow(`${file}: must be a folder`);
  });
});
