/** A tiny model with random weights, asked for yes or no on the real engine: what tests of training through the public API begin with. */
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll } from 'vitest';
import { writeStarterModel } from '../src/formats/starter-model.ts';
import {
  type ChatChoice,
  LocalBackend,
  TrainableModel,
  type TrainableModelInit,
  Trajectory,
  TrajectoryGroup,
} from '../src/index.ts';

export const question = { role: 'user', content: 'Say yes or no.' } as const;

export interface YesOrNo {
  /** A folder of the test file's own, which goes when its tests have ended. */
  readonly root: string;
  /** Another one at the same folder may follow when it is closed. One thread, so that it starts fast. */
  openBackend(path?: string): LocalBackend;
  createModel(name: string, init?: Partial<TrainableModelInit>): TrainableModel;
}

/** To be called once, outside of tests. */
export function setUpYesOrNo(): YesOrNo {
  let root = '';
  beforeAll(async () => {
    root = await mkdtemp(join(tmpdir(), 'art-yes-or-no-'));
    const sizes = { width: 32, layers: 1, heads: 2, kvHeads: 1, headSize: 16, ffWidth: 64, maxPositions: 128 };
    const corpus = [question.content, 'yes', 'no'];
    await writeStarterModel({ seed: 1, directory: join(root, 'base'), corpus, ...sizes });
  });
  afterAll(() => rm(root, { recursive: true, force: true }));
  const engine = { trainThreads: 1, sampleThreads: 1, cacheTokens: 4096, maxRunningSequences: 16 };
  return {
    get root() {
      return root;
    },
    openBackend: (path = 'runs') => new LocalBackend({ path: join(root, path), engine }),
    createModel: (name, init) =>
      new TrainableModel({ name, project: 'p', baseModel: join(root, 'base'), lora: { rank: 4 }, ...init }),
  };
}

/** From the newest policy; the same seed gives the same choice. */
export async function sampleChoice(model: TrainableModel, seed: number, maxTokens = 8): Promise<ChatChoice> {
  const request = { model: model.getInferenceName(), messages: [question], seed, max_tokens: maxTokens };
  const { choices } = await model.openaiClient().chat.completions.create({ ...request, logprobs: true });
  return choices[0] as ChatChoice;
}

/** Four turns with seeds from `seed` on; the reward of each is its place. */
export async function sampleGroup(model: TrainableModel, seed: number): Promise<TrajectoryGroup> {
  const trajectories: Trajectory[] = [];
  for (let reward = 0; reward < 4; reward++) {
    const choice = await sampleChoice(model, seed + reward);
    trajectories.push(new Trajectory({ messagesAndChoices: [question, choice], reward }));
  }
  return new TrajectoryGroup(trajectories);
}
