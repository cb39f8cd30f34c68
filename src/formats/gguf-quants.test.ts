import { readFileSync } from 'node:fs';
import { expect, test } from 'vitest';
import { expectSameBits } from '../../test/tolerance.ts';
import { dequantizers } from './gguf-quants.ts';
import { type GgmlType, ggmlTypes } from './gguf-types.ts';

interface QuantFixture {
  readonly types: { readonly [T in GgmlType]: { readonly blocks: string; readonly values: string } };
}

const url = new URL('../../test/fixtures/gguf/quants.json', import.meta.url);
const fixture = JSON.parse(readFileSync(url, 'utf8')) as QuantFixture;
const bytesOf = (base64: string): Uint8Array => Uint8Array.from(Buffer.from(base64, 'base64'));

test.each(Object.keys(ggmlTypes) as GgmlType[])('%s: bit for bit the values of llama.cpp’s Python package', (type) => {
  const { blocks, values } = fixture.types[type];
  const bytes = bytesOf(blocks);
  const expected = new Float32Array(bytesOf(values).buffer);
  const { blockValues, blockBytes } = ggmlTypes[type];
  expect(expected.length).toBe((bytes.length / blockBytes) * blockValues);
  const out = new Float32Array(expected.length + 2);
  // Unaligned bytes and an offset, as in the middle of a tensor.
  const unaligned = new Uint8Array(bytes.length + 1);
  unaligned.set(bytes, 1);
  dequantizers[type](unaligned.subarray(1), out, 2);
  expectSameBits(out.subarray(2), expected);
});
