/**
 * Header of the safetensors format, checked at least as strictly as the official library does. Layer 1.
 * Source: github.com/huggingface/safetensors, safetensors/src/tensor.rs and its format description.
 * Left out: dtypes that no model here uses (unsigned above 8 bits, F8, F4, complex).
 */
import { DataError, messageOf } from '../core/errors.ts';
import { isJsonObject } from '../core/json.ts';

export type SafetensorsDtype = 'F64' | 'F32' | 'F16' | 'BF16' | 'I64' | 'I32' | 'I16' | 'I8' | 'U8' | 'BOOL';

/** Bytes of one element. The order of the keys is the order of the data in a file: the official library's, widest first. */
export const dtypeBytes: { readonly [D in SafetensorsDtype]: number } = {
  I64: 8,
  F64: 8,
  F32: 4,
  I32: 4,
  BF16: 2,
  F16: 2,
  I16: 2,
  I8: 1,
  U8: 1,
  BOOL: 1,
};

/** The limit of the official library, against files that ask for absurd amounts of memory. */
export const maxHeaderBytes = 100_000_000;

export interface SafetensorsEntry {
  readonly dtype: SafetensorsDtype;
  readonly shape: readonly number[];
  /** Byte range of the data, counted from the end of the header. */
  readonly begin: number;
  readonly end: number;
}

export interface SafetensorsHeader {
  /** In the order of their data. */
  readonly entries: ReadonlyMap<string, SafetensorsEntry>;
  readonly metadata: Readonly<Record<string, string>>;
  /** Where the data begins in the file, in bytes. */
  readonly dataStart: number;
}

/** Length of the JSON text. `prefix` holds the first 8 bytes of the file. Throws DataError. */
export function readHeaderLength(prefix: Uint8Array, fileBytes: number, source: string): number {
  if (prefix.length < 8) {
    throw new DataError(`${source}: must begin with 8 bytes of header length, got a file of ${fileBytes} bytes`);
  }
  const length = new DataView(prefix.buffer, prefix.byteOffset, 8).getBigUint64(0, true);
  if (length > BigInt(maxHeaderBytes)) {
    throw new DataError(`${source}: header must be at most ${maxHeaderBytes} bytes, got ${length}`);
  }
  if (Number(length) > fileBytes - 8) {
    throw new DataError(
      `${source}: header must end within the file of ${fileBytes} bytes, got header length ${length}; the file is truncated`,
    );
  }
  return Number(length);
}

/**
 * Checks the JSON text of a header against the size of its file: every dtype known, every span equal to shape × dtype
 * size, and the spans covering the data exactly once. Throws DataError naming source, tensor, rule and value.
 */
export function parseHeader(json: Uint8Array, fileBytes: number, source: string): SafetensorsHeader {
  const root = parseJsonObject(json, source);
  const dataStart = 8 + json.length;
  let metadata: Record<string, string> = {};
  const entries: [string, SafetensorsEntry][] = [];
  for (const [name, value] of Object.entries(root)) {
    if (name === '__metadata__') metadata = checkMetadata(value, source);
    else entries.push([name, checkEntry(value, `${source}: tensor ${JSON.stringify(name)}`)]);
  }
  entries.sort(([, a], [, b]) => a.begin - b.begin || a.end - b.end);
  checkCoverage(entries, fileBytes - dataStart, source);
  return { entries: new Map(entries), metadata, dataStart };
}

/** Number of elements; throws DataError if a size is not a safe integer ≥ 0 or the product is not safe. */
export function countElements(shape: readonly unknown[], what: string): number {
  let count = 1;
  for (const size of shape) {
    if (!isSize(size)) {
      throw new DataError(`${what}: sizes of shape must be safe integers ≥ 0, got ${describe(size)}`);
    }
    count *= size;
    if (!Number.isSafeInteger(count)) {
      throw new DataError(`${what}: number of elements must be a safe integer, got shape [${shape.join(', ')}]`);
    }
  }
  return count;
}

/** Narrows what a file or a caller names as dtype to those that are read here. */
export function isDtype(value: unknown): value is SafetensorsDtype {
  return typeof value === 'string' && Object.hasOwn(dtypeBytes, value);
}

function parseJsonObject(json: Uint8Array, source: string): Record<string, unknown> {
  if (json[0] !== 0x7b) throw new DataError(`${source}: header must begin with "{", got byte ${json[0] ?? 'none'}`);
  let text: string;
  let root: unknown;
  try {
    text = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(json);
    root = JSON.parse(text);
  } catch (cause) {
    throw new DataError(`${source}: header must be JSON in UTF-8, got ${messageOf(cause)}`, { cause });
  }
  const duplicate = findDuplicateKey(text);
  if (duplicate !== null) {
    throw new DataError(`${source}: header must not repeat a key, got ${JSON.stringify(duplicate)} twice`);
  }
  return root as Record<string, unknown>;
}

