/** The trainer's loss, logprobs and gradients of every family against PyTorch's, with all weights trained and with PEFT's adapter. */
import { describe, expect, test } from 'vitest';
import { createOrtRuntime } from '../../src/graph/runtime-ort.ts';
import type { Parameters } from '../../src/nn/parameters.ts';
import { Trainer, type TrainerOptions } from '../../src/train/trainer.ts';
import { expectClose, tolerances } from '../tolerance.ts';
import { type FamilyFixture, type FixtureAdapter, families } from './families.ts';

const runtime = await createOrtRuntime({ threads: 1 });
const withGradients = families.filter(({ adapter }) => adapter !== null);
const ways = [
  ['both sequences in one row', { microbatchTokens: 4096, activationRecomputation: 'never' }],
  ['each sequence a microbatch', { microbatchTokens: 1, activationRecomputation: 'never' }],
  ['layer by layer', { microbatchTokens: 4096, activationRecomputation: 'always' }],
] as const satisfies readonly (readonly [string, Partial<TrainerOptions>])[];
type Way = (typeof ways)[number][1];

interface Outcome {
  readonly loss: number;
  readonly logprobs: readonly (readonly number[])[];
  readonly gradients: ReadonlyMap<string, Float32Array>;
}

/** One backward pass over the sequences of the fixture. */
async function train(
  { config, parameters, expected }: FamilyFixture,
  adapter: FixtureAdapter | null,
  way: Way,
): Promise<Outcome> {
  const copy = (map: Parameters): Parameters =>
    new Map([...map].map(([name, { shape, data }]) => [name, { shape, data: data.slice() }]));
  const trained = copy(adapter?.parameters ?? parameters);
  const trainer = new Trainer({
    config,
    lora: adapter?.lora ?? null,
    parameters: adapter ? parameters : trained,
    trained,
    baked: new Map(),
    runtime,
    ...way,
  });
  const sequences = expected.sequences.map((sequence) => ({
    ...sequence,
    samplingLogprobs: sequence.tokenIds.map(() => 0),
    advantages: sequence.tokenIds.map(() => 0),
    temperatures: sequence.tokenIds.map(() => 1),
  }));
  const { loss, trainingLogprobs } = await trainer.forwardBackward(sequences, { name: 'crossEntropy' }, 1);
  // With beta1 = 0 the first moment of the update is the gradient itself.
  trainer.update({ learningRate: 0, beta1: 0, beta2: 0, epsilon: 1, weightDecay: 0, maxGradNorm: 0 });
  const gradients = new Map([...trainer.optimizer.moments].map(([name, { first }]) => [name, first]));
  return { loss, logprobs: trainingLogprobs, gradients };
}

function expectEqual({ expected, tensors }: FamilyFixture, outcome: Outcome, prefix: string, loss: number): void {
  expectClose([outcome.loss], [loss], tolerances.logits, 'loss');
  for (const [i, { actionMask }] of expected.sequences.entries()) {
    const wanted = tensors.get(`${prefix}logprobs/${i}`)!.data;
    const logprobs = actionMask.map((action, t) => (action === 1 ? wanted[t - 1]! : 0));
    expectClose(outcome.logprobs[i]!, logprobs, tolerances.logits, `logprobs of sequence ${i}`);
  }
  const names = [...tensors.keys()].filter((name) => name.startsWith(`${prefix}gradient/`));
  expect([...outcome.gradients.keys()].sort()).toEqual(names.map((name) => name.split('gradient/')[1]).sort());
  for (const [name, gradient] of outcome.gradients) {
    const wanted = tensors.get(`${prefix}gradient/${name}`)!.data;
    expect(
      wanted.some((value) => value !== 0),
      `gradient of ${name}`,
    ).toBe(true);
    expectClose(gradient, wanted, tolerances.gradients, `gradient of ${name}`);
  }
}

describe.each(withGradients.map((fixture) => [fixture.name, fixture] as const))('%s', (_name, fixture) => {
  test.each(ways)('every weight trained, %s', async (_what, way) => {
    expectEqual(fixture, await train(fixture, null, way), '', fixture.expected.loss);
  });

  test.each(ways)('the adapter trained, %s', async (_what, way) => {
    expectEqual(fixture, await train(fixture, fixture.adapter, way), 'adapter/', fixture.expected.adapterLoss!);
  });
});
