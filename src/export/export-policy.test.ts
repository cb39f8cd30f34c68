/** What an export refuses, and that it then leaves nothing behind. */
import { spawnSync } from 'node:child_process';
import { appendFile, cp, mkdir, readdir, readFile, rm, stat, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { afterAll, describe, expect, test } from 'vitest';
import { createFixtureRun, fixtures, readFixture } from '../../test/export/fixture-run.ts';
import { writeRunFolder } from '../../test/export/run-folder.ts';
import { root } from '../../test/source-imports.ts';
import { expectSameBits } from '../../test/tolerance.ts';
import { AbortedError, CheckpointError, ConfigError, DataError, StorageError } from '../core/errors.ts';
import { isPresent, readJsonFile } from '../formats/atomic-files.ts';
import { openModel } from '../formats/model-source.ts';
import { readAdapterFiles } from '../formats/peft.ts';
import { findPolicy } from './find-policy.ts';
import { type ExportOptions, exportPolicy } from './index.ts';
import { checkRoom } from './output.ts';

const run = await createFixtureRun();
afterAll(run.remove);
const runs = join(run.folder, 'runs');
const agent = join(runs, 'default', 'models', 'agent');

/** The error of an export that must fail; whatever it wrote must be gone. */
async function failure(options: Partial<ExportOptions>): Promise<unknown> {
  const folder = join(run.folder, `failure-${Math.random()}`);
  await mkdir(folder);
  const base: ExportOptions = { path: runs, name: 'agent', format: 'gguf', out: join(folder, 'out') };
  const error = await exportPolicy({ ...base, ...options }).then(
    () => 'an export',
    (reason: unknown) => reason,
  );
  expect(await readdir(folder)).toEqual([]);
  return error;
}

/** A copy of the run to damage. */
async function copyRun(name: string): Promise<{ readonly path: string; readonly checkpoint: string }> {
  const path = join(run.folder, name);
  await cp(runs, path, { recursive: true });
  return { path, checkpoint: join(path, 'default', 'models', 'agent', 'checkpoints', '0001') };
}

describe('peft', () => {
  test("is the checkpoint's adapter, byte for byte", async () => {
    const { path, dtype, step } = await run.exportTo('peft', { format: 'peft' });
    expect({ dtype, step, files: (await readdir(path)).sort() }).toEqual({
      dtype: null,
      step: 1,
      files: ['adapter_config.json', 'adapter_model.safetensors'],
    });
    for (const name of await readdir(path)) {
      expect(await readFile(join(path, name))).toEqual(await readFixture(join('adapter', name)));
    }
    expect((await readAdapterFiles(path)).config).toMatchObject({ rank: 4, alpha: 6 });
  });
});

describe('safetensors', () => {
  test('shards have an index, and hold what one file holds', async () => {
    const one = await run.exportTo('one', { format: 'safetensors', dtype: 'f32' });
    const { path } = await run.exportTo('shards', { format: 'safetensors', dtype: 'f32', maxShardBytes: 8_000 });
    const names = (await readdir(path)).filter((name) => name.endsWith('.safetensors')).sort();
    expect(names.length).toBeGreaterThan(2);
    expect(names[0]).toBe(`model-00001-of-${String(names.length).padStart(5, '0')}.safetensors`);
    const index = (await readJsonFile(join(path, 'model.safetensors.index.json'))) as {
      readonly metadata: { readonly total_size: number };
      readonly weight_map: Readonly<Record<string, string>>;
    };
    const whole = await (await openModel(one.path)).readTensors();
    const parts = await (await openModel(path)).readTensors();
    expect(Object.keys(index.weight_map).sort()).toEqual([...whole.keys()].sort());
    expect(index.metadata.total_size).toBe([...whole.values()].reduce((sum, { data }) => sum + data.byteLength, 0));
    for (const [name, { data }] of whole) expectSameBits(parts.get(name)!.data, data, name);
  });

  test("keeps the base's dtype unless another is asked for, and says which in config.json", async () => {
    const kept = await run.exportTo('kept', { format: 'safetensors' });
    expect(kept.dtype).toBe('bf16');
    expect(await readJsonFile(join(kept.path, 'config.json'))).toMatchObject({ dtype: 'bfloat16' });
    const asked = await run.exportTo('asked', { format: 'safetensors', dtype: 'f16' });
    expect(await readJsonFile(join(asked.path, 'config.json'))).toMatchObject({ dtype: 'float16' });
    expect((await readdir(asked.path)).sort()).toEqual([
      'config.json',
      'model.safetensors',
      'tokenizer.json',
      'tokenizer_config.json',
    ]);
  });
});

test('the chat template that the model was registered with goes along', async () => {
  const path = join(run.folder, 'template');
  await writeRunFolder({ root: path, base: join(fixtures, 'base'), steps: [1], chatTemplate: 'ONLY {{ messages }}' });
  const folder = await exportPolicy({ path, name: 'agent', format: 'safetensors', out: join(path, 'hf') });
  expect((await openModel(folder.path)).tokenizerConfig.chat_template).toBe('ONLY {{ messages }}');
  const file = await exportPolicy({ path, name: 'agent', format: 'gguf', out: join(path, 'm.gguf') });
  expect((await openModel(file.path)).tokenizerConfig.chat_template).toBe('ONLY {{ messages }}');
});

describe('steps', () => {
  test('the newest unless another is asked for; one that is not there is refused with those that are', async () => {
    const path = join(run.folder, 'steps');
    await writeRunFolder({ root: path, base: join(fixtures, 'base'), steps: [0, 3, 12] });
    const exportStep = (out: string, step?: number) =>
      exportPolicy({ path, name: 'agent', format: 'peft', out: join(path, out), ...(step !== undefined && { step }) });
    expect((await exportStep('a')).step).toBe(12);
    expect((await exportStep('b', 3)).step).toBe(3);
    await expect(exportStep('c', 4)).rejects.toThrow(/must hold a checkpoint of step 4, got steps 0, 3, 12/);
  });

  test('what a server is writing beside them is left alone', async () => {
    const { path, checkpoint } = await copyRun('busy');
    const unfinished = join(checkpoint, '..', '.tmp-2-abc');
    await mkdir(unfinished);
    await writeFile(join(agent, 'lock'), `${process.pid}\n`);
    await exportPolicy({ path, name: 'agent', format: 'peft', out: join(path, 'out') });
    expect(await isPresent(unfinished)).toBe(true);
    await rm(join(agent, 'lock'));
  });
});

describe('refuses, and leaves nothing', () => {
  test.each([
    [{ format: 'onnx' as never }, /format must be one of peft, safetensors, gguf-lora, gguf, got 'onnx'/],
    [{ Dtype: 'f16' } as never, /known options are .*; got Dtype/],
    [{ dtype: 'q4_0' as never }, /dtype must be one of f32, f16, bf16, q8_0, got 'q4_0'/],
    [{ format: 'peft', dtype: 'f16' }, /dtype must be left out/],
    [{ format: 'safetensors', dtype: 'q8_0' }, /must have dtype f32, f16 or bf16/],
    [{ name: '../agent' }, /model must be 1–100 letters/],
    [{ name: 'nobody' }, /run folder: must hold model.json, got none in .*nobody/],
    [{ base: '/nowhere/at-all' }, /base model: must be a folder/],
  ] satisfies [Partial<ExportOptions>, RegExp][])('%o', async (options, message) => {
    const error = await failure(options);
    expect(error).toBeInstanceOf(ConfigError);
    expect((error as Error).message).toMatch(message);
  });

  test('another base model, by its hash', async () => {
    const other = join(run.folder, 'other');
    await cp(join(fixtures, 'base'), other, { recursive: true });
    const weights = join(other, 'model.safetensors');
    const bytes = await readFile(weights);
    bytes[bytes.length - 1]! ^= 1;
    await writeFile(weights, bytes);
    const error = await failure({ base: other });
    expect(error).toBeInstanceOf(ConfigError);
    expect(error).toMatchObject({ details: { path: other } });
    expect((error as Error).message).toMatch(/must have the weights that were trained on, SHA-256 \w{64}, got \w{64}/);
  });

  test('a base model that has moved, with how to name it', async () => {
    const path = join(run.folder, 'moved');
    const base = join(path, 'base');
    await cp(join(fixtures, 'base'), base, { recursive: true });
    await writeRunFolder({ root: path, base, steps: [1] });
    await rm(base, { recursive: true });
    const error = await failure({ path });
    expect(error).toBeInstanceOf(ConfigError);
    expect((error as Error).message).toMatch(/name where it is with --base/);
    await exportPolicy({
      path,
      name: 'agent',
      format: 'gguf',
      out: join(path, 'm.gguf'),
      base: join(fixtures, 'base'),
    });
  });

  test('a checkpoint that is damaged', async () => {
    const { path, checkpoint } = await copyRun('damaged');
    await appendFile(join(checkpoint, 'adapter_model.safetensors'), 'x');
    const error = await failure({ path });
    expect(error).toBeInstanceOf(CheckpointError);
    expect((error as Error).message).toMatch(/adapter_model.safetensors: must have 8392 bytes, got 8393/);
  });

  test('values that f16 cannot hold', async () => {
    const { path, checkpoint } = await copyRun('large');
    const base = join(path, 'base');
    await cp(join(fixtures, 'base'), base, { recursive: true });
    const weights = await readFile(join(base, 'model.safetensors'));
    const firstValue = 8 + Number(weights.readBigUInt64LE(0)); // of lm_head
    weights.writeUInt16LE(0x4780, firstValue); // 65,536 in bfloat16
    await writeFile(join(base, 'model.safetensors'), weights);
    await rm(join(checkpoint, '..', '..'), { recursive: true });
    await writeRunFolder({ root: path, base, steps: [1], strength: 0 });
    const error = await failure({ path, dtype: 'f16' });
    expect(error).toBeInstanceOf(DataError);
    expect((error as Error).message).toMatch(/values of f16 must be at most 65504, got 65536; use bf16 or f32/);
  });

  test('an abort in the middle', async () => {
    const stop = new AbortController();
    const onProgress = (): void => stop.abort();
    expect(await failure({ signal: stop.signal, onProgress })).toBeInstanceOf(AbortedError);
    const folder = { format: 'safetensors', signal: stop.signal, onProgress } as const;
    expect(await failure(folder)).toBeInstanceOf(AbortedError);
  });

  test('more than the disk has room for, with both numbers', async () => {
    const output = { path: join(run.folder, 'huge'), kind: 'file', isForced: false } as const;
    const error = await checkRoom(output, 1e18).catch((reason: unknown) => reason);
    expect(error).toBeInstanceOf(StorageError);
    expect(error).toMatchObject({ details: { code: 'disk_full', neededBytes: 1e18, freeBytes: expect.any(Number) } });
  });

  test.skipIf(process.platform === 'win32')('a file that the system lets grow no further', async () => {
    const folder = join(run.folder, 'full');
    await mkdir(folder);
    const main = join(root, 'dist', 'src', 'cli', 'main.js');
    const args = [
      'export',
      'agent',
      '--path',
      runs,
      '--format',
      'gguf',
      '--dtype',
      'f32',
      '--out',
      join(folder, 'm.gguf'),
    ];
    // 16 blocks of 512 bytes: less than the tensors, more than the header.
    const script = `ulimit -f 16; exec "${process.execPath}" "${main}" ${args.map((arg) => `"${arg}"`).join(' ')}`;
    const { status, stderr } = spawnSync('sh', ['-c', script], { encoding: 'utf8' });
    expect({ status, stderr }).toMatchObject({
      status: 1,
      stderr: expect.stringMatching(/^art: .*m\.gguf: must be writable, got EFBIG/),
    });
    expect(await readdir(folder)).toEqual([]);
  });
});

describe('an output that exists', () => {
  test('is refused, and stays', async () => {
    const out = join(run.folder, 'there.gguf');
    await writeFile(out, 'mine');
    await expect(run.exportTo('there.gguf', { format: 'gguf' })).rejects.toThrow(
      /out must not exist yet, got .*--force/,
    );
    expect(await readFile(out, 'utf8')).toBe('mine');
    const { bytes } = await run.exportTo('there.gguf', { format: 'gguf', force: true });
    expect((await stat(out)).size).toBe(bytes);
  });

  test('a folder is replaced only if it is a model or an adapter', async () => {
    await run.exportTo('folder', { format: 'peft' });
    await run.exportTo('folder', { format: 'safetensors', force: true });
    expect(await readdir(join(run.folder, 'folder'))).not.toContain('adapter_config.json');
    const home = join(run.folder, 'home');
    await mkdir(join(home, 'photos'), { recursive: true });
    await writeFile(join(home, 'config.json'), '{}');
    await expect(run.exportTo('home', { format: 'peft', force: true })).rejects.toThrow(
      /replaces only a folder of a model/,
    );
    expect((await readdir(home)).sort()).toEqual(['config.json', 'photos']);
    await expect(run.exportTo('home', { format: 'gguf', force: true })).rejects.toThrow(/out must be a file/);
    expect((await readdir(run.folder)).filter((name) => name.startsWith('.'))).toEqual([]);
  });

  test('what the export reads is never replaced', async () => {
    const source = { path: join(run.folder, 'runs'), name: 'agent' };
    const { runDirectory, directory, base } = await findPolicy(source);
    const before = await readdir(directory);
    for (const out of [directory, join(runDirectory, 'exported')]) {
      await expect(exportPolicy({ ...source, out, format: 'peft', force: true })).rejects.toThrow(
        /out must stand apart from/,
      );
    }
    for (const out of [join(runDirectory, 'exported'), join(base.path, 'merged')]) {
      await expect(exportPolicy({ ...source, out, format: 'safetensors' })).rejects.toThrow(
        /out must stand apart from/,
      );
    }
    expect(await readdir(directory)).toEqual(before);
  });
});
