/**
 * Every loss and term of `loss-graph.ts` against central differences in float64, through a softmax over the vocabulary. What is
 * differentiated numerically is the objective as its paper writes it, in plain JavaScript: for GSPO the ratio of whole sequences, for
 * CISPO the weight held where it is. Two trajectories of three tokens, one of two; a padding row at the end.
 */
import { describe, expect, test } from 'vitest';
import { createRng } from '../core/rng.ts';
import { gradients } from '../graph/backward.ts';
import { input, logSoftmax, makeGraph } from '../graph/builder.ts';
import { type HostTensor, hostIds, hostTensor } from '../graph/runtime.ts';
import { createReferenceRuntime } from '../graph/runtime-reference.ts';
import { type LossKind, lossNames, lossOutputs, policyLossNames, policyTermNames } from './loss-graph.ts';

const VOCAB = 5;
const targets = [1, 4, 0, 2, 2, 3, 0, 4, 0];
const trajectoryOf = [0, 0, 0, 1, 1, 1, 2, 2, 3];
const ROWS = targets.length;
/** GSPO is about trajectories: one advantage and weights of 1 / tokens. */
const advantages = [1.5, 1.5, 1.5, -2, -2, -2, 0.5, 0.5, 9];
const weights = [3, 3, 3, 3, 3, 3, 2, 2, 0].map((length) => (length === 0 ? 0 : 1 / (3 * length)));
const settings = { clipLow: 0.3, clipHigh: 0.4, entropyBonus: 0.2, klWeight: 0.6 };
/** training − sampling: inside, above and below the clip range; by trajectories ln s is 0.2, −0.9 and 0.05. */
const logRatios = [0.3, -0.7, 1, -1.5, -0.2, -1, 0.25, -0.15, 0];
const referenceGaps = [0.4, -0.4, 0, 1, -1, 0.1, 0.2, -2, 0];
const STEP = 1e-5;
const MAX_ERROR = 1e-8;

const rng = createRng('loss-gradients');
const start = Float64Array.from({ length: ROWS * VOCAB }, () => rng.normal());
const rows = Array.from({ length: ROWS }, (_, i) => i);

function logSoftmaxOf(logits: Float64Array): number[][] {
  return rows.map((i) => {
    const row = [...logits.subarray(i * VOCAB, (i + 1) * VOCAB)];
    const total = Math.log(row.reduce((sum, logit) => sum + Math.exp(logit), 0));
    return row.map((logit) => logit - total);
  });
}

const logprobsOf = (logits: Float64Array): number[] => logSoftmaxOf(logits).map((row, i) => row[targets[i]!]!);
const atStart = logprobsOf(start);
const sampling = atStart.map((logprob, i) => logprob - logRatios[i]!);
const reference = atStart.map((logprob, i) => logprob + referenceGaps[i]!);
const weightedSum = (perRow: (i: number) => number): number =>
  rows.reduce((sum, i) => sum + weights[i]! * perRow(i), 0);
const clip = (value: number, low: number, high: number): number => Math.min(Math.max(value, low), high);
const surrogate = (ratio: number, advantage: number): number =>
  Math.min(ratio * advantage, clip(ratio, 1 - settings.clipLow, 1 + settings.clipHigh) * advantage);

function sequenceLogRatio(logprobs: readonly number[], row: number): number {
  const own = rows.filter((i) => trajectoryOf[i] === trajectoryOf[row]);
  return own.reduce((sum, i) => sum + logprobs[i]! - sampling[i]!, 0) / own.length;
}

/** A teacher's three best of five tokens; without a tail in row 2. */
const teacherIds = rows.map((i) => [i % VOCAB, (i + 2) % VOCAB, (i + 3) % VOCAB]);
const teacherProbabilities = rows.map((i) => (i === 2 ? [0.5, 0.3, 0.2] : [0.5, 0.2, 0.1]));

/** KL over the three and the tail; `from` and `to` of a row's four probabilities. */
function divergence(rows_V: readonly number[][], isForward: boolean): number {
  const withTail = (best: readonly number[]): number[] => [
    ...best,
    Math.max(1e-6, 1 - best.reduce((sum, value) => sum + value, 0)),
  ];
  return weightedSum((i) => {
    const policy = withTail(teacherIds[i]!.map((id) => Math.exp(rows_V[i]![id]!)));
    const teacher = withTail(teacherProbabilities[i]!);
    const [from, to] = isForward ? [teacher, policy] : [policy, teacher];
    return from.reduce((sum, p, k) => sum + p * Math.log(p / to[k]!), 0);
  });
}

