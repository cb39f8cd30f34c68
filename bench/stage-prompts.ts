/** What a prompt that a whole group shares costs: 8 sequences with one prompt of 512, in prefill, decode and training. */
import { createRng } from '../src/core/rng.ts';
import { bakedWeights } from '../src/engines/embedded/baked-weights.ts';
import { createOrtRuntime } from '../src/graph/runtime-ort.ts';
import { createAdapter } from '../src/nn/lora.ts';
import type { TrainingSequence } from '../src/train/microbatch.ts';
import { Trainer } from '../src/train/trainer.ts';
import { median } from './measure.ts';
import { type BenchModel, lora } from './models.ts';
import { modelByKey } from './models-by-key.ts';
import { createBenchSampler } from './sampling.ts';
import type { StageContext } from './stages.ts';

const groupSize = 8;

export async function benchPrompts(context: StageContext): Promise<void> {
  const { isQuick } = context.options;
  const model = modelByKey(isQuick ? 'starter' : '3M');
  const [promptTokens, newTokens] = isQuick ? [32, 4] : [512, 64];
  const rng = createRng('bench', 'shared-prompt');
  const draw = (length: number): number[] => Array.from({ length }, () => rng.integer(model.config.vocabSize));
  const shared = draw(promptTokens);
  const group = `group of ${groupSize}, shared prompt of ${promptTokens}`;
  await benchSampler(context, model, group, { shared, newTokens, draw });
  await benchTrainer(
    context,
    model,
    group,
    shared,
    Array.from({ length: groupSize }, () => draw(newTokens)),
  );
}

interface SamplerWork {
  readonly shared: readonly number[];
  readonly newTokens: number;
  readonly draw: (length: number) => number[];
}

async function benchSampler(
  { report, options: { threads } }: StageContext,
  model: BenchModel,
  group: string,
  { shared, newTokens, draw }: SamplerWork,
): Promise<void> {
  const length = shared.length;
  const runtime = await createOrtRuntime({ threads });
  const { scheduler, add, drain } = await createBenchSampler(model, runtime, groupSize * (length + newTokens) * 2);
  /** Median milliseconds of a pass in which all sequences decode. */
  const decode = async (prompts: readonly (readonly number[])[]): Promise<number> => {
    for (const prompt of prompts) add(prompt, newTokens);
    const times: number[] = [];
    for (;;) {
      const sampled = scheduler.counters.sampledTokens;
      const startedAt = performance.now();
      if (!(await scheduler.step(() => undefined))) break;
      if (scheduler.counters.sampledTokens - sampled === groupSize) times.push(performance.now() - startedAt);
    }
    return median(times);
  };
  await decode(Array.from({ length: groupSize }, () => draw(length))); // compiles and warms up
  await drain();
  const before = scheduler.counters.prefilledTokens;
  const together = await decode(Array.from({ length: groupSize }, () => shared));
  const prefilled = scheduler.counters.prefilledTokens - before;
  const alone = await decode(Array.from({ length: groupSize }, () => draw(length)));
  report.add({
    ...{ name: `prefill, ${group}`, value: prefilled, unit: 'tokens', peer: 'prompt once', ratio: length / prefilled },
    // Each sequence computes its last block again, whose last token's logits it needs.
    goal: 0.9,
  });
  const row = { name: `decode, ${group}`, value: together, unit: 'ms/pass' };
  report.add({ ...row, peer: 'eight different prompts', ratio: alone / together });
}

async function benchTrainer(
  { report, options: { threads } }: StageContext,
  { config, parameters }: BenchModel,
  group: string,
  shared: readonly number[],
  completions: readonly (readonly number[])[],
): Promise<void> {
  const trainer = new Trainer({
    ...{ config, lora, parameters, baked: bakedWeights(parameters, true), microbatchTokens: 4096 },
    trained: createAdapter(config, lora, 1),
    runtime: await createOrtRuntime({ threads }),
  });
  const sequences = completions.map((completion, index): TrainingSequence => {
    const tokenIds = [...shared, ...completion];
    const isAction = tokenIds.map((_, t) => t >= shared.length);
    return {
      tokenIds,
      actionMask: isAction.map(Number),
      samplingLogprobs: isAction.map((is) => (is ? -Math.log(config.vocabSize) : 0)),
      advantages: tokenIds.map(() => (index % 2 === 0 ? 1 : -1)),
      temperatures: tokenIds.map(() => 1),
    };
  });
  const loss = { name: 'cispo', clipLow: 1, clipHigh: 3 } as const;
  const { computedTokens } = await trainer.forwardBackward(sequences, loss, 1 / completions.flat().length);
  const least = shared.length + completions.flat().length;
  report.add({
    ...{ name: `train, ${group}`, value: computedTokens, unit: 'tokens', peer: 'prompt once' },
    ...{ ratio: least / computedTokens, goal: 0.9 },
  });
}
