/**
 * safetensors files: parse, read by ranges, and write with the bytes of the official library. Layer 1.
 * Source: github.com/huggingface/safetensors, safetensors/src/tensor.rs. Sharded models (index.json) are read by
 * `readModelTensors`. Assumes a little-endian processor, as every platform of Node.js that we support has.
 */
import { type FileHandle, open } from 'node:fs/promises';
import { join } from 'node:path';
import { DataError, messageOf } from '../core/errors.ts';
import { isMissing, readJsonFile, writeFileAtomic } from './atomic-files.ts';
import {
  countElements,
  dtypeBytes,
  isDtype,
  maxHeaderBytes,
  parseHeader,
  readHeaderLength,
  type SafetensorsDtype,
  type SafetensorsEntry,
  type SafetensorsHeader,
} from './safetensors-header.ts';

export type { SafetensorsDtype, SafetensorsEntry, SafetensorsHeader };

export interface SafetensorsTensor {
  readonly dtype: SafetensorsDtype;
  readonly shape: readonly number[];
  /** Little-endian, row-major; a view of the parsed bytes, so it may be unaligned. */
  readonly data: Uint8Array;
}

export interface SafetensorsFile {
  readonly tensors: ReadonlyMap<string, SafetensorsTensor>;
  readonly metadata: Readonly<Record<string, string>>;
}

export interface FloatTensor {
  readonly shape: readonly number[];
  readonly data: Float32Array;
}

/** Tensors of a whole file in memory, in the order of their data. `source` names it in errors. Throws DataError. */
export function parseSafetensors(bytes: Uint8Array, source = 'safetensors'): SafetensorsFile {
  const length = readHeaderLength(bytes.subarray(0, 8), bytes.length, source);
  const header = parseHeader(bytes.subarray(8, 8 + length), bytes.length, source);
  const tensors = new Map<string, SafetensorsTensor>();
  for (const [name, { dtype, shape, begin, end }] of header.entries) {
    tensors.set(name, { dtype, shape, data: bytes.subarray(header.dataStart + begin, header.dataStart + end) });
  }
  return { tensors, metadata: header.metadata };
}

/** Names, dtypes, shapes and spans without reading the data. Throws DataError. */
export async function readSafetensorsHeader(path: string): Promise<SafetensorsHeader> {
  return withFile(path, (file) => readHeader(file, path));
}

/** All tensors as new Float32Arrays; F32 bit-exact, F16 and BF16 widened exactly. Throws DataError on any other dtype. */
export async function readSafetensors(path: string): Promise<ReadonlyMap<string, FloatTensor>> {
  return withFile(path, async (file) => {
    const header = await readHeader(file, path);
    const tensors = new Map<string, FloatTensor>();
    for (const [name, entry] of header.entries) {
      const bytes = await readRange(file, header.dataStart + entry.begin, entry.end - entry.begin, path);
      tensors.set(name, { shape: entry.shape, data: toFloat32(entry.dtype, bytes, `${path}: tensor "${name}"`) });
    }
    return tensors;
  });
}

/** Tensors of a model folder: `model.safetensors`, or the shards named in `model.safetensors.index.json`. Throws DataError. */
export async function readModelTensors(directory: string): Promise<ReadonlyMap<string, FloatTensor>> {
  const indexPath = join(directory, 'model.safetensors.index.json');
  let index: unknown;
  try {
    return await readSafetensors(join(directory, 'model.safetensors'));
  } catch (error) {
    if (!(error instanceof DataError && isMissing(error.cause))) throw error;
    index = await readJsonFile(indexPath);
  }
  const weightMap = (index as { weight_map?: Record<string, string> } | null)?.weight_map;
  if (weightMap === undefined) throw new DataError(`${indexPath}: must have a weight_map`);
  const tensors = new Map<string, FloatTensor>();
  for (const shard of new Set(Object.values(weightMap))) {
    if (/[\\/]/.test(shard)) throw new DataError(`${indexPath}: shards must lie in the same folder, got ${shard}`);
    for (const [name, tensor] of await readSafetensors(join(directory, shard))) tensors.set(name, tensor);
  }
  const missing = Object.keys(weightMap).find((name) => !tensors.has(name));
  if (missing !== undefined) throw new DataError(`${indexPath}: every tensor must be in its shard, missing ${missing}`);
  return tensors;
}

/**
 * The bytes of a file: deterministic, whatever the order of `tensors`, and equal to the official library's for the same
 * tensors. Order of the data: widest dtype first, then names by their UTF-8 bytes. Throws DataError.
 */
export function serializeSafetensors(
  tensors: ReadonlyMap<string, SafetensorsTensor>,
  metadata: Readonly<Record<string, string>> = {},
): Uint8Array {
  return Buffer.concat(serializeParts(tensors, metadata));
}

/** Writes the file atomically: temporary name, fsync, rename. Throws DataError. */
export async function writeSafetensors(
  path: string,
  tensors: ReadonlyMap<string, SafetensorsTensor>,
  metadata: Readonly<Record<string, string>> = {},
): Promise<void> {
  await writeFileAtomic(path, serializeParts(tensors, metadata));
}

/** F32 tensors for `serializeSafetensors`: views of the given data, no copy. */
export function toSafetensors(tensors: ReadonlyMap<string, FloatTensor>): ReadonlyMap<string, SafetensorsTensor> {
  const result = new Map<string, SafetensorsTensor>();
  for (const [name, { shape, data }] of tensors) {
    const bytes = new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
    result.set(name, { dtype: 'F32', shape, data: bytes });
  }
  return result;
}

