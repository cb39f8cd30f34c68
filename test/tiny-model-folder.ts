/** A tiny starter model on disk for tests of engines. */
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type StarterModelOptions, writeStarterModel } from '../src/formats/starter-model.ts';

export interface TinyModelFolder {
  /** A temporary folder to write into. */
  readonly folder: string;
  readonly modelDirectory: string;
  readonly remove: () => Promise<void>;
}

/** 2 layers, width 32; byte tokens and a few merges. */
export async function createTinyModelFolder(options: Partial<StarterModelOptions> = {}): Promise<TinyModelFolder> {
  const folder = await mkdtemp(join(tmpdir(), 'art-tiny-'));
  const modelDirectory = join(folder, 'model');
  const sizes = { layers: 2, width: 32, heads: 2, kvHeads: 1, headSize: 16, ffWidth: 48, maxPositions: 160 };
  const corpus = ['yes no'];
  await writeStarterModel({ seed: 1, directory: modelDirectory, corpus, vocabSize: 280, ...sizes, ...options });
  return { folder, modelDirectory, remove: () => rm(folder, { recursive: true }) };
}
