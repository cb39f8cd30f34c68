/** A GGUF file as a base model: what a Hugging Face folder of the same model would hold. Layer 1. */
import { join } from 'node:path';
import { DataError } from '../core/errors.ts';
import { formatJson, writeFileAtomic } from './atomic-files.ts';
import { openForReading } from './file-ranges.ts';
import { checkFinite } from './float-bits.ts';
import { ggufArchitecture, ggufToHfConfig, ropeTensorNames } from './gguf-config.ts';
import { type GgufFile, openGgufFile, readGgufTensor } from './gguf-file.ts';
import { addedInGguf, type GgufArchitecture, isRowPermuted, toHfName } from './gguf-names.ts';
import { ggufTokenizer } from './gguf-tokenizer.ts';
import { parseHfConfig } from './hf-config.ts';
import type { ModelSource } from './model-source.ts';
import { collectTensors, type FloatTensor } from './safetensors.ts';
import { createTokenizer } from './tokenizer.ts';

/** Throws ConfigError on what is not supported, DataError on a file that is not whole. */
export async function openGgufModel(path: string): Promise<ModelSource> {
  const file = await openGgufFile(path);
  const architecture = ggufArchitecture(file);
  const hfConfig = ggufToHfConfig(file, await readRopeTensors(file));
  const config = parseHfConfig(hfConfig, path);
  const { tokenizerJson, tokenizerConfig } = ggufTokenizer(file.metadata, config.vocabSize, path);
  const heads = { q: config.heads, k: config.kvHeads };
  const streamTensors = (): AsyncGenerator<readonly [string, FloatTensor]> => stream(file, architecture, heads);
  return {
    path,
    config,
    tokenizerConfig,
    loadTokenizer: () => Promise.resolve(createTokenizer(tokenizerJson, tokenizerConfig, path)),
    streamTensors,
    readTensors: () => collectTensors(streamTensors()),
    writeTextFiles: async (directory) => {
      const ids = { bos_token_id: config.bosTokenId, eos_token_id: config.eosTokenId, pad_token_id: config.padTokenId };
      const files = {
        'config.json': hfConfig,
        'generation_config.json': ids,
        'tokenizer.json': tokenizerJson,
        'tokenizer_config.json': tokenizerConfig,
      };
      for (const [name, value] of Object.entries(files)) {
        await writeFileAtomic(join(directory, name), [formatJson(value)]);
      }
    },
  };
}

async function readRopeTensors(file: GgufFile): Promise<ReadonlyMap<string, Float32Array>> {
  const values = new Map<string, Float32Array>();
  const handle = await openForReading(file.path);
  try {
    for (const name of ropeTensorNames) {
      const tensor = file.tensors.get(name);
      if (tensor !== undefined) values.set(name, await readGgufTensor(handle, tensor, file.path));
    }
  } finally {
    await handle.close();
  }
  return values;
}

async function* stream(
  { path, tensors }: GgufFile,
  architecture: GgufArchitecture,
  heads: { readonly q: number; readonly k: number },
): AsyncGenerator<readonly [string, FloatTensor]> {
  const handle = await openForReading(path);
  try {
    for (const tensor of tensors.values()) {
      if (ropeTensorNames.some((name) => name === tensor.name)) continue;
      const name = toHfName(tensor.name, architecture);
      if (name === null) {
        throw new DataError(`${path}: must hold nothing but tensors of a ${architecture} model, got ${tensor.name}`);
      }
      const data = await readGgufTensor(handle, tensor, path);
      checkFinite(data, tensor.name, path);
      const added = addedInGguf(name, architecture);
      if (added !== 0) for (let i = 0; i < data.length; i++) data[i]! -= added;
      const isPermuted = isRowPermuted(name, architecture);
      const count = name.includes('q_proj') ? heads.q : heads.k;
      yield [name, { shape: tensor.shape, data: isPermuted ? halvesOfHeads(data, tensor.shape[0]!, count) : data }];
    }
  } finally {
    await handle.close();
  }
}

/** Rows of each head from pairs (0, C/2, 1, C/2 + 1, …), as llama.cpp turns them, to halves (0, 1, …), as Hugging Face does. */
function halvesOfHeads(data: Float32Array, rows: number, heads: number): Float32Array {
  const headSize = rows / heads;
  const half = headSize / 2;
  const width = data.length / rows;
  const out = new Float32Array(data.length);
  for (let row = 0; row < rows; row++) {
    const at = row % headSize;
    const target = row - at + (at % 2) * half + Math.floor(at / 2);
    out.set(data.subarray(row * width, (row + 1) * width), target * width);
  }
  return out;
}