/** Element values as a new Float32Array; exact for F32, F16 and BF16. Throws DataError on any other dtype. */
export function toFloat32(dtype: SafetensorsDtype, bytes: Uint8Array, what: string): Float32Array {
  if (dtype !== 'F32' && dtype !== 'F16' && dtype !== 'BF16') {
    throw new DataError(`${what}: must be F32, F16 or BF16 to be read as float32, got ${dtype}`);
  }
  const copy = bytes.slice().buffer;
  if (dtype === 'F32') return new Float32Array(copy);
  const halves = new Uint16Array(copy);
  const bits = new Uint32Array(halves.length);
  const widen = dtype === 'BF16' ? (half: number) => half << 16 : float16ToFloat32Bits;
  for (let i = 0; i < halves.length; i++) bits[i] = widen(halves[i] as number);
  return new Float32Array(bits.buffer);
}

function float16ToFloat32Bits(half: number): number {
  const sign = (half & 0x8000) << 16;
  const exponent = (half >>> 10) & 0x1f;
  const fraction = half & 0x3ff;
  if (exponent === 0x1f) return sign | 0x7f800000 | (fraction << 13);
  if (exponent !== 0) return sign | ((exponent + 112) << 23) | (fraction << 13);
  if (fraction === 0) return sign;
  // Subnormal half: fraction · 2⁻²⁴, a normal float32 whose leading bit is dropped.
  const shift = Math.clz32(fraction) - 21;
  return sign | ((113 - shift) << 23) | (((fraction << shift) & 0x3ff) << 13);
}

function serializeParts(
  tensors: ReadonlyMap<string, SafetensorsTensor>,
  metadata: Readonly<Record<string, string>>,
): Uint8Array[] {
  const rank = (dtype: SafetensorsDtype): number => Object.keys(dtypeBytes).indexOf(dtype);
  const sorted = [...tensors]
    .map(([name, tensor]) => ({ name, tensor, key: Buffer.from(name) }))
    .sort((a, b) => rank(a.tensor.dtype) - rank(b.tensor.dtype) || Buffer.compare(a.key, b.key));
  const fields: string[] = [];
  const names = Object.keys(metadata).sort();
  if (names.length > 0) {
    const pairs = names.map((name) => `${JSON.stringify(name)}:${JSON.stringify(metadata[name])}`);
    fields.push(`"__metadata__":{${pairs.join(',')}}`);
  }
  let offset = 0;
  for (const { name, tensor } of sorted) {
    checkTensor(name, tensor);
    const end = offset + tensor.data.length;
    const { dtype, shape } = tensor;
    fields.push(`${JSON.stringify(name)}:${JSON.stringify({ dtype, shape, data_offsets: [offset, end] })}`);
    offset = end;
  }
  const json = Buffer.from(`{${fields.join(',')}}`);
  const header = Buffer.alloc(8 + Math.ceil(json.length / 8) * 8, ' ');
  if (header.length - 8 > maxHeaderBytes) {
    throw new DataError(`safetensors: header must be at most ${maxHeaderBytes} bytes, got ${header.length - 8}`);
  }
  header.writeBigUInt64LE(BigInt(header.length - 8));
  json.copy(header, 8);
  return [header, ...sorted.map(({ tensor }) => tensor.data)];
}

function checkTensor(name: string, { dtype, shape, data }: SafetensorsTensor): void {
  const what = `safetensors: tensor ${JSON.stringify(name)}`;
  if (name === '__metadata__') throw new DataError(`${what}: the name is reserved`);
  if (!isDtype(dtype)) throw new DataError(`${what}: unknown dtype ${JSON.stringify(dtype)}`);
  const bytes = countElements(shape, what) * dtypeBytes[dtype];
  if (data.length !== bytes) {
    throw new DataError(`${what}: ${dtype} of shape [${shape.join(', ')}] takes ${bytes} bytes, got ${data.length}`);
  }
}

async function withFile<T>(path: string, use: (file: FileHandle) => Promise<T>): Promise<T> {
  let file: FileHandle;
  try {
    file = await open(path, 'r');
  } catch (cause) {
    throw new DataError(`${path}: must be a readable file, got ${messageOf(cause)}`, { cause });
  }
  try {
    return await use(file);
  } finally {
    await file.close();
  }
}

async function readHeader(file: FileHandle, path: string): Promise<SafetensorsHeader> {
  const { size } = await file.stat();
  const prefix = await readRange(file, 0, Math.min(8, size), path);
  const length = readHeaderLength(prefix, size, path);
  return parseHeader(await readRange(file, 8, length, path), size, path);
}

async function readRange(file: FileHandle, start: number, length: number, path: string): Promise<Uint8Array> {
  const bytes = new Uint8Array(length);
  // One read of Node.js is limited to 2³¹ − 1 bytes.
  const chunk = 2 ** 30;
  for (let done = 0; done < length; ) {
    const { bytesRead } = await file.read(bytes, done, Math.min(chunk, length - done), start + done);
    if (bytesRead === 0)
      throw new DataError(`${path}: file ended at ${start + done}, expected ${start + length} bytes`);
    done += bytesRead;
  }
  return bytes;
}
