/**
 * What a GGUF file holds: metadata, and where each tensor lies. Layer 1. Metadata are read by `@huggingface/gguf`; that a file is whole is
 * checked here, since the library fills up a cut one with zeros.
 * Left out: split files, big-endian files, and types that `gguf-types.ts` does not name. They are refused by name.
 */
import { type FileHandle, stat } from 'node:fs/promises';
import { resolve } from 'node:path';
import { DataError, messageOf } from '../core/errors.ts';
import { openForReading, pieceBytes, readRange } from './file-ranges.ts';
import { dequantizers } from './gguf-quants.ts';
import { type GgmlType, ggmlTypes, ggufAlignment } from './gguf-types.ts';
import { countElements } from './safetensors-header.ts';

export interface GgufTensor {
  readonly name: string;
  readonly type: GgmlType;
  /** As in Hugging Face's files: [out, in] for a matrix. GGUF writes sizes in the opposite order. */
  readonly shape: readonly number[];
  /** Byte range in the file. */
  readonly begin: number;
  readonly end: number;
}

export interface GgufFile {
  readonly path: string;
  readonly metadata: GgufMetadata;
  readonly tensors: ReadonlyMap<string, GgufTensor>;
}

/** Typed reading of metadata; every error names file and field. Numbers that the file has as 64-bit integers must be safe. */
export interface GgufMetadata {
  readonly has: (key: string) => boolean;
  /** Null if the file has no such field. Throws DataError if it is of another type, as all these do. */
  readonly string: (key: string) => string | null;
  readonly number: (key: string) => number | null;
  readonly boolean: (key: string) => boolean | null;
  readonly strings: (key: string) => readonly string[] | null;
  readonly numbers: (key: string) => readonly number[] | null;
}

/** Throws DataError if the file is not GGUF, not whole, or stored in a way that is not read here. */
export async function openGgufFile(path: string): Promise<GgufFile> {
  const absolute = resolve(path); // The library would fetch a path that looks like a web address.
  const fileBytes = await fileSize(path);
  // Only GGUF files need it, and most models are folders.
  const { GGMLQuantizationType, gguf } = await import('@huggingface/gguf');
  const parsed = await gguf(absolute, { allowLocalFile: true }).catch((cause: unknown) => {
    throw new DataError(`${path}: must be a GGUF file, got ${messageOf(cause)}`, { cause });
  });
  const [, headerEnd] = parsed.tensorInfoByteRange;
  if (headerEnd > fileBytes) {
    throw new DataError(`${path}: file is truncated: its header must end within it, got ${fileBytes} bytes`);
  }
  if (!parsed.littleEndian) throw new DataError(`${path}: must be little-endian, got a big-endian file`);
  const values = new Map<string, unknown>(Object.entries(parsed.metadata));
  const tokens = values.get(tokensKey);
  if (Array.isArray(tokens) && new Set(tokens).add('').size <= tokens.length) {
    values.set(tokensKey, await readTokens(path, headerEnd));
  }
  const metadata = createMetadata(values, path);
  if ((metadata.number('split.count') ?? 1) > 1) {
    throw new DataError(
      `${path}: must be a whole model, got a part of a split one; join it with llama-gguf-split --merge`,
    );
  }
  const alignment = metadata.number('general.alignment') ?? ggufAlignment;
  const place = { dataStart: Number(parsed.tensorDataOffset), alignment, fileBytes, path };
  const tensors = new Map<string, GgufTensor>();
  for (const { name, shape, dtype, offset } of parsed.tensorInfos) {
    if (tensors.has(name)) throw new DataError(`${path}: tensors must have different names, got ${name} twice`);
    const type = (GGMLQuantizationType[dtype] as string | undefined) ?? String(dtype);
    tensors.set(name, describeTensor(name, shape.map(Number).reverse(), type, Number(offset), place));
  }
  return { path, metadata, tensors };
}

const tokensKey = 'tokenizer.ggml.tokens';

/**
 * The texts of the tokens once more. The library drops a byte order mark at the begin of a string, which makes two tokens equal, or one
 * empty, where a vocabulary has such (Gemma's, Llama 2's). The field is whole, since the library has read it.
 */
