/**
 * Losses against values worked out by hand. With ρ = exp(training − sampling), weight w, advantage A:
 *   CISPO: −w · clip(ρ, low, high) · A · training,            gradient −w · clip(ρ, low, high) · A
 *   PPO:   −w · min(ρA, clip(ρ, 1 − low, 1 + high) · A),      gradient −w · ρ · A where ρA is the smaller, else 0
 *   GSPO:  as PPO with the ratio s of the trajectory, which is given
 *   importance sampling: −w · ρA,                             gradient −w · ρA
 *   k3 with r = exp(reference − training): w · (r − ln r − 1), gradient w · (1 − r)
 */
import { describe, expect, test } from 'vitest';
import { expectClose, type Tolerance, tolerances } from '../../test/tolerance.ts';
import { gradients } from '../graph/backward.ts';
import { input, makeGraph, type Tensor } from '../graph/builder.ts';
import { hostTensor, type Runtime } from '../graph/runtime.ts';
import { createOrtRuntime } from '../graph/runtime-ort.ts';
import { createReferenceRuntime } from '../graph/runtime-reference.ts';
import {
  cispoLoss,
  crossEntropyLoss,
  gspoLoss,
  importanceSamplingLoss,
  klK3Sum,
  type LossInputs,
  ppoLoss,
  type SequenceLossInputs,
} from './loss.ts';

type Inputs = LossInputs & SequenceLossInputs & { readonly referenceLogprobs: Tensor };

interface Row {
  /** ρ, s or r of the formulas. */
  readonly ratio: number;
  readonly advantage: number;
  readonly weight: number;
  /** Of the row's loss, and of its derivative by the training logprob. */
  readonly loss: number;
  readonly gradient: number;
}

/** exp(training) = 1/2 in every row, and the sampling logprob gives the ratio. */
const TRAINING = Math.log(0.5);

const runtimes: readonly (readonly [string, Runtime, Tolerance])[] = [
  // Sampling logprobs pass through exp and log, so float64 is good to 1e-12 or so.
  ['reference', createReferenceRuntime(), { rtol: 1e-12, atol: 1e-14 }],
  ['ONNX Runtime', await createOrtRuntime({ threads: 1 }), tolerances.loss],
];

async function evaluate(
  runtime: Runtime,
  build: (inputs: Inputs, clip: { clipLow: Tensor; clipHigh: Tensor }) => Tensor,
  rows: readonly Row[],
  clip: { readonly clipLow: number; readonly clipHigh: number },
): Promise<{ loss: number; gradient: ArrayLike<number> }> {
  const column = (name: string): Tensor => input(name, ['M', 1]);
  const inputs = {
    trainingLogprobs: column('trainingLogprobs'),
    weights: column('weights'),
    samplingLogprobs: column('samplingLogprobs'),
    advantages: column('advantages'),
    sequenceLogRatios: column('sequenceLogRatios'),
    referenceLogprobs: column('referenceLogprobs'),
  };
  const loss = build(inputs, { clipLow: input('clipLow', []), clipHigh: input('clipHigh', []) });
  const [gradient] = gradients(loss, [inputs.trainingLogprobs]);
  const graph = makeGraph({ loss, gradient: gradient! });
  const values: Readonly<Record<string, readonly number[]>> = {
    trainingLogprobs: rows.map(() => TRAINING),
    weights: rows.map(({ weight }) => weight),
    samplingLogprobs: rows.map(({ ratio }) => TRAINING - Math.log(ratio)),
    advantages: rows.map(({ advantage }) => advantage),
    sequenceLogRatios: rows.map(({ ratio }) => Math.log(ratio)),
    referenceLogprobs: rows.map(({ ratio }) => TRAINING + Math.log(ratio)),
    clipLow: [clip.clipLow],
    clipHigh: [clip.clipHigh],
  };
  const used = graph.inputs.map((tensor) => [tensor.name!, tensor.shape.length === 0] as const);
  const feeds = used.map(([name, isScalar]) => {
    const data = Float64Array.from(values[name]!);
    return [name, hostTensor(data, isScalar ? [] : [data.length, 1])] as const;
  });
  const executable = await runtime.compile(graph);
  const results = await executable.run(Object.fromEntries(feeds));
  await executable.dispose();
  return { loss: Number(results.loss!.data[0]), gradient: results.gradient!.data as Float32Array };
}