const objectives: Readonly<Record<string, (logprobs: readonly number[], rows_V: readonly number[][]) => number>> = {
  cispo: (logprobs) =>
    weightedSum(
      (i) => -clip(Math.exp(logRatios[i]!), settings.clipLow, settings.clipHigh) * advantages[i]! * logprobs[i]!,
    ),
  ppo: (logprobs) => weightedSum((i) => -surrogate(Math.exp(logprobs[i]! - sampling[i]!), advantages[i]!)),
  gspo: (logprobs) => weightedSum((i) => -surrogate(Math.exp(sequenceLogRatio(logprobs, i)), advantages[i]!)),
  importanceSampling: (logprobs) => weightedSum((i) => -Math.exp(logprobs[i]! - sampling[i]!) * advantages[i]!),
  crossEntropy: (logprobs) => weightedSum((i) => -logprobs[i]!),
  forwardKlTopK: (_, distribution) => divergence(distribution, true),
  reverseKlTopK: (_, distribution) => divergence(distribution, false),
};
const termObjectives: Readonly<Record<string, (logprobs: readonly number[], rows_V: readonly number[][]) => number>> = {
  entropyBonus: (_, distribution) =>
    settings.entropyBonus *
    weightedSum((i) => distribution[i]!.reduce((sum, logprob) => sum + Math.exp(logprob) * logprob, 0)),
  klWeight: (logprobs) =>
    settings.klWeight *
    weightedSum((i) => {
      const x = reference[i]! - logprobs[i]!;
      return Math.exp(x) - x - 1;
    }),
};

async function graphGradient(kind: LossKind): Promise<{ loss: number; gradient: Float64Array }> {
  const logits = input('logits', ['M', VOCAB]);
  const { loss } = lossOutputs(kind, logSoftmax(logits));
  const graph = makeGraph({ loss, gradient: gradients(loss, [logits])[0]! });
  const column = (values: readonly number[]): HostTensor => hostTensor(Float64Array.from(values), [values.length, 1]);
  const scalars = Object.entries(settings).map(([name, value]) => [name, hostTensor(Float64Array.of(value), [])]);
  const all: Readonly<Record<string, HostTensor>> = {
    logits: hostTensor(start, [ROWS, VOCAB]),
    targets: hostIds(targets, [ROWS, 1]),
    weights: column(weights),
    advantages: column(advantages),
    samplingLogprobs: column(sampling),
    referenceLogprobs: column(reference),
    sequenceLogRatios: column(rows.map((i) => sequenceLogRatio(atStart, i))),
    teacherIds: hostIds(teacherIds.flat(), [ROWS, 3]),
    teacherLogprobs: hostTensor(Float64Array.from(teacherProbabilities.flat(), Math.log), [ROWS, 3]),
    ...Object.fromEntries(scalars),
  };
  const feeds = graph.inputs.map(({ name }) => [name!, all[name!]!] as const);
  const results = await (await createReferenceRuntime().compile(graph)).run(Object.fromEntries(feeds));
  return { loss: Number(results.loss!.data[0]), gradient: results.gradient!.data as Float64Array };
}

async function expectDerivative(kind: LossKind): Promise<void> {
  const [name, ...terms] = kind.split('+') as [string, ...string[]];
  const objective = (logits: Float64Array): number => {
    const [logprobs, distribution] = [logprobsOf(logits), logSoftmaxOf(logits)];
    return terms.reduce(
      (sum, term) => sum + termObjectives[term]!(logprobs, distribution),
      objectives[name]!(logprobs, distribution),
    );
  };
  const { loss, gradient } = await graphGradient(kind);
  expect(loss).toBeCloseTo(objective(start), 10);
  for (const [i, got] of gradient.entries()) {
    const moved = (step: number): number => objective(start.map((value, j) => (j === i ? value + step : value)));
    const numeric = (moved(STEP) - moved(-STEP)) / (2 * STEP);
    expect(Math.abs(numeric - got), `${kind} at logit ${i}`).toBeLessThan(MAX_ERROR);
  }
  expect(Math.max(...gradient.map(Math.abs))).toBeGreaterThan(0.05);
}

test.each(lossNames)('%s has the gradient of its objective', async (name) => {
  await expectDerivative(name);
});

describe.each(policyTermNames)('%s', (term) => {
  test.each(policyLossNames)('added to %s', async (name) => {
    await expectDerivative(`${name}+${term}`);
  });
});

test('all terms at once', async () => {
  await expectDerivative(`cispo+${policyTermNames.join('+')}` as LossKind);
});

test('a loss without terms reads nothing of them: no reference, no entropy', () => {
  const inputsOf = (kind: LossKind): string[] => {
    const { loss } = lossOutputs(kind, input('distribution', ['M', VOCAB]));
    return makeGraph({ loss }).inputs.map(({ name }) => name!);
  };
  for (const name of policyLossNames) {
    const plain = inputsOf(name);
    for (const absent of ['referenceLogprobs', 'klWeight', 'entropyBonus']) expect(plain).not.toContain(absent);
    expect(inputsOf(`${name}+klWeight`)).toEqual(expect.arrayContaining(['referenceLogprobs', 'klWeight']));
  }
});