async function readTokens(path: string, headerBytes: number): Promise<string[]> {
  const file = await openForReading(path);
  try {
    const header = Buffer.from(await readRange(file, 0, headerBytes, path));
    let at = header.indexOf(tokensKey) + tokensKey.length + 8; // types of the value and of its items
    const size = (): number => {
      at += 8;
      return Number(header.readBigUInt64LE(at - 8));
    };
    const decoder = new TextDecoder('utf-8', { ignoreBOM: true });
    return Array.from({ length: size() }, () => {
      const length = size();
      at += length;
      return decoder.decode(header.subarray(at - length, at));
    });
  } finally {
    await file.close();
  }
}

/** All values of a tensor, in the order of the file. */
export async function readGgufTensor(file: FileHandle, tensor: GgufTensor, path: string): Promise<Float32Array> {
  const { blockValues, blockBytes } = ggmlTypes[tensor.type];
  const dequantize = dequantizers[tensor.type];
  const data = new Float32Array(((tensor.end - tensor.begin) / blockBytes) * blockValues);
  const step = Math.floor(pieceBytes / blockBytes) * blockBytes;
  for (let at = tensor.begin; at < tensor.end; at += step) {
    const bytes = await readRange(file, at, Math.min(step, tensor.end - at), path);
    dequantize(bytes, data, ((at - tensor.begin) / blockBytes) * blockValues);
  }
  return data;
}

async function fileSize(path: string): Promise<number> {
  try {
    return (await stat(path)).size;
  } catch (cause) {
    throw new DataError(`${path}: must be a readable file, got ${messageOf(cause)}`, { cause });
  }
}

function describeTensor(
  name: string,
  shape: readonly number[],
  type: string,
  offset: number,
  { dataStart, alignment, fileBytes, path }: { dataStart: number; alignment: number; fileBytes: number; path: string },
): GgufTensor {
  const what = `${path}: tensor ${name}`;
  if (!isGgmlType(type)) {
    throw new DataError(`${what}: type must be one of ${Object.keys(ggmlTypes).join(', ')}, got ${type}`);
  }
  const { blockValues, blockBytes } = ggmlTypes[type];
  const values = countElements(shape, what);
  if ((shape.at(-1) ?? 1) % blockValues !== 0) {
    throw new DataError(`${what}: rows of ${type} must be a multiple of ${blockValues} long, got ${shape.at(-1)}`);
  }
  if (!Number.isSafeInteger(offset) || offset % alignment !== 0) {
    throw new DataError(`${what}: must begin at a multiple of ${alignment} bytes, got ${offset}`);
  }
  const begin = dataStart + offset;
  const end = begin + (values / blockValues) * blockBytes;
  if (end > fileBytes) {
    throw new DataError(`${what}: file is truncated: it must have at least ${end} bytes, got ${fileBytes}`);
  }
  return { name, type, shape, begin, end };
}

function isGgmlType(type: string): type is GgmlType {
  return Object.hasOwn(ggmlTypes, type);
}

function createMetadata(values: ReadonlyMap<string, unknown>, path: string): GgufMetadata {
  const read = <T>(key: string, rule: string, convert: (value: unknown) => T | undefined): T | null => {
    const value = values.get(key);
    if (value === undefined) return null;
    const converted = convert(value);
    if (converted !== undefined) return converted;
    const got = Array.isArray(value) ? 'an array' : String(value);
    throw new DataError(`${path}: ${key} must be ${rule}, got ${got}`);
  };
  const list = <T>(key: string, rule: string, convert: (value: unknown) => T | undefined): readonly T[] | null =>
    read(key, `an array of ${rule}`, (value) => {
      if (!Array.isArray(value)) return undefined;
      const items = value.map(convert);
      return items.every((item) => item !== undefined) ? items : undefined;
    });
  return {
    has: (key) => values.has(key),
    string: (key) => read(key, 'a string', asString),
    number: (key) => read(key, 'a finite number', asNumber),
    boolean: (key) => read(key, 'true or false', (value) => (typeof value === 'boolean' ? value : undefined)),
    strings: (key) => list(key, 'strings', asString),
    numbers: (key) => list(key, 'finite numbers', asNumber),
  };
}

function asString(value: unknown): string | undefined {
  return typeof value === 'string' ? value : undefined;
}

function asNumber(value: unknown): number | undefined {
  const number = typeof value === 'bigint' ? Number(value) : value;
  const isSafe = typeof value !== 'bigint' || Number.isSafeInteger(number);
  return typeof number === 'number' && Number.isFinite(number) && isSafe ? number : undefined;
}
