/** Lanes give the bits of the thread that starts them, whichever lane computes what. Threads run the compiled files of `dist`. */
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { expect, test } from 'vitest';
import { randomAdapter, randomIds, randomParameters, tinyConfig } from '../../test/tiny-model.ts';
import { expectSameBits } from '../../test/tolerance.ts';
import { EngineError } from '../core/errors.ts';
import { createOrtRuntime } from '../graph/runtime-ort.ts';
import { loraSpec } from '../nn/lora.ts';
import type { TrainingSequence } from './microbatch.ts';
import { type ActivationRecomputation, Trainer } from './trainer.ts';

const compiled = pathToFileURL(join(import.meta.dirname, '../../dist/src/train/lanes.js'));
const { Lanes }: typeof import('./lanes.ts') = await import(compiled.href);

const config = tinyConfig();
const lora = loraSpec({ rank: 2, alpha: 4 }, config);
const settings = { learningRate: 1e-2, beta1: 0.9, beta2: 0.99, epsilon: 1e-8, weightDecay: 0, maxGradNorm: 1 };

const sequences = [90, 30, 75, 120, 60, 110, 45].map((length, seed): TrainingSequence => {
  const tokenIds = randomIds(length, config.vocabSize, 'lanes', seed);
  const actions = tokenIds.map((_, t) => (t > 5 ? 1 : 0));
  return {
    tokenIds,
    actionMask: actions,
    samplingLogprobs: actions.map(() => -4),
    advantages: actions.map(() => (seed % 2 === 0 ? 1 : -1)),
    temperatures: actions.map(() => 1),
    referenceLogprobs: actions.map(() => -3.5),
    sequenceLogRatio: seed / 50,
  };
});

/** What two steps give: sums, logprobs and the weights after them. */
async function twoSteps(count: number, isFull: boolean, activationRecomputation: ActivationRecomputation) {
  const parameters = randomParameters(config, 1);
  const trained = isFull ? parameters : randomAdapter(config, lora, 2);
  const baked = isFull ? new Map<string, never>() : parameters;
  const common = { config, lora: isFull ? null : lora, parameters };
  const laneModel = {
    ...common,
    baked: [...baked.keys()],
    trained: isFull ? ('parameters' as const) : trained,
    threads: 1,
  };
  const lanes = count === 0 ? null : await Lanes.start(laneModel, count);
  if (count > 0) expect(lanes?.count).toBe(count);
  const runtime = await createOrtRuntime({ threads: 1 });
  const batching = { microbatchTokens: 128, activationRecomputation };
  const trainer = new Trainer({ ...common, ...batching, trained, baked, runtime, lanes });
  const losses: unknown[] = [];
  const weights = isFull ? randomParameters(config, 9) : randomAdapter(config, lora, 9);
  const gspo = { name: 'gspo', clipLow: 0.1, clipHigh: 0.1, klWeight: 0.1 } as const;
  for (const loss of [{ name: 'cispo', clipLow: 0, clipHigh: 5 }, gspo] as const) {
    losses.push(await trainer.forwardBackward(sequences, loss, 1 / 400));
    losses.push(await trainer.score(sequences, weights), await trainer.score(sequences));
    losses.push(trainer.update(settings));
  }
  expect(losses[1]).not.toEqual(losses[2]);
  return { losses, weights: Float32Array.from([...trained.values()].flatMap(({ data }) => [...data])) };
}

test.each([
  ['an adapter', false, 'never'],
  ['every parameter', true, 'never'],
  ['an adapter, layer by layer', false, 'always'],
] as const)('two steps of %s are the same without lanes, with one and with three', async (_name, isFull, mode) => {
  const alone = await twoSteps(0, isFull, mode);
  for (const count of [1, 3]) {
    const { losses, weights } = await twoSteps(count, isFull, mode);
    expect(losses).toEqual(alone.losses);
    expectSameBits(weights, alone.weights);
  }
});

test('an error in a lane reaches the caller, and the lane goes on', async () => {
  const parameters = randomParameters(config, 1);
  const laneModel = { config, lora: null, parameters, baked: [], trained: 'parameters' as const, threads: 1 };
  const lanes = (await Lanes.start(laneModel, 1))!;
  const broken = { kind: 'whole', microbatch: { feeds: {} } } as never;
  await expect(lanes.run(broken, { name: 'crossEntropy' }, 1)).rejects.toMatchObject({ name: EngineError.name });
  await expect(lanes.setWeights(parameters)).resolves.toBeUndefined();
});
