/** Pain 3: frozen at "train 0%". Here what stands still is named: every stage, what it waits for, and since when. */
import { expect, test } from 'vitest';
import { createGroupRollout, PipelineTrainer, StallError, TrainableModel, Trajectory } from '../../src/index.ts';
import { ScriptedBackend } from '../sdk/scripted-backend.ts';

test('a train call that never answers ends as a StallError that tells who waits for whom', async () => {
  const backend = new ScriptedBackend({ beforePublish: () => new Promise(() => {}) });
  const model = new TrainableModel({ name: 'a', project: 'p', baseModel: './m' });
  await model.register(backend.asBackend());
  const rollout = createGroupRollout<string>(async (_scenario, { member }) => new Trajectory({ reward: member }), {
    groupSize: 2,
  });
  const options = { model, scenarios: ['a'], rollout, untilStep: 1, minBatchSize: 1, workers: 4, stallTimeoutMs: 200 };
  const error = await new PipelineTrainer(options).run().catch((reason: unknown) => reason);
  expect(error).toBeInstanceOf(StallError);
  const { message, details } = error as StallError;
  expect(message).toMatch(/trainer: trains step 1 on \d groups?.*, for 0\.\d s/);
  expect(message).toMatch(/worker \d: waits for the trainer to take groups/);
  expect(details.stages).toContainEqual({ stage: 'trainer', what: expect.any(String), seconds: expect.any(Number) });
});
