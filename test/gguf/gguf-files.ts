/** Small GGUF files for tests, put together by the exporter's parts, whose bytes are compared with Python's elsewhere. */
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { toGgufLayout } from '../../src/export/gguf-layout.ts';
import { architectureMetadata, ropeTensors, string, uint32 } from '../../src/export/gguf-metadata.ts';
import { type EncodedFloats, encodeFloats } from '../../src/formats/encode-floats.ts';
import { ggufArchitectures, toGgufName } from '../../src/formats/gguf-names.ts';
import { type GgufTensorInfo, type GgufValue, layOutGguf } from '../../src/formats/gguf-writer.ts';
import type { DecoderConfig } from '../../src/formats/hf-config.ts';
import type { FloatTensor } from '../../src/formats/safetensors.ts';
import { createTensorFile } from '../../src/formats/tensor-file.ts';

export interface TestFolder {
  readonly path: (name: string) => string;
  readonly remove: () => Promise<void>;
}

export async function createTestFolder(): Promise<TestFolder> {
  const folder = await mkdtemp(join(tmpdir(), 'art-gguf-'));
  return { path: (name) => join(folder, name), remove: () => rm(folder, { recursive: true }) };
}

/** Architecture of the config, and a tokenizer of one letter a token. */
export function modelMetadata(config: DecoderConfig): Map<string, GgufValue> {
  const tokens = Array.from({ length: config.vocabSize }, (_, id) => String.fromCharCode(0x100 + id));
  const values = tokens.map(() => 1);
  return new Map([
    ['general.architecture', string(ggufArchitectures[config.modelType])],
    ...architectureMetadata(config),
    ['tokenizer.ggml.model', string('gpt2')],
    ['tokenizer.ggml.pre', string('gpt-2')],
    ['tokenizer.ggml.tokens', { type: 'array', of: 'string', values: tokens }],
    ['tokenizer.ggml.token_type', { type: 'array', of: 'int32', values }],
    ['tokenizer.ggml.merges', { type: 'array', of: 'string', values: [] }],
    ['tokenizer.ggml.eos_token_id', uint32(0)],
  ]);
}

/** The model's tensors by GGUF's names, in its layout. */
export function modelTensors(
  config: DecoderConfig,
  parameters: ReadonlyMap<string, FloatTensor>,
): Map<string, FloatTensor> {
  const tensors = new Map(ropeTensors(config));
  for (const [name, tensor] of parameters) {
    tensors.set(toGgufName(name, ggufArchitectures[config.modelType])!, toGgufLayout(name, tensor, config));
  }
  return tensors;
}

export async function writeGgufFile(
  path: string,
  metadata: ReadonlyMap<string, GgufValue>,
  tensors: ReadonlyMap<string, FloatTensor>,
  type: EncodedFloats = 'F32',
): Promise<void> {
  const infos = [...tensors].map(
    ([name, { shape }]): GgufTensorInfo => ({ name, shape, type: shape.length > 1 ? type : 'F32' }),
  );
  const file = await createTensorFile(path, layOutGguf(metadata, infos));
  for (const info of infos)
    await file.write(info.name, encodeFloats(info.type, tensors.get(info.name)!.data, info.name));
  await file.finish();
}
