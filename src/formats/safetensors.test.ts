import { mkdtemp, readdir, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import fc from 'fast-check';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { DataError } from '../core/errors.ts';
import {
  parseSafetensors,
  readModelTensors,
  readSafetensors,
  readSafetensorsHeader,
  type SafetensorsDtype,
  type SafetensorsTensor,
  serializeSafetensors,
  toFloat32,
  toSafetensors,
  writeSafetensors,
} from './safetensors.ts';
import { dtypeBytes } from './safetensors-header.ts';

/** Written by Python safetensors 0.8.0 (torch 2.15.0), `save(tensors, metadata={'format': 'pt'})`. */
const officialBytes = Buffer.from(
  [
    '8AEAAAAAAAB7Il9fbWV0YWRhdGFfXyI6eyJmb3JtYXQiOiJwdCJ9LCJhIjp7ImR0eXBlIjoiSTY0Iiwic2hhcGUiOlsyXSwiZGF0',
    'YV9vZmZzZXRzIjpbMCwxNl19LCJkIjp7ImR0eXBlIjoiRjY0Iiwic2hhcGUiOlsxXSwiZGF0YV9vZmZzZXRzIjpbMTYsMjRdfSwi',
    'YiI6eyJkdHlwZSI6IkYzMiIsInNoYXBlIjpbMSwyXSwiZGF0YV9vZmZzZXRzIjpbMjQsMzJdfSwic2NhbGFyIjp7ImR0eXBlIjoi',
    'RjMyIiwic2hhcGUiOltdLCJkYXRhX29mZnNldHMiOlszMiwzNl19LCJhLsOpIjp7ImR0eXBlIjoiQkYxNiIsInNoYXBlIjpbMl0s',
    'ImRhdGFfb2Zmc2V0cyI6WzM2LDQwXX0sImhhbGYiOnsiZHR5cGUiOiJGMTYiLCJzaGFwZSI6WzFdLCJkYXRhX29mZnNldHMiOls0',
    'MCw0Ml19LCJieXRlIjp7ImR0eXBlIjoiVTgiLCJzaGFwZSI6WzFdLCJkYXRhX29mZnNldHMiOls0Miw0M119LCJtYXNrIjp7ImR0',
    'eXBlIjoiQk9PTCIsInNoYXBlIjpbMl0sImRhdGFfb2Zmc2V0cyI6WzQzLDQ1XX19ICAgICAgAwAAAAAAAAD8/////////5qZmZmZ',
    'mbk/AADAPwAAAMAAAABAgD8AQAA4BwEA',
  ].join(''),
  'base64',
);

let folder = '';
beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'art-safetensors-'));
});
afterAll(() => rm(folder, { recursive: true }));

/** A file with this header text and `dataBytes` zero bytes. */
function fileOf(json: string, dataBytes: number, headerLength?: bigint): Uint8Array {
  const text = Buffer.from(json);
  const bytes = Buffer.alloc(8 + text.length + dataBytes);
  bytes.writeBigUInt64LE(headerLength ?? BigInt(text.length));
  text.copy(bytes, 8);
  return bytes;
}

function tensor(dtype: SafetensorsDtype, shape: readonly number[], values: ArrayLike<number>): SafetensorsTensor {
  return { dtype, shape, data: Uint8Array.from(values) };
}

const tensorArbitrary: fc.Arbitrary<SafetensorsTensor> = fc
  .record({
    dtype: fc.constantFrom(...(Object.keys(dtypeBytes) as SafetensorsDtype[])),
    shape: fc.array(fc.integer({ min: 0, max: 4 }), { maxLength: 3 }),
  })
  .chain(({ dtype, shape }) => {
    const length = shape.reduce((product, size) => product * size, dtypeBytes[dtype]);
    return fc.uint8Array({ minLength: length, maxLength: length }).map((data) => ({ dtype, shape, data }));
  });
const fileArbitrary: fc.Arbitrary<[string, SafetensorsTensor][]> = fc.uniqueArray(
  fc.tuple(
    fc.string({ unit: 'binary', maxLength: 6 }).filter((name) => name !== '__metadata__'),
    tensorArbitrary,
  ),
  { selector: ([name]) => name, maxLength: 6 },
);

test('bytes of the official library: parsed and re-serialised to the same bytes', () => {
  const file = parseSafetensors(officialBytes);
  expect(file.metadata).toEqual({ format: 'pt' });
  expect([...file.tensors.keys()]).toEqual(['a', 'd', 'b', 'scalar', 'a.é', 'half', 'byte', 'mask']);
  expect(file.tensors.get('scalar')?.shape).toEqual([]);
  const shuffled = new Map([...file.tensors].reverse());
  expect(Buffer.from(serializeSafetensors(shuffled, file.metadata)).equals(officialBytes)).toBe(true);
});

