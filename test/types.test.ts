/** Types of the public entries, as a user's compiler sees them. Checked by `tsc`; nothing happens when it runs. */

import {
  type Backend,
  type CaptureContext,
  type ChatChoice,
  type ChatModel,
  captureRollout,
  captureTrajectory,
  type DistillOptions,
  exactMatch,
  type GatherProgress,
  gatherTrajectories,
  gatherTrajectoryGroups,
  iterateDataset,
  type LocalBackend,
  limitConcurrency,
  type Model,
  type PendingGroup,
  type PipelineOptions,
  PipelineTrainer,
  type RemoteBackend,
  type RetryOptions,
  type Reward,
  type Rollout,
  retry,
  type rulerScoreGroup,
  type SftExample,
  type SftOptions,
  type Tracker,
  TrainableModel,
  type TrainOptions,
  type TrainResult,
  Trajectory,
  type TrajectoryGroup,
  trainSftFromFile,
  trajectoryGroup,
} from 'agent-reinforcement-trainer';
import type { Environment } from 'agent-reinforcement-trainer/environments';
import type { McpScenario } from 'agent-reinforcement-trainer/mcp';
import { type Row, toTrajectoryGroups } from 'agent-reinforcement-trainer/parquet';
import type OpenAI from 'openai';
import { expectTypeOf, test } from 'vitest';

test('models and backends', () => {
  expectTypeOf<TrainableModel>().toExtend<ChatModel>();
  expectTypeOf<Model>().toExtend<ChatModel>();
  expectTypeOf<LocalBackend>().toExtend<Backend & AsyncDisposable>();
  expectTypeOf<RemoteBackend>().toExtend<Backend>();
  expectTypeOf<ReturnType<TrainableModel['openaiClient']>>().toEqualTypeOf<OpenAI>();
  expectTypeOf<Backend['train']>().returns.resolves.toEqualTypeOf<TrainResult>();
  expectTypeOf<TrainResult['metrics']>().toEqualTypeOf<Readonly<Record<string, number>>>();
});

test('options are exact', () => {
  expectTypeOf<NonNullable<TrainOptions['learningRate']>>().toEqualTypeOf<number>();
  expectTypeOf<NonNullable<TrainOptions['loss']>>().toEqualTypeOf<
    'cispo' | 'ppo' | 'grpo' | 'dapo' | 'drGrpo' | 'bnpo' | 'gspo' | 'importanceSampling'
  >();
  // @ts-expect-error an unknown option does not compile
  ({ lr: 1 }) satisfies TrainOptions;
  // @ts-expect-error nor does one of a nested object
  ({ adam: { beta: 1 } }) satisfies TrainOptions;
  // @ts-expect-error nor a loss that does not exist
  ({ loss: 'grp' }) satisfies TrainOptions;
  // @ts-expect-error a model needs its base
  new TrainableModel({ name: 'a', project: 'b' });
});

test('trajectories', () => {
  expectTypeOf<Trajectory['metrics']>().toEqualTypeOf<Record<string, number | boolean>>();
  expectTypeOf<ReturnType<Trajectory['allChoices']>>().toEqualTypeOf<ChatChoice[]>();
  expectTypeOf<TrajectoryGroup>().toExtend<Iterable<Trajectory>>();
  class Answered extends Trajectory {
    answer = '';
  }
  expectTypeOf<Answered>().toExtend<Trajectory>();
  // A choice of the official client is one of ours.
  expectTypeOf<OpenAI.ChatCompletion.Choice>().toExtend<ChatChoice>();
});

test('gathering', () => {
  expectTypeOf(trajectoryGroup).returns.toEqualTypeOf<PendingGroup>();
  expectTypeOf(gatherTrajectoryGroups).returns.resolves.toEqualTypeOf<TrajectoryGroup[]>();
  expectTypeOf(gatherTrajectories).returns.resolves.toEqualTypeOf<Trajectory[]>();
  expectTypeOf<GatherProgress>().toHaveProperty('exceptions');
  const add = async (a: number, b: string): Promise<boolean> => a === Number(b);
  expectTypeOf(retry(add)).parameters.toEqualTypeOf<[number, string]>();
  expectTypeOf(retry(add)).returns.resolves.toEqualTypeOf<boolean>();
  expectTypeOf(limitConcurrency(add, 2)).parameters.toEqualTypeOf<[number, string]>();
  for (const batch of iterateDataset([{ a: 1 }])) expectTypeOf(batch.items).toExtend<readonly { a: number }[]>();
});

test('capture keeps the type of what the agent returns', () => {
  const run = () => captureTrajectory(async ({ signal }) => ({ answer: 5, signal }));
  expectTypeOf<Awaited<ReturnType<typeof run>>['output']>().toEqualTypeOf<{ answer: number; signal: AbortSignal }>();
  expectTypeOf<CaptureContext['fetch']>().toEqualTypeOf<typeof globalThis.fetch>();
});

test('rewards and data', () => {
  expectTypeOf(exactMatch).returns.toExtend<Reward<never>>();
  expectTypeOf<Awaited<ReturnType<typeof rulerScoreGroup>>>().toExtend<TrajectoryGroup | null>();
  expectTypeOf(toTrajectoryGroups).parameter(0).toEqualTypeOf<readonly Row[]>();
  expectTypeOf<McpScenario['difficulty']>().toEqualTypeOf<1 | 2 | 3 | 4 | 5>();
  expectTypeOf<Environment['reset']>().returns.resolves.toHaveProperty('done');
});

test('the pipeline knows its scenario from its options', () => {
  const start = (options: PipelineOptions<{ city: string }>) => new PipelineTrainer(options);
  expectTypeOf(start).returns.toEqualTypeOf<PipelineTrainer<{ city: string }>>();
  expectTypeOf<PipelineOptions<{ city: string }>['scenarios']>().toEqualTypeOf<readonly { city: string }[]>();
  // @ts-expect-error it trains to a step that must be said
  ({ seed: 1 }) satisfies Pick<PipelineOptions<string>, 'untilStep' | 'seed'>;
});

test('fine-tuning, distillation, retries and trackers', () => {
  expectTypeOf<TrainableModel['trainSft']>().parameter(0).toEqualTypeOf<readonly SftExample[]>();
  expectTypeOf<Trajectory>().toExtend<SftExample>();
  expectTypeOf<TrainableModel['trainSft']>().returns.resolves.toEqualTypeOf<TrainResult>();
  expectTypeOf(trainSftFromFile).parameter(0).toEqualTypeOf<TrainableModel>();
  expectTypeOf<TrainableModel['distill']>().returns.resolves.toEqualTypeOf<TrainResult>();
  expectTypeOf<TrainableModel>().toExtend<DistillOptions['teacher']>();
  expectTypeOf(captureRollout).returns.toEqualTypeOf<Rollout>();
  expectTypeOf<ReturnType<Tracker['logMetrics']>>().toEqualTypeOf<void>();
  // @ts-expect-error distillation needs a teacher
  ({ topK: 4 }) satisfies DistillOptions;
  // @ts-expect-error a loss of another call does not compile
  ({ loss: 'ppo' }) satisfies SftOptions;
  // @ts-expect-error Python's name of it
  ({ max_attempts: 3 }) satisfies RetryOptions;
});
