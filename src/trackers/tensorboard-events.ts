/**
 * TensorBoard's event files: TFRecord framing with masked CRC32C around `tensorflow.Event` messages. Layer 6, no I/O.
 * Source: tensorflow/core/util/event.proto, tensorflow/core/framework/summary.proto, tensorflow/core/lib/hash/crc32c.h.
 * Written: the file's version, scalars, and texts. Left out: graphs, images, histograms, reading.
 */

/** Table of the polynomial 0x1EDC6F41, reflected. */
const crcTable: Uint32Array = Uint32Array.from({ length: 256 }, (_, byte) => {
  let crc = byte;
  for (let bit = 0; bit < 8; bit++) crc = crc & 1 ? (crc >>> 1) ^ 0x82f63b78 : crc >>> 1;
  return crc;
});

export function crc32c(bytes: Uint8Array): number {
  let crc = 0xffffffff;
  for (const byte of bytes) crc = (crc >>> 8) ^ crcTable[(crc ^ byte) & 0xff]!;
  return (crc ^ 0xffffffff) >>> 0;
}

/** Rotated and shifted, so that a checksum over data that holds checksums stays a good one. */
function maskedCrc(bytes: Uint8Array): number {
  const crc = crc32c(bytes);
  return (((crc >>> 15) | (crc << 17)) + 0xa282ead8) >>> 0;
}

/** Length, its checksum, data, its checksum. */
export function encodeRecord(data: Uint8Array): Buffer {
  const record = Buffer.alloc(16 + data.length);
  record.writeBigUInt64LE(BigInt(data.length), 0);
  record.writeUInt32LE(maskedCrc(record.subarray(0, 8)), 8);
  record.set(data, 12);
  record.writeUInt32LE(maskedCrc(data), 12 + data.length);
  return record;
}

export interface EventHead {
  readonly recordedAt: Date;
  readonly step: number;
}

/** First record of a file. */
export function encodeVersion(recordedAt: Date): Buffer {
  return encodeRecord(Buffer.concat([wallTime(recordedAt), text(3, 'brain.Event:2')]));
}

/** Scalars of one step; values are stored as float32, NaN and infinity included. */
export function encodeScalars(head: EventHead, scalars: Readonly<Record<string, number>>): Buffer {
  const values = Object.entries(scalars).map(([tag, value]) => {
    const simpleValue = Buffer.alloc(5);
    simpleValue[0] = (2 << 3) | 5;
    simpleValue.writeFloatLE(value, 1);
    return block(1, Buffer.concat([text(1, tag), simpleValue]));
  });
  return encodeEvent(head, values);
}

/** A text for TensorBoard's text page; Markdown. */
export function encodeText(head: EventHead, tag: string, markdown: string): Buffer {
  const DT_STRING = 7;
  const metadata = block(9, block(1, text(1, 'text')));
  const tensor = block(8, Buffer.concat([integer(1, DT_STRING), block(2, block(2, integer(1, 1))), text(8, markdown)]));
  return encodeEvent(head, [block(1, Buffer.concat([text(1, tag), tensor, metadata]))]);
}

function encodeEvent({ recordedAt, step }: EventHead, values: readonly Buffer[]): Buffer {
  const stepField = step === 0 ? Buffer.alloc(0) : integer(2, step); // zeros are left out, as protobuf's own writers do
  return encodeRecord(Buffer.concat([wallTime(recordedAt), stepField, block(5, Buffer.concat(values))]));
}

function wallTime(time: Date): Buffer {
  const field = Buffer.alloc(9);
  field[0] = (1 << 3) | 1;
  field.writeDoubleLE(time.getTime() / 1000, 1);
  return field;
}

function varint(value: number): Buffer {
  const bytes: number[] = [];
  let rest = value;
  for (; rest >= 128; rest = Math.floor(rest / 128)) bytes.push((rest % 128) | 128);
  return Buffer.from([...bytes, rest]);
}

function integer(field: number, value: number): Buffer {
  return Buffer.concat([varint(field << 3), varint(value)]);
}

function block(field: number, bytes: Buffer): Buffer {
  return Buffer.concat([varint((field << 3) | 2), varint(bytes.length), bytes]);
}

function text(field: number, value: string): Buffer {
  return block(field, Buffer.from(value));
}
