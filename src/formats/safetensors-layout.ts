/**
 * The header of a safetensors file and where its tensors stand, without their values. Layer 1.
 * Deterministic and as the official library writes it, whatever the order of the tensors.
 */
import { DataError } from '../core/errors.ts';
import { countElements, dtypeBytes, maxHeaderBytes, type SafetensorsDtype } from './safetensors-header.ts';
import type { TensorLayout } from './tensor-file.ts';

export interface SafetensorsInfo {
  readonly name: string;
  readonly dtype: SafetensorsDtype;
  readonly shape: readonly number[];
}

/** Order of the data: widest dtype first, then names by their UTF-8 bytes. Throws DataError. */
export function layOutSafetensors(
  tensors: readonly SafetensorsInfo[],
  metadata: Readonly<Record<string, string>> = {},
): TensorLayout {
  const rank = (dtype: SafetensorsDtype): number => Object.keys(dtypeBytes).indexOf(dtype);
  const sorted = tensors
    .map((tensor) => ({ ...tensor, key: Buffer.from(tensor.name) }))
    .sort((a, b) => rank(a.dtype) - rank(b.dtype) || Buffer.compare(a.key, b.key));
  const fields: string[] = [];
  const names = Object.keys(metadata).sort();
  if (names.length > 0) {
    const pairs = names.map((name) => `${JSON.stringify(name)}:${JSON.stringify(metadata[name])}`);
    fields.push(`"__metadata__":{${pairs.join(',')}}`);
  }
  const places = new Map<string, { offset: number; bytes: number }>();
  let offset = 0;
  for (const { name, dtype, shape } of sorted) {
    const bytes = countElements(shape, `safetensors: tensor ${JSON.stringify(name)}`) * dtypeBytes[dtype];
    if (places.has(name)) throw new DataError(`safetensors: names must be different, got ${name} twice`);
    places.set(name, { offset, bytes });
    fields.push(`${JSON.stringify(name)}:${JSON.stringify({ dtype, shape, data_offsets: [offset, offset + bytes] })}`);
    offset += bytes;
  }
  const json = Buffer.from(`{${fields.join(',')}}`);
  const header = Buffer.alloc(8 + Math.ceil(json.length / 8) * 8, ' ');
  if (header.length - 8 > maxHeaderBytes) {
    throw new DataError(`safetensors: header must be at most ${maxHeaderBytes} bytes, got ${header.length - 8}`);
  }
  header.writeBigUInt64LE(BigInt(header.length - 8));
  json.copy(header, 8);
  const spans = new Map([...places].map(([name, place]) => [name, { ...place, offset: header.length + place.offset }]));
  return { header, spans, totalBytes: header.length + offset };
}