/** The first key that one object of a VALID JSON text has twice; null if none. JSON.parse keeps the last silently. */
function findDuplicateKey(text: string): string | null {
  const tokens = /"(?:[^"\\]|\\.)*"|[{}[\]:,]/g;
  const stack: (Set<string> | null)[] = [];
  let string: string | null = null;
  for (const [token] of text.matchAll(tokens)) {
    if (token === '{') stack.push(new Set());
    else if (token === '[') stack.push(null);
    else if (token === '}' || token === ']') stack.pop();
    else if (token === ':' && string !== null) {
      const key = JSON.parse(string) as string;
      const keys = stack.at(-1);
      if (keys?.has(key)) return key;
      keys?.add(key);
    }
    string = token.startsWith('"') ? token : null;
  }
  return null;
}

function checkMetadata(value: unknown, source: string): Record<string, string> {
  if (!isJsonObject(value)) throw new DataError(`${source}: __metadata__ must be an object, got ${describe(value)}`);
  for (const [key, text] of Object.entries(value)) {
    if (typeof text !== 'string') {
      throw new DataError(`${source}: __metadata__.${key} must be a string, got ${describe(text)}`);
    }
  }
  return value as Record<string, string>;
}

function checkEntry(value: unknown, what: string): SafetensorsEntry {
  if (!isJsonObject(value)) throw new DataError(`${what}: must be an object, got ${describe(value)}`);
  const { dtype, shape, data_offsets: offsets, ...rest } = value;
  const unknownKey = Object.keys(rest)[0];
  if (unknownKey !== undefined) throw new DataError(`${what}: unknown key ${JSON.stringify(unknownKey)}`);
  if (!isDtype(dtype)) {
    throw new DataError(`${what}: dtype must be one of ${Object.keys(dtypeBytes).join(', ')}, got ${describe(dtype)}`);
  }
  if (!Array.isArray(shape)) throw new DataError(`${what}: shape must be an array, got ${describe(shape)}`);
  const bytes = countElements(shape, what) * dtypeBytes[dtype];
  if (!Number.isSafeInteger(bytes)) {
    throw new DataError(`${what}: number of bytes must be a safe integer, got shape [${shape.join(', ')}]`);
  }
  const [begin, end] = Array.isArray(offsets) && offsets.length === 2 ? (offsets as unknown[]) : [];
  if (!isSize(begin) || !isSize(end) || end < begin) {
    throw new DataError(
      `${what}: data_offsets must be [begin, end] with 0 ≤ begin ≤ end, safe integers, got ${describe(offsets)}`,
    );
  }
  if (end - begin !== bytes) {
    throw new DataError(`${what}: ${dtype} of shape [${shape.join(', ')}] takes ${bytes} bytes, got ${end - begin}`);
  }
  return { dtype, shape: shape as number[], begin, end };
}

/** `entries` sorted by offset must touch: no holes, no overlaps, and end where the file ends. */
function checkCoverage(entries: readonly [string, SafetensorsEntry][], dataBytes: number, source: string): void {
  let expected = 0;
  for (const [name, { begin, end }] of entries) {
    const what = `${source}: tensor ${JSON.stringify(name)}`;
    if (end > dataBytes) {
      throw new DataError(`${what}: must end within the ${dataBytes} bytes of data, got ${end}; the file is truncated`);
    }
    if (begin < expected) throw new DataError(`${what}: must not overlap data up to ${expected}, got begin ${begin}`);
    if (begin > expected) throw new DataError(`${what}: must leave no hole after ${expected}, got begin ${begin}`);
    expected = end;
  }
  if (expected !== dataBytes) {
    throw new DataError(`${source}: tensors must cover the data exactly, got ${expected} of ${dataBytes} bytes`);
  }
}

function isSize(value: unknown): value is number {
  return Number.isSafeInteger(value) && (value as number) >= 0;
}

/** One line for an error; nested values are left out, since `JSON.stringify` overflows the stack on deep ones. */
function describe(value: unknown): string {
  const short = (item: unknown): string => (isNested(item) ? '…' : JSON.stringify(item));
  if (Array.isArray(value)) return `[${value.slice(0, 8).map(short).join(',')}]`;
  return isNested(value) ? 'an object' : (JSON.stringify(value) ?? 'nothing');
}

function isNested(value: unknown): boolean {
  return typeof value === 'object' && value !== null;
}
