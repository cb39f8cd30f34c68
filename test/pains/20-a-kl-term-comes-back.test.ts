/** Pain 20: a refactor added a KL term to the loss again, and nobody saw it. Here the loss that is reported is the formula, to seven digits. */
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { writeStarterModel } from '../../src/formats/starter-model.ts';
import {
  type ChatChoice,
  LocalBackend,
  TrainableModel,
  type TrainOptions,
  Trajectory,
  TrajectoryGroup,
} from '../../src/index.ts';

let root = '';
let backend: LocalBackend;
beforeAll(async () => {
  root = await mkdtemp(join(tmpdir(), 'art-kl-'));
  const sizes = { width: 32, layers: 1, heads: 2, kvHeads: 1, headSize: 16, ffWidth: 64, maxPositions: 128 };
  await writeStarterModel({
    seed: 1,
    directory: join(root, 'base'),
    corpus: ['Say yes or no.', 'yes', 'no'],
    ...sizes,
  });
  const engine = { trainThreads: 1, sampleThreads: 1, cacheTokens: 4096, maxRunningSequences: 16 };
  backend = new LocalBackend({ path: join(root, 'runs'), engine });
});
afterAll(async () => {
  await backend.close();
  await rm(root, { recursive: true, force: true });
});

interface Step {
  readonly metrics: Readonly<Record<string, number>>;
  readonly adapterSha256: string;
  /** −Σ A · ln π / tokens: CISPO's loss where sampler and trainer are one policy, and nothing else is in it. */
  readonly formula: number;
}

/** Two steps, whose second begins away from the base. */
async function twoSteps(name: string, options: TrainOptions): Promise<readonly Step[]> {
  const model = new TrainableModel({ name, project: 'p', baseModel: join(root, 'base'), lora: { rank: 4 } });
  await model.register(backend);
  const steps: Step[] = [];
  for (const first of [10, 20]) {
    const message = { role: 'user', content: 'Say yes or no.' } as const;
    const trajectories: Trajectory[] = [];
    const logprobs: number[][] = [];
    for (let i = 0; i < 4; i++) {
      const request = { model: model.getInferenceName(), messages: [message], max_tokens: 8, logprobs: true };
      const { choices } = await model.openaiClient().chat.completions.create({ ...request, seed: first + i });
      logprobs.push(choices[0]!.logprobs!.content!.map(({ logprob }) => logprob));
      trajectories.push(new Trajectory({ messagesAndChoices: [message, choices[0] as ChatChoice], reward: i }));
    }
    const sum = logprobs.reduce((total, own, i) => total + (i - 1.5) * own.reduce((a, b) => a + b, 0), 0);
    const result = await backend.train(model, [new TrajectoryGroup(trajectories)], {
      advantage: 'groupCenter',
      ...options,
    });
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