async function check(
  runtime: Runtime,
  tolerance: Tolerance,
  build: Parameters<typeof evaluate>[1],
  rows: readonly Row[],
  clip: { readonly clipLow: number; readonly clipHigh: number },
): Promise<void> {
  for (const row of rows) {
    const alone = await evaluate(runtime, build, [row], clip);
    expectClose([alone.loss], [row.loss], tolerance, `loss of ${JSON.stringify(row)}`);
  }
  const { loss, gradient } = await evaluate(runtime, build, rows, clip);
  const total = rows.reduce((sum, row) => sum + row.loss, 0);
  expectClose([loss], [total], { ...tolerance, atol: 1e-6 }, 'sum of the rows');
  expectClose(
    gradient,
    rows.map((row) => row.gradient),
    tolerance,
    'gradient',
  );
}

const LN2 = Math.LN2; // −training

describe.each(runtimes)('%s', (_name, runtime, tolerance) => {
  test('CISPO weighs by the clipped ratio and drops no gradient', async () => {
    const rows: readonly Row[] = [
      { ratio: 1, advantage: 2, weight: 0.5, loss: 0.5 * 2 * LN2, gradient: -0.5 * 2 },
      { ratio: 1.5, advantage: 1, weight: 1, loss: 1.5 * LN2, gradient: -1.5 },
      // Above the range, for both signs of the advantage: the weight is held, the gradient stays.
      { ratio: 8, advantage: 1, weight: 1, loss: 3 * LN2, gradient: -3 },
      { ratio: 8, advantage: -1, weight: 1, loss: -3 * LN2, gradient: 3 },
      // Below the range.
      { ratio: 0.125, advantage: 1, weight: 1, loss: 0.25 * LN2, gradient: -0.25 },
      { ratio: 0.125, advantage: -2, weight: 0.25, loss: -0.25 * 2 * 0.25 * LN2, gradient: 0.25 * 2 * 0.25 },
      { ratio: 1.7, advantage: 0, weight: 1, loss: 0, gradient: 0 },
      { ratio: 1.7, advantage: 5, weight: 0, loss: 0, gradient: 0 },
    ];
    await check(runtime, tolerance, cispoLoss, rows, { clipLow: 0.25, clipHigh: 3 });
  });

  test('PPO takes the worse of the ratio and the clipped ratio', async () => {
    const rows: readonly Row[] = [
      // Inside the range both are equal.
      { ratio: 1, advantage: 2, weight: 0.5, loss: -1, gradient: -1 },
      { ratio: 1.25, advantage: -1, weight: 1, loss: 1.25, gradient: 1.25 },
      // Above 1.5: a good action gains nothing more, a bad one is still pushed down.
      { ratio: 2, advantage: 1, weight: 1, loss: -1.5, gradient: 0 },
      { ratio: 2, advantage: -1, weight: 1, loss: 2, gradient: 2 },
      // Below 0.75: a good action is still pushed up, a bad one loses nothing more.
      { ratio: 0.5, advantage: 1, weight: 1, loss: -0.5, gradient: -0.5 },
      { ratio: 0.5, advantage: -2, weight: 2, loss: 3, gradient: 0 },
      { ratio: 2, advantage: 3, weight: 0, loss: 0, gradient: 0 },
    ];
    await check(runtime, tolerance, ppoLoss, rows, { clipLow: 0.25, clipHigh: 0.5 });
  });

  test('GSPO clips by the ratio of the sequence, and its gradient is that ratio on every token', async () => {
    const rows: readonly Row[] = [
      { ratio: 1, advantage: 2, weight: 0.5, loss: -1, gradient: -1 },
      // Inside [0.9, 1.2]: −0.25 · 1.1 · 3 for each of four tokens with weight 1/4.
      { ratio: 1.1, advantage: 3, weight: 0.25, loss: -0.825, gradient: -0.825 },
      { ratio: 1.5, advantage: 1, weight: 1, loss: -1.2, gradient: 0 },
      { ratio: 1.5, advantage: -1, weight: 1, loss: 1.5, gradient: 1.5 },
      { ratio: 0.5, advantage: 1, weight: 1, loss: -0.5, gradient: -0.5 },
      { ratio: 0.5, advantage: -2, weight: 1, loss: 1.8, gradient: 0 },
    ];
    await check(runtime, tolerance, gspoLoss, rows, { clipLow: 0.1, clipHigh: 0.2 });
  });

  test('importance sampling weighs by the ratio, whatever it is', async () => {
    const rows: readonly Row[] = [
      { ratio: 1, advantage: 2, weight: 0.5, loss: -1, gradient: -1 },
      { ratio: 8, advantage: 1, weight: 1, loss: -8, gradient: -8 },
      { ratio: 8, advantage: -0.5, weight: 0.25, loss: 1, gradient: 1 },
      { ratio: 0.125, advantage: -2, weight: 2, loss: 0.5, gradient: 0.5 },
      { ratio: 3, advantage: 5, weight: 0, loss: 0, gradient: 0 },
    ];
    await check(runtime, tolerance, importanceSamplingLoss, rows, { clipLow: 0, clipHigh: 0 });
  });

  test('k3 is r − ln r − 1: 0 at equal policies, never below', async () => {
    const rows: readonly Row[] = [
      { ratio: 1, advantage: 0, weight: 1, loss: 0, gradient: 0 },
      // r = 2: 2 − 0.693147 − 1 = 0.306853; the policy must grow where the reference is likelier.
      { ratio: 2, advantage: 0, weight: 1, loss: 1 - LN2, gradient: -1 },
      // r = 1/2: 0.5 + 0.693147 − 1 = 0.193147.
      { ratio: 0.5, advantage: 0, weight: 2, loss: 2 * (LN2 - 0.5), gradient: 1 },
      { ratio: 4, advantage: 0, weight: 0.5, loss: 0.5 * (3 - 2 * LN2), gradient: -1.5 },
      { ratio: 4, advantage: 0, weight: 0, loss: 0, gradient: 0 },
    ];
    await check(runtime, tolerance, klK3Sum, rows, { clipLow: 0, clipHigh: 0 });
  });

  test('cross-entropy is the weighted sum of −ln π', async () => {
    const rows: readonly Row[] = [
      { ratio: 1, advantage: 0, weight: 1, loss: LN2, gradient: -1 },
      { ratio: 1, advantage: 0, weight: 0.25, loss: 0.25 * LN2, gradient: -0.25 },
      { ratio: 1, advantage: 0, weight: 0, loss: 0, gradient: 0 },
    ];
    await check(runtime, tolerance, crossEntropyLoss, rows, { clipLow: 0, clipHigh: 0 });
  });
});

test('at the clip edges themselves the ratio still counts as inside', async () => {
  // exp(0) = 1 is exact, so bounds of 1 are met exactly: ratio = clipLow = clipHigh = 1.
  const [, reference] = runtimes[0]!;
  const edge = { ratio: 1, weight: 1 } as const;
  for (const advantage of [2, -2]) {
    const rows = [{ ...edge, advantage, loss: -advantage, gradient: -advantage }];
    await check(reference, tolerances.reference, ppoLoss, rows, { clipLow: 0, clipHigh: 0 });
    const cispoRows = [{ ...edge, advantage, loss: advantage * LN2, gradient: -advantage }];
    await check(reference, tolerances.reference, cispoLoss, cispoRows, { clipLow: 1, clipHigh: 1 });
  }
  expect(Math.exp(0)).toBe(1);
});
