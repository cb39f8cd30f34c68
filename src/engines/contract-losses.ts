/** Engine contract: every loss of a policy, and scoring with other weights than those being trained. Layer 4. */
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { CheckpointError } from '../core/errors.ts';
import { adam, type Subject, trainingRequest } from './contract-subject.ts';
import type { Datum, Engine, LossConfig } from './engine.ts';

const clip = { clipLow: 0.2, clipHigh: 0.3 };
const policyLosses: readonly LossConfig[] = [
  { name: 'cispo', clipLow: 0.5, clipHigh: 2 },
  { name: 'ppo', ...clip },
  { name: 'gspo', ...clip },
  { name: 'importanceSampling' },
];
/** Clears gradients and moves no weight; its answer is the norm of the gradient. */
const still = { ...adam, learningRate: 0, weightDecay: 0 };

async function gradNorm(engine: Engine, data: readonly Datum[], loss: LossConfig): Promise<number> {
  await engine.doForwardBackward({ data, loss, scale: 1 / 100 });
  return (await engine.doOptimStep(still)).gradNorm;
}

/** Registers the tests; call inside `describe`. */
export function testLosses(subject: Subject): void {
  const sequences = (): readonly Datum[] => trainingRequest(subject.vocabSize, 'losses').data;

  test('at equal policy every loss has the gradient of REINFORCE', async () => {
    const scored = await subject.engine.doScore({ data: sequences(), source: { kind: 'trainer' } });
    const fresh = sequences().map((datum, i) => ({ ...datum, samplingLogprobs: scored[i]!, sequenceLogRatio: 0 }));
    const weighted = fresh.map((datum) => ({ ...datum, tokenWeights: datum.advantages }));
    const reinforce = await gradNorm(subject.engine, weighted, { name: 'crossEntropy' });
    expect(reinforce).toBeGreaterThan(0);
    const norms: number[] = [];
    for (const loss of policyLosses) norms.push(await gradNorm(subject.engine, fresh, loss));
    expect(norms).toEqual(policyLosses.map(() => norms[0]));
    expect(norms[0]! / reinforce).toBeCloseTo(1, 5);
  });

  test('ratios, clips and the terms change what every loss learns', async () => {
    const stale = sequences().map((datum, i) => ({
      ...datum,
      samplingLogprobs: datum.samplingLogprobs.map((logprob, t) => logprob + 0.4 * ((t + i) % 3) - 0.4),
      referenceLogprobs: datum.samplingLogprobs,
      sequenceLogRatio: 0.25 - 0.1 * i,
    }));
    const seen = new Set<number>();
    for (const loss of policyLosses) {
      for (const terms of [{}, { entropyBonus: 0.1 }, { klWeight: 0.1 }]) {
        seen.add(await gradNorm(subject.engine, stale, { ...loss, ...terms }));
      }
    }
    expect(seen.size).toBe(3 * policyLosses.length);
  });

  test('doScore gives the logprobs of training; base and checkpoint score as they did when they were trained', async () => {
    const { engine } = subject;
    const data = sequences();
    const directory = await mkdtemp(join(tmpdir(), 'art-contract-'));
    try {
      const atSave = await engine.doScore({ data, source: { kind: 'trainer' } });
      const base = await engine.doScore({ data, source: { kind: 'base' } });
      await engine.doSave({ directory });
      await subject.trainAndPublish();
      const { trainingLogprobs } = await engine.doForwardBackward({ data, loss: policyLosses[1]!, scale: 1 });
      await engine.doOptimStep(still);
      expect(await engine.doScore({ data, source: { kind: 'trainer' } })).toEqual(trainingLogprobs);
      expect(trainingLogprobs).not.toEqual(atSave);
      expect(await engine.doScore({ data, source: { kind: 'checkpoint', directory } })).toEqual(atSave);
      expect(await engine.doScore({ data, source: { kind: 'base' } })).toEqual(base);
    } finally {
      await rm(directory, { recursive: true });
    }
  });

  test('scoring between two halves of a batch changes no bit of the training; a checkpoint that is not there is named', async () => {
    const { engine } = subject;
    const data = sequences();
    const train = async (score: () => Promise<unknown>): Promise<readonly unknown[]> => {
      const first = await engine.doForwardBackward({ data: data.slice(0, 3), loss: policyLosses[1]!, scale: 1 / 100 });
      await score();
      const second = await engine.doForwardBackward({ data: data.slice(3), loss: policyLosses[1]!, scale: 1 / 100 });
      return [first, second, (await engine.doOptimStep(still)).gradNorm];
    };
    const undisturbed = await train(async () => undefined);
    const scored = await train(() => engine.doScore({ data, source: { kind: 'base' } }));
    expect(scored).toEqual(undisturbed);
    const directory = join(tmpdir(), 'art-contract-no-such-checkpoint');
    const missing = engine.doScore({ data, source: { kind: 'checkpoint', directory } });
    await expect(missing).rejects.toBeInstanceOf(CheckpointError);
    await expect(missing).rejects.toThrow(directory);
  });
}
