/** The model that reinforcement learning starts from: a random starter model, warmed up on random legal games. */
import { existsSync } from 'node:fs';
import { rm } from 'node:fs/promises';
import { join } from 'node:path';
import { type FineTuneProgress, fineTuneModel, writeStarterModel } from '../../src/engines/index.ts';
import { deriveSeed } from '../../src/index.ts';
import { systemMessage } from '../tic-tac-toe/rollout.ts';
import { randomGames } from '../tic-tac-toe/warm-up-data.ts';
import { starter, warmUp } from './recipe.ts';

export interface BaseModel {
  readonly directory: string;
  /** Highest resident memory of the warm-up's engine, bytes; 0 if the model was there already. */
  readonly peakRssBytes: number;
}

export interface BaseModelOptions {
  /** Folder of the demo's models. */
  readonly root: string;
  readonly seed: number;
  readonly signal: AbortSignal;
  readonly onStarter: (directory: string) => void;
  readonly onProgress: (progress: FineTuneProgress) => void;
}

/** Makes what is missing; each folder appears whole or not at all, so a stopped demo starts the unfinished one again. */
export async function prepareBaseModel({
  root,
  seed,
  signal,
  onStarter,
  onProgress,
}: BaseModelOptions): Promise<BaseModel> {
  const directory = join(root, `warm-${seed}`);
  if (existsSync(directory)) return { directory, peakRssBytes: 0 };
  const starterDirectory = join(root, `starter-${seed}`);
  if (!existsSync(starterDirectory)) {
    const corpus = (['X', 'O'] as const).map(
      (side) => `system user assistant hot ${String(systemMessage(side).content)}`,
    );
    await writeStarterModel({ ...starter, seed, corpus, directory: starterDirectory });
  }
  onStarter(starterDirectory);
  const { games, ...settings } = warmUp;
  await rm(directory, { recursive: true, force: true });
  const { peakRssBytes } = await fineTuneModel({
    ...settings,
    modelDirectory: starterDirectory,
    outputDirectory: directory,
    conversations: randomGames(games, deriveSeed(seed, 'warm-up')),
    seed,
    signal,
    onProgress,
  });
  return { directory, peakRssBytes };
}
