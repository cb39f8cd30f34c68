/**
 * Distances on top-k against values worked out by hand, and through the trainer: all ways to compute them agree. Teacher 1/2 and 1/4 with a
 * tail of 1/4, policy 1/4 and 1/4 with a tail of 1/2:
 *   forward: 1/2·ln(2) + 1/4·ln(1) + 1/4·ln(1/2) = ln(2)/4;  reverse: 1/4·ln(1/2) + 1/4·ln(1) + 1/2·ln(2) = ln(2)/4
 * d/d(ln π_k) with the tail following: forward −p_k + p_tail·π_k/π_tail; reverse π_k·(ln(π_k/p_k) − ln(π_tail/p_tail)).
 */
import { describe, expect, test } from 'vitest';
import { randomAdapter, randomIds, randomParameters, tinyConfig } from '../../test/tiny-model.ts';
import { expectClose, tolerances } from '../../test/tolerance.ts';
import { DataError } from '../core/errors.ts';
import { createRng } from '../core/rng.ts';
import { gradients } from '../graph/backward.ts';
import { input, makeGraph } from '../graph/builder.ts';
import { hostIds, hostTensor } from '../graph/runtime.ts';
import { createOrtRuntime } from '../graph/runtime-ort.ts';
import { createReferenceRuntime } from '../graph/runtime-reference.ts';
import { loraSpec } from '../nn/lora.ts';
import { forwardKlTopKLoss, reverseKlTopKLoss } from './distillation-loss.ts';
import type { TrainingSequence } from './microbatch.ts';
import { type LossSpec, Trainer, type TrainerOptions } from './trainer.ts';

const LN2 = Math.log(2);
const ort = await createOrtRuntime({ threads: 1 });
/** Over four tokens; the teacher's best are 2 and 0. The second row has weight 0 and a teacher without a tail. */
const policy = [1 / 4, 3 / 8, 1 / 4, 1 / 8, 0.1, 0.2, 0.3, 0.4];

describe.each([
  ['forward', forwardKlTopKLoss, [1 / 4 / 2 - 1 / 4, -1 / 2 + 1 / 4 / 2]],
  ['reverse', reverseKlTopKLoss, [(0 - LN2) / 4, (-LN2 - LN2) / 4]],
] as const)('%s KL', (_, build, [gradient0, gradient2]) => {
  test.each([
    ['reference', createReferenceRuntime(), 1e-12],
    ['ONNX Runtime', ort, 1e-6],
  ] as const)('has the value and the gradient worked out by hand (%s)', async (_name, runtime, tolerance) => {
    const distribution = input('distribution', ['M', 4]);
    const inputs = {
      distribution,
      teacherIds: input('teacherIds', ['M', 'K'], 'int64'),
      teacherLogprobs: input('teacherLogprobs', ['M', 'K']),
      weights: input('weights', ['M', 1]),
    };
    const loss = build(inputs);
    const executable = await runtime.compile(makeGraph({ loss, gradient: gradients(loss, [distribution])[0]! }));
    const FloatArray: Float64ArrayConstructor | Float32ArrayConstructor =
      tolerance < 1e-9 ? Float64Array : Float32Array;
    const results = await executable.run({
      distribution: hostTensor(FloatArray.from(policy.map(Math.log)), [2, 4]),
      teacherIds: hostIds([2, 0, 1, 3], [2, 2]),
      teacherLogprobs: hostTensor(FloatArray.from([1 / 2, 1 / 4, 0.9, 0.1].map(Math.log)), [2, 2]),
      weights: hostTensor(FloatArray.of(3, 0), [2, 1]),
    });
    expect(Math.abs(Number(results.loss!.data[0]) - (3 * LN2) / 4)).toBeLessThan(tolerance);
    const expected = [3 * gradient0, 0, 3 * gradient2, 0, 0, 0, 0, 0];
    for (const [i, want] of expected.entries()) {
      expect(Math.abs(Number(results.gradient!.data[i]) - want), `entry ${i}`).toBeLessThan(tolerance);
    }
  });
});

const config = tinyConfig({ maxPositions: 512 });
const lora = loraSpec({ rank: 2, alpha: 4 }, config);
const parameters = randomParameters(config, 1);
const K = 5;

