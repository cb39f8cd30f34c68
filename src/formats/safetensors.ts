/**
 * safetensors files: parse, read by ranges, and write with the bytes of the official library. Layer 1.
 * Source: github.com/huggingface/safetensors, safetensors/src/tensor.rs. Sharded models (index.json) are read by
 * `streamModelTensors`. Assumes a little-endian processor, as every platform of Node.js that we support has.
 */
import type { FileHandle } from 'node:fs/promises';
import { join } from 'node:path';
import { DataError } from '../core/errors.ts';
import { isPresent, readJsonFile, writeFileAtomic } from './atomic-files.ts';
import { openForReading, pieceBytes, readRange } from './file-ranges.ts';
import { checkFinite, type FloatFormat, widenFloats } from './float-bits.ts';
import {
  countElements,
  dtypeBytes,
  isDtype,
  parseHeader,
  readHeaderLength,
  type SafetensorsDtype,
  type SafetensorsEntry,
  type SafetensorsHeader,
} from './safetensors-header.ts';
import { layOutSafetensors } from './safetensors-layout.ts';

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
  const file = await openForReading(path);
  try {
    return await readHeader(file, path);
  } finally {
    await file.close();
  }
}

/** All tensors as new Float32Arrays; F32 bit-exact, F16 and BF16 widened exactly. Throws DataError on any other dtype. */
export async function readSafetensors(path: string): Promise<ReadonlyMap<string, FloatTensor>> {
  return collectTensors(streamSafetensors(path));
}

/** Tensors of a file one after another in the order of its data, so that only one is in memory if the caller keeps none. */
async function* streamSafetensors(path: string): AsyncGenerator<readonly [string, FloatTensor]> {
  const file = await openForReading(path);
  try {
    const header = await readHeader(file, path);
    for (const [name, entry] of header.entries) yield [name, await readTensor(file, header, name, entry, path)];
  } finally {
    await file.close();
  }
}

/** Everything a stream of tensors gives. */
export async function collectTensors(
  stream: AsyncIterable<readonly [string, FloatTensor]>,
): Promise<ReadonlyMap<string, FloatTensor>> {
  const tensors = new Map<string, FloatTensor>();
  for await (const [name, tensor] of stream) tensors.set(name, tensor);
  return tensors;
}

/** All of `streamModelTensors`. */
export function readModelTensors(directory: string): Promise<ReadonlyMap<string, FloatTensor>> {
  return collectTensors(streamModelTensors(directory));
}

/**
 * Tensors of a model folder: of `model.safetensors`, or of the shards that `model.safetensors.index.json` names. Throws
 * DataError naming file and tensor if a shard or tensor is missing or a value is not finite.
 */
export async function* streamModelTensors(directory: string): AsyncGenerator<readonly [string, FloatTensor]> {
  const single = join(directory, 'model.safetensors');
  if (await isPresent(single)) {
    for await (const [name, tensor] of streamSafetensors(single)) {
      checkFinite(tensor.data, name, single);
      yield [name, tensor];
    }
    return;
  }
  const indexPath = `${single}.index.json`;
  if (!(await isPresent(indexPath))) {
    throw new DataError(`${directory}: must hold model.safetensors or model.safetensors.index.json, got neither`);
  }
  const shardOf = parseIndex(await readJsonFile(indexPath), indexPath);
  for (const shard of new Set(shardOf.values())) {
    const path = join(directory, shard);
    if (!(await isPresent(path))) throw new DataError(`${indexPath}: every shard must be there, missing ${shard}`);
    const missing = new Set([...shardOf].filter(([, of]) => of === shard).map(([name]) => name));
    for await (const [name, tensor] of streamSafetensors(path)) {
      if (!missing.delete(name)) {
        throw new DataError(`${path}: must hold the tensors that ${indexPath} places there, got ${name} as well`);
      }
      checkFinite(tensor.data, name, path);
      yield [name, tensor];
    }
    const [first] = missing;
    if (first !== undefined) {
      throw new DataError(`${indexPath}: every tensor must be in its shard, missing ${first} in ${shard}`);
    }
  }
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
  const format = floatFormat(dtype, what);
  const values = new Float32Array(bytes.length / dtypeBytes[dtype]);
  widenFloats(format, bytes, values, 0);
  return values;
}

function floatFormat(dtype: SafetensorsDtype, what: string): FloatFormat {
  if (dtype === 'F32' || dtype === 'F16' || dtype === 'BF16') return dtype;
  throw new DataError(`${what}: must be F32, F16 or BF16 to be read as float32, got ${dtype}`);
}

/** The tensor to shard map of an index file. Shards must lie beside it: a model file does not reach into other folders. */
function parseIndex(json: unknown, indexPath: string): ReadonlyMap<string, string> {
  const weightMap = (json as { weight_map?: unknown } | null)?.weight_map;
  if (typeof weightMap !== 'object' || weightMap === null || Object.keys(weightMap).length === 0) {
    throw new DataError(`${indexPath}: must have a weight_map from tensor names to shards`);
  }
  const shardOf = new Map<string, string>(Object.entries(weightMap));
  for (const [name, shard] of shardOf) {
    if (typeof shard !== 'string' || !/^[^\\/]+\.safetensors$/.test(shard)) {
      throw new DataError(
        `${indexPath}: shards must be .safetensors files of the same folder, got ${JSON.stringify(shard)} for ${name}`,
      );
    }
  }
  return shardOf;
}

function serializeParts(
  tensors: ReadonlyMap<string, SafetensorsTensor>,
  metadata: Readonly<Record<string, string>>,
): Uint8Array[] {
  for (const [name, tensor] of tensors) checkTensor(name, tensor);
  const infos = [...tensors].map(([name, { dtype, shape }]) => ({ name, dtype, shape }));
  const { header, spans } = layOutSafetensors(infos, metadata);
  return [header, ...[...spans.keys()].map((name) => tensors.get(name)!.data)];
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

/** Reads in pieces straight into the float32 values, so that a tensor never exists twice. */
async function readTensor(
  file: FileHandle,
  { dataStart }: SafetensorsHeader,
  name: string,
  { dtype, shape, begin, end }: SafetensorsEntry,
  path: string,
): Promise<FloatTensor> {
  const format = floatFormat(dtype, `${path}: tensor "${name}"`);
  const data = new Float32Array((end - begin) / dtypeBytes[dtype]);
  for (let at = begin; at < end; at += pieceBytes) {
    const bytes = await readRange(file, dataStart + at, Math.min(pieceBytes, end - at), path);
    widenFloats(format, bytes, data, (at - begin) / dtypeBytes[dtype]);
  }
  return { shape, data };
}

async function readHeader(file: FileHandle, path: string): Promise<SafetensorsHeader> {
  const { size } = await file.stat();
  const prefix = await readRange(file, 0, Math.min(8, size), path);
  const length = readHeaderLength(prefix, size, path);
  return parseHeader(await readRange(file, 8, length, path), size, path);
}