test('any file survives a round trip, whatever the order of its tensors', () => {
  fc.assert(
    fc.property(fileArbitrary, fc.dictionary(fc.string(), fc.string()), (entries, metadata) => {
      const bytes = serializeSafetensors(new Map(entries), metadata);
      const again = serializeSafetensors(new Map([...entries].reverse()), metadata);
      expect(Buffer.compare(bytes, again)).toBe(0);
      const file = parseSafetensors(bytes);
      expect(file.metadata).toEqual({ ...metadata });
      expect(file.tensors.size).toBe(entries.length);
      for (const [name, { dtype, shape, data }] of entries) {
        const read = file.tensors.get(name);
        expect(read && { ...read, data: [...read.data] }).toEqual({ dtype, shape, data: [...data] });
      }
    }),
    { numRuns: 200 },
  );
});

test('random damage gives a DataError or data of the right size, never anything else', () => {
  const damage = fc.array(fc.tuple(fc.nat(), fc.integer({ min: 0, max: 255 })), { minLength: 1, maxLength: 4 });
  fc.assert(
    fc.property(fileArbitrary, damage, fc.option(fc.nat()), (entries, changes, cut) => {
      const bytes = serializeSafetensors(new Map(entries)).slice();
      for (const [position, value] of changes) bytes[position % bytes.length] = value;
      const damaged = cut === null ? bytes : bytes.subarray(0, cut % bytes.length);
      try {
        for (const { dtype, shape, data } of parseSafetensors(damaged).tensors.values()) {
          expect(data.length).toBe(shape.reduce((product, size) => product * size, dtypeBytes[dtype]));
        }
      } catch (error) {
        expect(error).toBeInstanceOf(DataError);
      }
    }),
    { numRuns: 1000 },
  );
});

const f32 = (rest: string): string => `{"w":{"dtype":"F32",${rest}}}`;
test.each([
  ['fewer than 8 bytes', Buffer.alloc(5), 'must begin with 8 bytes of header length, got a file of 5 bytes'],
  ['header past the end', fileOf('{}', 0, 3n), 'header must end within the file of 10 bytes, got header length 3'],
  ['huge header', fileOf('{}', 0, 2n ** 63n), 'header must be at most 100000000 bytes, got 9223372036854775808'],
  ['no header', fileOf('', 0), 'header must begin with "{", got byte none'],
  ['invalid JSON', fileOf('{"w":}', 0), 'header must be JSON in UTF-8'],
  ['byte order mark', fileOf('\ufeff{}', 0), 'header must begin with "{", got byte 239'],
  ['invalid UTF-8', Buffer.from([3, 0, 0, 0, 0, 0, 0, 0, 0x7b, 0xff, 0x7d]), 'header must be JSON in UTF-8'],
  ['duplicate tensor', fileOf('{"w":1,"\\u0077":1}', 0), 'must not repeat a key, got "w" twice'],
  ['duplicate key', fileOf('{"w":{"dtype":"U8","dtype":"F32"}}', 0), 'must not repeat a key, got "dtype" twice'],
  ['unknown dtype', fileOf('{"w":{"dtype":"F8"}}', 0), 'tensor "w": dtype must be one of I64, F64, F32'],
  ['inherited name as dtype', fileOf('{"w":{"dtype":"toString"}}', 0), 'dtype must be one of'],
  ['deep nesting', fileOf(`{"w":{"dtype":${'['.repeat(1e5)}${']'.repeat(1e5)}}}`, 0), 'dtype must be one of'],
  ['unknown key', fileOf(f32('"x":1'), 0), 'tensor "w": unknown key "x"'],
  ['negative size', fileOf(f32('"shape":[-1],"data_offsets":[0,4]'), 4), 'safe integers ≥ 0, got -1'],
  ['fraction', fileOf(f32('"shape":[0.5],"data_offsets":[0,2]'), 2), 'safe integers ≥ 0, got 0.5'],
  ['text as size', fileOf(f32('"shape":["1"],"data_offsets":[0,4]'), 4), 'safe integers ≥ 0, got "1"'],
  ['unsafe size', fileOf(f32('"shape":[9007199254740993],"data_offsets":[0,4]'), 4), 'safe integers ≥ 0'],
  [
    'product too large',
    fileOf(f32('"shape":[4294967296,4294967296],"data_offsets":[0,4]'), 4),
    'number of elements must be a safe integer, got shape [4294967296, 4294967296]',
  ],
  ['bytes too many', fileOf(f32('"shape":[9007199254740991],"data_offsets":[0,4]'), 4), 'number of bytes must be'],
  ['span ≠ size', fileOf(f32('"shape":[2],"data_offsets":[0,4]'), 4), 'F32 of shape [2] takes 8 bytes, got 4'],
  ['reversed span', fileOf(f32('"shape":[0],"data_offsets":[4,0]'), 4), 'must be [begin, end] with 0 ≤ begin ≤ end'],
  ['past the end', fileOf(f32('"shape":[1],"data_offsets":[0,4]'), 3), 'must end within the 3 bytes of data, got 4'],
  ['hole', fileOf(f32('"shape":[1],"data_offsets":[1,5]'), 5), 'must leave no hole after 0, got begin 1'],
  ['rest', fileOf(f32('"shape":[1],"data_offsets":[0,4]'), 5), 'must cover the data exactly, got 4 of 5 bytes'],
  [
    'overlap',
    fileOf(
      '{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}}',
      3,
    ),
    'tensor "b": must not overlap data up to 2, got begin 1',
  ],
  ['metadata', fileOf('{"__metadata__":{"a":1}}', 0), '__metadata__.a must be a string, got 1'],
])('refuses: %s', (_, bytes, message) => {
  expect(() => parseSafetensors(bytes, 'x.safetensors')).toThrow(DataError);
  expect(() => parseSafetensors(bytes, 'x.safetensors')).toThrow(message);
  expect(() => parseSafetensors(bytes, 'x.safetensors')).toThrow(/^x\.safetensors: /);
});

