/** Weights of model folders: shards and their index, narrow formats, values that are not finite, and the memory that reading takes. */
import { execFile } from 'node:child_process';
import { mkdir, mkdtemp, open, readFile, rm, truncate, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { DataError } from '../core/errors.ts';
import { readModelTensors, type SafetensorsTensor, streamModelTensors, writeSafetensors } from './safetensors.ts';

let folder = '';
beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'art-model-'));
});
afterEach(() => rm(folder, { recursive: true }));

const bytesOf = (values: Float32Array | Uint16Array): Uint8Array => new Uint8Array(values.buffer);
const f32 = (...values: number[]): SafetensorsTensor => ({
  dtype: 'F32',
  shape: [values.length],
  data: bytesOf(Float32Array.from(values)),
});
const halves = (dtype: 'F16' | 'BF16', ...bits: number[]): SafetensorsTensor => ({
  dtype,
  shape: [bits.length],
  data: bytesOf(Uint16Array.from(bits)),
});

const shards = {
  'model-00001-of-00002.safetensors': { a: f32(0.1, -2), b: halves('F16', 0x3c00, 0x0001, 0x8000) },
  'model-00002-of-00002.safetensors': { c: halves('BF16', 0x3f80, 0xc2ff), d: f32(7) },
};
const firstShard = 'model-00001-of-00002.safetensors';
const secondShard = 'model-00002-of-00002.safetensors';
const weightMap: Readonly<Record<string, unknown>> = { a: firstShard, b: firstShard, c: secondShard, d: secondShard };

async function writeSharded(map: unknown = { metadata: { total_size: 99 }, weight_map: weightMap }): Promise<void> {
  for (const [name, tensors] of Object.entries(shards)) {
    await writeSafetensors(join(folder, name), new Map(Object.entries(tensors)));
  }
  await writeFile(join(folder, 'model.safetensors.index.json'), JSON.stringify(map));
}

async function refuse(message: string): Promise<void> {
  const reading = readModelTensors(folder);
  await expect(reading).rejects.toThrow(DataError);
  await expect(reading).rejects.toThrow(message);
}

describe('shards', () => {
  test('all tensors of all shards, each as float32', async () => {
    await writeSharded();
    expect(await readModelTensors(folder)).toEqual(
      new Map([
        ['a', { shape: [2], data: Float32Array.of(0.1, -2) }],
        ['b', { shape: [3], data: Float32Array.of(1, 2 ** -24, -0) }],
        ['c', { shape: [2], data: Float32Array.of(1, -127.5) }],
        ['d', { shape: [1], data: Float32Array.of(7) }],
      ]),
    );
  });

  test('a shard that is not there', async () => {
    await writeSharded();
    await rm(join(folder, secondShard));
    await refuse(`${join(folder, 'model.safetensors.index.json')}: every shard must be there, missing ${secondShard}`);
  });

  test('a shard cut off, in its data and in its header', async () => {
    await writeSharded();
    const path = join(folder, secondShard);
    const { length } = await readFile(path);
    await truncate(path, length - 1);
    await refuse(`${path}: tensor "c": must end within the 7 bytes of data, got 8; the file is truncated`);
    await truncate(path, 40);
    await refuse(`${path}: header must end within the file of 40 bytes`);
    await truncate(path, 5);
    await refuse(`${path}: must begin with 8 bytes of header length, got a file of 5 bytes`);
  });

  test('a tensor that its shard does not hold, and one that the index places elsewhere', async () => {
    await writeSharded({ weight_map: { ...weightMap, e: secondShard } });
    await refuse(`every tensor must be in its shard, missing e in ${secondShard}`);
    await writeSharded({ weight_map: { ...weightMap, d: firstShard } });
    await refuse(`every tensor must be in its shard, missing d in ${firstShard}`);
    const { d: _, ...withoutD } = weightMap;
    await writeSharded({ weight_map: withoutD });
    await refuse(`${join(folder, secondShard)}: must hold the tensors that`);
  });

  test('an index that is not one', async () => {
    await writeSharded({ weight_map: { ...weightMap, d: '../other/model.safetensors' } });
    await refuse('shards must be .safetensors files of the same folder, got "../other/model.safetensors" for d');
    await writeSharded({ weight_map: { ...weightMap, d: 3 } });
    await refuse('shards must be .safetensors files of the same folder, got 3 for d');
    for (const json of [{}, [], null, { weight_map: {} }, { weight_map: 'x' }]) {
      await writeSharded(json);
      await refuse('model.safetensors.index.json: must have a weight_map from tensor names to shards');
    }
    await writeFile(join(folder, 'model.safetensors.index.json'), '{');
    await refuse('model.safetensors.index.json: must be JSON');
    await mkdir(join(folder, 'empty'));
    await expect(readModelTensors(join(folder, 'empty'))).rejects.toThrow(
      'must hold model.safetensors or model.safetensors.index.json, got neither',
    );
  });
});