function createTrainer(overrides: Partial<TrainerOptions> = {}): Trainer {
  const common = { config, lora, parameters, baked: parameters, runtime: ort, microbatchTokens: 2048 };
  return new Trainer({ ...common, trained: randomAdapter(config, lora, 2), ...overrides });
}

const sequences = [60, 33, 100, 23].map((length, i): TrainingSequence => {
  const rng = createRng('distillation', i);
  const actionMask = Array.from({ length }, (_, t) => (t > 1 && t % 5 !== 0 ? 1 : 0));
  const start = actionMask.map(() => rng.integer(config.vocabSize));
  const raw = actionMask.map(() => Array.from({ length: K + 1 }, () => rng.uniform() + 0.1));
  const total = raw.map((values) => values.reduce((sum, value) => sum + value, 0));
  const ifAction = <T>(value: (t: number) => T[]): T[][] => actionMask.map((mask, t) => (mask === 1 ? value(t) : []));
  return {
    tokenIds: randomIds(length, config.vocabSize, 'distillation', i),
    actionMask,
    samplingLogprobs: actionMask.map(() => 0),
    advantages: actionMask.map(() => 0),
    temperatures: actionMask.map((mask) => (mask === 1 ? 0.5 + rng.uniform() : 1)),
    teacher: {
      tokenIds: ifAction((t) => Array.from({ length: K }, (_, k) => (start[t]! + 3 * k) % config.vocabSize)),
      logprobs: ifAction((t) => raw[t]!.slice(0, K).map((value) => Math.log(value / total[t]!))),
    },
  };
});

describe.each(['forwardKlTopK', 'reverseKlTopK'] as const)('%s through the trainer', (name) => {
  const loss: LossSpec = { name };
  const passOf = async (trainer: Trainer) => {
    const stats = await trainer.forwardBackward(sequences, loss, 1 / 64);
    trainer.update({ learningRate: 0, beta1: 0, beta2: 0, epsilon: 1e-8, weightDecay: 0, maxGradNorm: 0 });
    const moments = [...trainer.optimizer.moments.values()];
    return { stats, gradient: Float32Array.from(moments.flatMap(({ first }) => [...first])) };
  };

  test('whole graph, layers and microbatches agree', async () => {
    const whole = await passOf(createTrainer({ activationRecomputation: 'never' }));
    expect(whole.stats.loss).toBeGreaterThan(0);
    expect(Math.max(...whole.gradient.map(Math.abs))).toBeGreaterThan(1e-4);
    for (const way of [
      { activationRecomputation: 'always' },
      { activationRecomputation: 'never', microbatchTokens: 128 },
    ] as const) {
      const other = await passOf(createTrainer(way));
      expect(other.stats.trainingLogprobs).toEqual(whole.stats.trainingLogprobs);
      expectClose([other.stats.loss], [whole.stats.loss], tolerances.logits);
      expectClose(other.gradient, whole.gradient, tolerances.gradients);
    }
  });

  test.each([
    ['lacks a teacher', ({ teacher: _, ...rest }: TrainingSequence) => rest, /needs teacher, got none/],
    [
      'has fewer tokens at one place',
      ({ teacher, ...rest }: TrainingSequence) => ({
        ...rest,
        teacher: { ...teacher!, tokenIds: teacher!.tokenIds.map((ids, t) => (t === 2 ? ids.slice(1) : ids)) },
      }),
      /datum 0: teacher must have equally many tokens at each place, at least one, got/,
    ],
    [
      'has a token twice',
      ({ teacher, ...rest }: TrainingSequence) => ({
        ...rest,
        teacher: { ...teacher!, tokenIds: teacher!.tokenIds.map((ids) => ids.map(() => 1)) },
      }),
      /datum 0: teacher tokens of a place must differ/,
    ],
  ])('a sequence that %s is refused', async (_what, change, message) => {
    const changed = [change(sequences[0]!), ...sequences.slice(1)];
    await expect(createTrainer().forwardBackward(changed, loss, 1)).rejects.toThrow(message);
    await expect(createTrainer().forwardBackward(changed, loss, 1)).rejects.toThrow(DataError);
  });
});