test('refuses to write a tensor whose data does not fit its shape', () => {
  const write = (value: SafetensorsTensor, name = 'w') => serializeSafetensors(new Map([[name, value]]));
  expect(() => write(tensor('F32', [2], [0]))).toThrow('F32 of shape [2] takes 8 bytes, got 1');
  expect(() => write(tensor('U8', [1], [0]), '__metadata__')).toThrow('the name is reserved');
});

test('F16 and BF16 widen exactly, with zeros, subnormals, infinities and NaN', () => {
  const bytes = (...halves: number[]) => new Uint8Array(Uint16Array.from(halves).buffer);
  expect([
    ...toFloat32('F16', bytes(0x3c00, 0xc000, 0, 0x8000, 1, 0x83ff, 0x0400, 0x7bff, 0xfc00, 0x7e00, 0x3555), 'x'),
  ]).toEqual([1, -2, 0, -0, 2 ** -24, -1023 * 2 ** -24, 2 ** -14, 65504, -Infinity, NaN, 1365 / 4096]);
  expect([...toFloat32('BF16', bytes(0x3f80, 0xc000, 0x7f80, 0x7fc0, 1), 'x')]).toEqual([
    1,
    -2,
    Infinity,
    NaN,
    2 ** -133,
  ]);
});

test('a file on disk is read by ranges, and written without leaving temporary files', async () => {
  const path = join(folder, 'model.safetensors');
  const weights = new Map([
    ['b', { shape: [2, 2], data: Float32Array.of(1, 2, 3, -0) }],
    ['a', { shape: [1], data: Float32Array.of(0.1) }],
  ]);
  await writeSafetensors(path, toSafetensors(weights), { format: 'pt' });
  await writeSafetensors(path, toSafetensors(weights), { format: 'pt' });
  expect(await readdir(folder)).toEqual(['model.safetensors']);
  expect(await readSafetensors(path)).toEqual(weights);
  expect(await readModelTensors(folder)).toEqual(weights);
  const header = await readSafetensorsHeader(path);
  expect(header.entries.get('b')).toEqual({ dtype: 'F32', shape: [2, 2], begin: 4, end: 20 });
  expect(header.dataStart % 8).toBe(0);
});

test('errors of a file on disk name it', async () => {
  const path = join(folder, 'broken');
  await expect(readSafetensors(path)).rejects.toThrow(`${path}: must be a readable file`);
  await writeFile(path, officialBytes.subarray(0, -1));
  await expect(readSafetensorsHeader(path)).rejects.toThrow(`${path}: tensor "mask": must end within`);
  await writeFile(path, officialBytes);
  await expect(readSafetensors(path)).rejects.toThrow(`${path}: tensor "a": must be F32, F16 or BF16`);
});
