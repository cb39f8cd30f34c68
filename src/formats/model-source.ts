/**
 * A base model wherever it lies: configuration, tokenizer, chat template and float32 weights of a Hugging Face folder or
 * a GGUF file. Layer 1.
 * Weights come one tensor at a time, so that whoever reads them needs little more memory than the weights themselves.
 */
import { copyFile } from 'node:fs/promises';
import { join } from 'node:path';
import { isMissing } from './atomic-files.ts';
import { openGgufModel } from './gguf-model.ts';
import { type DecoderConfig, readHfConfig } from './hf-config.ts';
import { collectTensors, type FloatTensor, streamModelTensors } from './safetensors.ts';
import { loadTokenizer, readTokenizerConfig, type Tokenizer, type TokenizerConfig } from './tokenizer.ts';

export interface ModelSource {
  /** As given to `openModel`. */
  readonly path: string;
  readonly config: DecoderConfig;
  /** `tokenizer_config.json` with the chat template filled in. */
  readonly tokenizerConfig: TokenizerConfig;
  /** A new tokenizer at each call; a large vocabulary takes part of a second, which a trainer has no need of. */
  readonly loadTokenizer: () => Promise<Tokenizer>;
  /** Parameters by Hugging Face's names, each finite, in the order of the file. The caller owns the data. */
  readonly streamTensors: () => AsyncGenerator<readonly [string, FloatTensor]>;
  /** All of `streamTensors`. */
  readonly readTensors: () => Promise<ReadonlyMap<string, FloatTensor>>;
  /** Writes what belongs to the model beside its weights into a folder, in Hugging Face's layout. */
  readonly writeTextFiles: (directory: string) => Promise<void>;
}

/** Files of a folder beside its weights; only the first is required. */
const textFiles = [
  'config.json',
  'generation_config.json',
  'tokenizer.json',
  'tokenizer_config.json',
  'chat_template.jinja',
];

/** Reads what is small; the weights stay in their files. Throws ConfigError, DataError. */
export async function openModel(path: string): Promise<ModelSource> {
  if (isGgufPath(path)) return openGgufModel(path);
  const [config, tokenizerConfig] = await Promise.all([readHfConfig(path), readTokenizerConfig(path)]);
  const streamTensors = (): AsyncGenerator<readonly [string, FloatTensor]> => streamModelTensors(path);
  return {
    path,
    config,
    tokenizerConfig,
    loadTokenizer: () => loadTokenizer(path),
    streamTensors,
    readTensors: () => collectTensors(streamTensors()),
    writeTextFiles: async (directory) => {
      for (const file of textFiles) await copyIfPresent(path, directory, file);
    },
  };
}

/** Whether a path names a GGUF file, rather than a folder. */
export function isGgufPath(path: string): boolean {
  return path.toLowerCase().endsWith('.gguf');
}

async function copyIfPresent(from: string, to: string, file: string): Promise<void> {
  try {
    await copyFile(join(from, file), join(to, file));
  } catch (error) {
    if (!isMissing(error) || file === textFiles[0]) throw error;
  }
}
