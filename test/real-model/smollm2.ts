/** SmolLM2-135M-Instruct for the tests of this folder: the file in the cache, and what other programs compute with it. */
import { readFileSync } from 'node:fs';
import { describe } from 'vitest';
import { cachedModel } from '../../scripts/model-cache.mjs';
import type { ChatMessage } from '../../src/core/trajectory.ts';

/** Null where it has not been fetched. */
export const modelPath = cachedModel('smollm2');

/** The tests of a suite need the model; without it they are skipped, and their names say why. */
export function describeWithModel(name: string, define: (path: string) => void): void {
  const title = modelPath === null ? `${name} (needs SmolLM2: run npm run fetch-models)` : name;
  describe.skipIf(modelPath === null)(title, () => define(modelPath ?? ''));
}

/** Written by `test/fixtures/generate/smollm2.py`, which describes it. */
interface Expected {
  readonly messages: readonly ChatMessage[];
  readonly prompt: string;
  readonly promptIds: readonly number[];
  readonly greedyIds: readonly number[];
  readonly text: string;
  readonly textIds: readonly number[];
  readonly logprobs: string;
  readonly logits: { readonly stride: number; readonly places: readonly number[]; readonly values: readonly string[] };
  readonly tensors: Readonly<Record<string, { readonly shape: readonly number[]; readonly sha256: string }>>;
}

const read = (name: string): unknown =>
  JSON.parse(readFileSync(new URL(`../fixtures/smollm2/${name}`, import.meta.url), 'utf8'));

export const expected = read('expected.json') as Expected;

interface Tokens {
  readonly texts: readonly { readonly text: string; readonly ids: readonly number[] }[];
  /** Ids of the same texts where the file says another way of splitting words. */
  readonly byPreTokenizer: Readonly<Record<string, readonly (readonly number[])[]>>;
}

/** By llama.cpp. Written by `test/fixtures/generate/smollm2_tokens.mjs`. */
export const tokens = read('tokens.json') as Tokens;

/** Numbers of the fixture: base64 of little-endian float32. */
export function decodeFloats(base64: string): Float32Array {
  return new Float32Array(Uint8Array.from(Buffer.from(base64, 'base64')).buffer);
}
