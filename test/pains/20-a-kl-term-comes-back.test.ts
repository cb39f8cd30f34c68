/** Pain 20: a refactor added a KL term to the loss again, and nobody saw it. Here the loss that is reported is the formula, to seven digits. */
import type OpenAI from 'openai';
import { afterAll, beforeAll, expect, test } from 'vitest';
import type { LocalBackend, TrainOptions } from '../../src/index.ts';
import { sampleGroup, setUpYesOrNo } from '../yes-or-no.ts';

const bed = setUpYesOrNo();
let backend: LocalBackend;
beforeAll(() => {
  backend = bed.openBackend();
});
afterAll(() => backend.close());

interface Step {
  readonly metrics: Readonly<Record<string, number>>;
  readonly adapterSha256: string;
  /** −Σ A · ln π / tokens: CISPO's loss where sampler and trainer are one policy, and nothing else is in it. */
  readonly formula: number;
}

/** Two steps, whose second begins away from the base. */
async function twoSteps(name: string, options: TrainOptions): Promise<readonly Step[]> {
  const model = bed.createModel(name);
  await model.register(backend);
  const steps: Step[] = [];
  for (const first of [10, 20]) {
    const group = await sampleGroup(model, first);
    const choices = group.trajectories.flatMap((one) => one.allChoices()) as unknown as OpenAI.ChatCompletion.Choice[];
    const logprobs = choices.map((choice) => choice.logprobs!.content!.map(({ logprob }) => logprob));
    const sum = logprobs.reduce((total, own, i) => total + (i - 1.5) * own.reduce((a, b) => a + b, 0), 0);
    const result = await backend.train(model, [group], { advantage: 'groupCenter', ...options });
    steps.push({ ...result, formula: -sum / logprobs.flat().length });
  }
  return steps;
}

test('without klPenalty the loss is that of the policy alone; with it, that and weight · k3', {
  timeout: 120_000,
}, async () => {
  const learningRate = 0.02;
  const plain = await twoSteps('plain', { learningRate });
  const none = await twoSteps('none', { learningRate, klPenalty: null });
  for (const [i, { metrics, adapterSha256, formula }] of plain.entries()) {
    expect(metrics['loss/train']).toBeCloseTo(formula, 6);
    expect(Object.keys(metrics).filter((name) => name.startsWith('loss/kl'))).toEqual([]);
    expect(none[i]!.adapterSha256).toBe(adapterSha256);
  }

  const [first, second] = await twoSteps('held', {
    learningRate,
    klPenalty: { weight: 0.5, reference: 'base', form: 'loss' },
  });
  // A fresh adapter is the base: no distance, and the very same update.
  expect(first!.metrics).toMatchObject({ 'loss/kl_policy_ref': 0, 'loss/kl_penalty': 0 });
  expect(first!.adapterSha256).toBe(plain[0]!.adapterSha256);
  expect(second!.metrics['loss/kl_policy_ref']).toBeGreaterThan(1e-4);
  expect(second!.metrics['loss/train']).toBeCloseTo(second!.formula + second!.metrics['loss/kl_penalty']!, 6);
  expect(second!.adapterSha256).not.toBe(plain[1]!.adapterSha256);
});
