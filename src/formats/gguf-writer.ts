/**
 * GGUF files, version 3, little-endian: header, metadata, tensor table, data at multiples of 32 bytes. Layer 1.
 * Source: ggml docs/gguf.md; bytes as Python's `gguf.GGUFWriter` writes them for the same keys in the same order.
 */
import { DataError } from '../core/errors.ts';
import { type EncodedFloats, encodedBytes, isEncodable } from './encode-floats.ts';
import { ggmlTypes, ggufAlignment, ggufMagic, ggufValueTypes, ggufVersion } from './gguf-types.ts';
import type { TensorLayout } from './tensor-file.ts';

export type GgufScalar = 'uint32' | 'int32' | 'float32' | 'bool' | 'string';

export type GgufValue =
  | { readonly type: 'uint32' | 'int32' | 'float32'; readonly value: number }
  | { readonly type: 'bool'; readonly value: boolean }
  | { readonly type: 'string'; readonly value: string }
  | { readonly type: 'array'; readonly of: 'uint32' | 'int32' | 'float32'; readonly values: readonly number[] }
  | { readonly type: 'array'; readonly of: 'string'; readonly values: readonly string[] }
  | { readonly type: 'array'; readonly of: 'bool'; readonly values: readonly boolean[] };

export interface GgufTensorInfo {
  readonly name: string;
  /** Row-major, as everywhere here; the file has it in reverse. */
  readonly shape: readonly number[];
  readonly type: EncodedFloats;
}

/** ggml's limit on the name of a tensor, in bytes without the final zero. */
const longestName = 63;

/** Header and places of a file with these tensors in this order. Throws DataError if a tensor cannot be of its type or a name is used twice. */
export function layOutGguf(metadata: ReadonlyMap<string, GgufValue>, tensors: readonly GgufTensorInfo[]): TensorLayout {
  const out = new ByteWriter();
  out.uint32(ggufMagic);
  out.uint32(ggufVersion);
  out.uint64(tensors.length);
  out.uint64(metadata.size);
  for (const [key, value] of metadata) {
    out.string(key);
    out.uint32(ggufValueTypes[value.type]);
    writeValue(out, value);
  }
  const places = placeTensors(tensors);
  for (const { name, shape, type } of tensors) {
    out.string(name);
    out.uint32(shape.length);
    for (const size of [...shape].reverse()) out.uint64(size);
    out.uint32(ggmlTypes[type].id);
    out.uint64(places.get(name)!.offset);
  }
  const header = out.finish();
  const dataStart = pad(header.length);
  const spans = new Map([...places].map(([name, { offset, bytes }]) => [name, { offset: dataStart + offset, bytes }]));
  const last = [...spans.values()].at(-1);
  return { header, spans, totalBytes: last === undefined ? dataStart : pad(last.offset + last.bytes) };
}

function placeTensors(tensors: readonly GgufTensorInfo[]): Map<string, { offset: number; bytes: number }> {
  const places = new Map<string, { offset: number; bytes: number }>();
  let offset = 0;
  for (const { name, shape, type } of tensors) {
    const what = `gguf: tensor ${name}`;
    if (places.has(name)) throw new DataError(`${what}: names must be different, got this one twice`);
    const nameBytes = Buffer.byteLength(name);
    if (nameBytes > longestName)
      throw new DataError(`${what}: names have at most ${longestName} bytes, got ${nameBytes}`);
    if (shape.length < 1 || shape.length > 4)
      throw new DataError(`${what}: must have 1 to 4 axes, got ${shape.length}`);
    if (!isEncodable(type, shape.at(-1)!)) {
      throw new DataError(`${what}: rows of ${type} must be a multiple of 32 values, got [${shape.join(', ')}]`);
    }
    const bytes = encodedBytes(
      type,
      shape.reduce((product, size) => product * size, 1),
    );
    places.set(name, { offset, bytes });
    offset = pad(offset + bytes);
  }
  return places;
}

function writeValue(out: ByteWriter, value: GgufValue): void {
  if (value.type !== 'array') {
    writeScalar(out, value.type, value.value);
    return;
  }
  out.uint32(ggufValueTypes[value.of]);
  out.uint64(value.values.length);
  for (const item of value.values) writeScalar(out, value.of, item);
}

/** `GgufValue` ties the type of the value to the name of its type. */
function writeScalar(out: ByteWriter, type: GgufScalar, value: number | boolean | string): void {
  if (type === 'string') out.string(value as string);
  else if (type === 'bool') out.bytes(new Uint8Array([value === true ? 1 : 0]));
  else if (type === 'float32') out.float32(value as number);
  else if (type === 'int32') out.int32(value as number);
  else out.uint32(value as number);
}

function pad(offset: number): number {
  return Math.ceil(offset / ggufAlignment) * ggufAlignment;
}

/** Little-endian values one after another; a vocabulary makes hundreds of thousands of them. */
class ByteWriter {
  #buffer = Buffer.alloc(1 << 16);
  #length = 0;

  bytes(data: Uint8Array): void {
    this.#reserve(data.length);
    this.#buffer.set(data, this.#length);
    this.#length += data.length;
  }

  string(text: string): void {
    const data = new TextEncoder().encode(text);
    this.uint64(data.length);
    this.bytes(data);
  }

  uint32(value: number): void {
    this.#reserve(4);
    this.#length = this.#buffer.writeUInt32LE(value, this.#length);
  }

  int32(value: number): void {
    this.#reserve(4);
    this.#length = this.#buffer.writeInt32LE(value, this.#length);
  }

  float32(value: number): void {
    this.#reserve(4);
    this.#length = this.#buffer.writeFloatLE(value, this.#length);
  }

  uint64(value: number): void {
    this.#reserve(8);
    this.#length = this.#buffer.writeBigUInt64LE(BigInt(value), this.#length);
  }

  finish(): Uint8Array {
    return this.#buffer.subarray(0, this.#length);
  }

  #reserve(count: number): void {
    if (this.#length + count <= this.#buffer.length) return;
    const larger = Buffer.alloc(Math.max(this.#buffer.length * 2, this.#length + count));
    larger.set(this.#buffer.subarray(0, this.#length));
    this.#buffer = larger;
  }
}
