/** A whole GRPO step of ours through the embedded engine: rollouts of every group, advantages, one optimizer step, publication. */
import { advantages as advantagesOf } from '../src/core/advantage.ts';
import { createRng } from '../src/core/rng.ts';
import { createEmbeddedEngine, type EmbeddedEngineOptions } from '../src/engines/embedded/engine.ts';
import type { Datum, Engine } from '../src/engines/engine.ts';
import { measure, type Repeats, type Sample } from './measure.ts';
import { lora } from './models.ts';

export interface StepWork {
  /** One prompt a group. */
  readonly prompts: readonly (readonly number[])[];
  readonly groupSize: number;
  readonly newTokens: number;
}

export interface StepMeasurement {
  readonly samples: readonly (Sample & { readonly rolloutSeconds: number })[];
  /** Completion tokens of one step. */
  readonly tokens: number;
  readonly peakRssMb: number;
}

/** Measures steps in an engine process of its own, which ends with them. */
export async function measureSteps(
  options: Omit<EmbeddedEngineOptions, 'training' | 'seed'>,
  work: StepWork,
  repeats: Repeats,
): Promise<StepMeasurement> {
  const engine = await createEmbeddedEngine({ ...options, training: { kind: 'lora', ...lora }, seed: 1 });
  try {
    const rolloutSeconds: number[] = [];
    let step = 0;
    const run = async (): Promise<void> => {
      const startedAt = performance.now();
      const data = await sampleGroups(engine, work, step);
      rolloutSeconds.push((performance.now() - startedAt) / 1000);
      const scale = 1 / (data.length * work.newTokens);
      await engine.doForwardBackward({ data, loss: { name: 'cispo', clipLow: 1, clipHigh: 3 }, scale });
      await engine.doOptimStep({
        ...{ learningRate: 1e-5, beta1: 0.9, beta2: 0.99, epsilon: 1e-8, weightDecay: 0, maxGradNorm: 1 },
      });
      await engine.doPublish({ step: ++step });
    };
    const samples = await measure(run, repeats);
    const { peakRssBytes } = await engine.doInfo();
    return {
      samples: samples.map((sample, index) => ({
        ...sample,
        rolloutSeconds: rolloutSeconds[repeats.warmUps + index]!,
      })),
      tokens: work.prompts.length * work.groupSize * work.newTokens,
      peakRssMb: peakRssBytes / 2 ** 20,
    };
  } finally {
    await engine.close();
  }
}

async function sampleGroups(engine: Engine, work: StepWork, step: number): Promise<Datum[]> {
  const rng = createRng('bench', 'rewards', step);
  const groups = await Promise.all(
    work.prompts.map(async (prompt, groupIndex) => {
      const rewards = Array.from({ length: work.groupSize }, () => rng.uniform());
      const [advantages = []] = advantagesOf([rewards], 'groupStd');
      return Promise.all(
        advantages.map((advantage, index) => {
          const seed = (step * work.prompts.length + groupIndex) * work.groupSize + index;
          return sampleDatum(engine, prompt, work.newTokens, seed, advantage);
        }),
      );
    }),
  );
  return groups.flat();
}

async function sampleDatum(
  engine: Engine,
  prompt: readonly number[],
  newTokens: number,
  seed: number,
  advantage: number,
): Promise<Datum> {
  const sampling = {
    ...{ maxTokens: newTokens, temperature: 1, topP: 1, topK: 0, seed },
    ...{ stopTokenIds: [], stopStrings: [], topLogprobs: 0 },
  };
  const ids: number[] = [];
  const logprobs: number[] = [];
  for await (const event of engine.doSample({ promptIds: prompt, sampling, policyStep: null, isStreaming: false })) {
    if (event.type !== 'tokens') continue;
    ids.push(...event.tokenIds);
    logprobs.push(...event.logprobs);
  }
  if (ids.length !== newTokens) throw new Error(`step bench: must sample ${newTokens} tokens, got ${ids.length}`);
  const fill = (value: number): number[] => prompt.map(() => value);
  return {
    tokenIds: [...prompt, ...ids],
    actionMask: [...fill(0), ...ids.map(() => 1)],
    samplingLogprobs: [...fill(0), ...logprobs],
    advantages: [...fill(advantage), ...ids.map(() => advantage)],
    temperatures: [...fill(1), ...ids.map(() => 1)],
  };
}
