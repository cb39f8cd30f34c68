/**
 * One learning task, two loops: gather, then train, in turns; and `PipelineTrainer`. Through the whole stack: SDK, server, embedded engine.
 * The task: two replies of a small untrained model, rewarded for the letter y, with a tool between them that waits `toolMs` and computes
 * nothing, as a search or a database does. That wait is what there is to overlap beside the cores that each phase leaves idle: without it,
 * and with sampling and training that each use all cores, a pipeline wins nothing on one machine.
 */
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { average } from '../src/core/advantage.ts';
import { writeStarterModel } from '../src/formats/starter-model.ts';
import {
  type ChatChoice,
  createGroupRollout,
  type GroupRollout,
  iterateDataset,
  LocalBackend,
  type MemberContext,
  PipelineTrainer,
  TrainableModel,
  Trajectory,
  type TrajectoryGroup,
} from '../src/index.ts';

export interface RaceOptions {
  readonly seed: number;
  /** Mean reward, over the groups of the newest five steps, that ends a run. */
  readonly target: number;
  readonly maxSteps: number;
  readonly groupsPerStep: number;
  readonly toolMs: number;
  readonly trainThreads: number;
}

export interface RaceResult {
  /** From the first rollout to the step that reaches the target, or to the last. */
  readonly seconds: number;
  readonly steps: number;
  readonly reward: number;
  readonly isReached: boolean;
  readonly peakRssMb: number;
}

const groupSize = 4;
const rewardWindow = 5;
const sizes = { width: 128, layers: 4, heads: 4, kvHeads: 2, headSize: 32, ffWidth: 384, maxPositions: 256 };
const scenarios = Array.from({ length: 64 }, (_, index) => `Question ${index}: yes or no?`);
/** Slow enough that two steps of staleness are a small part of the way. */
const trainOptions = { learningRate: 5e-4 } as const;

async function rollOut(
  model: TrainableModel,
  question: string,
  { signal, seed }: MemberContext,
  toolMs: number,
): Promise<Trajectory> {
  const trajectory = new Trajectory({ messagesAndChoices: [{ role: 'user', content: question }] });
  let letters = 0;
  for (let turn = 0; turn < 2; turn++) {
    if (turn > 0) {
      await new Promise((resolve) => setTimeout(resolve, toolMs));
      trajectory.messagesAndChoices.push({ role: 'user', content: 'The tool says: go on.' });
    }
    const completion = await model.openaiClient().chat.completions.create(
      {
        model: model.getInferenceName(),
        messages: trajectory.messages() as { role: 'user'; content: string }[],
        max_tokens: 12,
        seed: seed + turn,
      },
      { signal },
    );
    const choice = completion.choices[0] as ChatChoice;
    trajectory.messagesAndChoices.push(choice);
    letters += String(choice.message.content).split('y').length - 1;
  }
  trajectory.reward = Math.min(letters / 8, 1);
  return trajectory;
}

/** Rewards of all groups, dropped ones too, by the step that they led to. */
class Progress {
  readonly #rewards: number[] = [];
  readonly #startedAt = performance.now();
  #seconds = 0;
  steps = 0;

  /** Returns whether the target is reached. */
  add(rewards: readonly number[], target: number): boolean {
    this.#rewards.push(average(rewards));
    this.steps++;
    this.#seconds = (performance.now() - this.#startedAt) / 1000;
    return this.#rewards.length >= rewardWindow && this.reward >= target;
  }

  get reward(): number {
    return average(this.#rewards.slice(-rewardWindow));
  }

  get seconds(): number {
    return this.#seconds;
  }
}

type Loop = (model: TrainableModel, rollout: GroupRollout<string>, options: RaceOptions) => Promise<Progress>;

/** Gather, train, gather, train. */
export const alternating: Loop = async (model, rollout, options) => {
  const { seed, target, maxSteps, groupsPerStep } = options;
  const progress = new Progress();
  const steps = iterateDataset(scenarios, { groupsPerStep, epochs: Number.POSITIVE_INFINITY, seed });
  for (const { items, step } of steps) {
    const { signal } = new AbortController();
    const groups = await Promise.all(
      items.map((item, index) => {
        const number = step * groupsPerStep + index;
        return rollout(item, { signal, index: number, seed: seed * 100_000 + number });
      }),
    );
    await model.backend().train(model, groups, trainOptions);
    if (progress.add(rewardsOf(groups), target) || step + 1 >= maxSteps) return progress;
  }
  return progress;
};

/** The same rollouts and steps of the same size, side by side. */
export const pipelined: Loop = async (model, rollout, options) => {
  const { seed, target, maxSteps, groupsPerStep } = options;
  const progress = new Progress();
  let finished: TrajectoryGroup[] = [];
  const trainer = new PipelineTrainer({
    ...{ model, scenarios, untilStep: maxSteps, seed, trainOptions, workers: 3 * groupsPerStep, maxStaleness: 2 },
    ...{ minBatchSize: groupsPerStep, maxBatchSize: groupsPerStep, stateKey: null },
    rollout: async (scenario, context) => {
      const group = await rollout(scenario, context);
      finished.push(group);
      return group;
    },
    onStep: () => {
      if (progress.add(rewardsOf(finished), target)) trainer.requestStop();
      finished = [];
    },
  });
  await trainer.run();
  return progress;
};

const rewardsOf = (groups: readonly TrajectoryGroup[]): number[] =>
  groups.flatMap(({ trajectories }) => trajectories.map(({ reward }) => reward));

/** A run of its own: fresh model, fresh engine. */
export async function race(loop: Loop, options: RaceOptions): Promise<RaceResult> {
  const folder = await mkdtemp(join(tmpdir(), 'art-bench-pipeline-'));
  const baseModel = join(folder, 'base');
  await writeStarterModel({
    seed: options.seed,
    directory: baseModel,
    corpus: ['yes no go on', ...scenarios],
    ...sizes,
  });
  const backend = new LocalBackend({ path: join(folder, 'runs'), engine: { trainThreads: options.trainThreads } });
  try {
    const model = new TrainableModel({ name: 'bench', project: 'bench', baseModel, seed: options.seed });
    await model.register(backend);
    const rollout = createGroupRollout<string>(
      (question, context) => rollOut(model, question, context, options.toolMs),
      { groupSize },
    );
    const progress = await loop(model, rollout, options);
    const { engine } = await backend.getState(model);
    const { seconds, steps, reward } = progress;
    const isReached = reward >= options.target;
    return { seconds, steps, reward, isReached, peakRssMb: engine.peakRssBytes / 2 ** 20 };
  } finally {
    await backend.close();
    await rm(folder, { recursive: true, force: true });
  }
}