describe('values', () => {
  const write = (tensor: SafetensorsTensor): Promise<void> =>
    writeSafetensors(
      join(folder, 'model.safetensors'),
      new Map([
        ['fine', f32(1)],
        ['model.norm.weight', tensor],
      ]),
    );

  test.each<[string, SafetensorsTensor, string]>([
    ['NaN of F32', f32(1, 2, Number.NaN), 'got NaN in model.norm.weight at value 2'],
    ['infinity of F16', halves('F16', 0x7bff, 0xfc00), 'got -Infinity in model.norm.weight at value 1'],
    ['NaN of F16', halves('F16', 0x7e01), 'got NaN in model.norm.weight at value 0'],
    ['infinity of BF16', halves('BF16', 0x7f7f, 0x0001, 0x7f80), 'got Infinity in model.norm.weight at value 2'],
    [
      'integers',
      { dtype: 'I32', shape: [1], data: new Uint8Array(4) },
      'tensor "model.norm.weight": must be F32, F16 or BF16',
    ],
  ])('%s', async (_name, tensor, message) => {
    await write(tensor);
    await refuse(message);
  });

  test('a tensor longer than what is read at once is whole, and its last value is checked as well', async () => {
    const count = 2_500_001;
    const bits = Uint16Array.from({ length: count }, (_, i) => 0x3f00 + (i % 200));
    const file = (data: Uint16Array): SafetensorsTensor => ({ dtype: 'BF16', shape: [count], data: bytesOf(data) });
    await write(file(bits));
    const values = (await readModelTensors(folder)).get('model.norm.weight')!.data;
    expect(values.length).toBe(count);
    const read = new Uint32Array(values.buffer);
    expect(bits.findIndex((half, i) => read[i] !== half << 16)).toBe(-1);
    bits[count - 1] = 0xff80;
    await write(file(bits));
    await refuse(`got -Infinity in model.norm.weight at value ${count - 1}`);
  });

  test('one tensor at a time: a reader that stops has read no further', async () => {
    await write(f32(Number.NaN));
    for await (const [name] of streamModelTensors(folder)) {
      expect(name).toBe('fine');
      break;
    }
  });
});

/** Runs in a process of its own, whose memory nothing else moves; from the build, since it is JavaScript. */
const measure = `
  const { readModelTensors } = await import(process.argv[2]);
  const before = process.memoryUsage.rss();
  const tensors = await readModelTensors(process.argv[1]);
  const values = [...tensors.values()].reduce((sum, { data }) => sum + data.length, 0);
  console.log(JSON.stringify({ values, growth: process.resourceUsage().maxRSS * 1024 - before }));
`;

test('reading 200 MB of BF16 takes little more memory than the float32 values', async () => {
  const shapes = { 'model.embed_tokens.weight': [60_000, 1000], 'model.layers.0.mlp.up_proj.weight': [40_000, 1000] };
  let end = 0;
  const entries = Object.entries(shapes).map(([name, [rows, width]]) => {
    const begin = end;
    end += rows! * width! * 2;
    return [name, { dtype: 'BF16', shape: [rows, width], data_offsets: [begin, end] }];
  });
  const json = Buffer.from(JSON.stringify(Object.fromEntries(entries)));
  const prefix = Buffer.alloc(8);
  prefix.writeBigUInt64LE(BigInt(json.length));
  const file = await open(join(folder, 'model.safetensors'), 'w');
  await file.write(Buffer.concat([prefix, json]));
  await file.truncate(8 + json.length + end); // a hole: zeros that take no disk
  await file.close();
  const module = new URL('../../dist/src/formats/safetensors.js', import.meta.url).href;
  const args = ['--input-type=module', '--eval', measure, folder, module];
  const { stdout } = await promisify(execFile)(process.execPath, args, {
    cwd: fileURLToPath(new URL('.', import.meta.url)),
  });
  const { values, growth } = JSON.parse(stdout) as { values: number; growth: number };
  expect(values).toBe(100e6);
  expect(growth).toBeGreaterThan(0.95 * 4 * values);
  // Pieces of 4 MiB that wait for the garbage collector are the rest.
  expect(growth).toBeLessThan(1.25 * 4 * values);
});
