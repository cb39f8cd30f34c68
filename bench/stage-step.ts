/** A whole GRPO step (8 groups of 8, prompt 256, completion 128) through the engine, beside TRL's GRPOTrainer. */
import { rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createRng } from '../src/core/rng.ts';
import { addComparison, type Measured, measurePeer } from './compare.ts';
import { measureSteps, type StepWork } from './grpo-step.ts';
import { summarize } from './measure.ts';
import { writeModelFolder } from './model-folder.ts';
import type { BenchModel } from './models.ts';
import { peerModel, stepPeer } from './peer-catalogue.ts';
import type { StageContext } from './stages.ts';

const goals: Readonly<Record<string, number>> = { '3M': 5, '27M': 5, '135M': 3 };

export async function benchStep(context: StageContext, key: string, model: BenchModel): Promise<void> {
  const { report, options } = context;
  const { threads, isQuick } = options;
  // Peers take minutes for a step of these.
  const isLarge = model.config.width >= 512;
  const [groups, promptTokens, newTokens] = isQuick ? [1, 16, 4] : [8, 256, 128];
  const rng = createRng('bench', 'step-prompts');
  const prompts = Array.from({ length: groups }, () =>
    Array.from({ length: promptTokens }, () => rng.integer(model.config.vocabSize)),
  );
  const work: StepWork = { prompts, groupSize: isQuick ? 2 : 8, newTokens };
  const isCompared = context.hasPeers && goals[key] !== undefined;
  const repeats = { warmUps: isQuick || isLarge ? 0 : 1, iterations: isQuick || isLarge ? 1 : 2 };
  const parent = join(tmpdir(), `art-bench-${process.pid}`);
  const folder = isCompared ? await peerModel(model) : await writeModelFolder(model, parent);
  const shape = `${groups} × ${work.groupSize} × (${promptTokens} + ${newTokens})`;
  const ours: Measured[] = [];
  try {
    for (const rolloutPrecision of ['float32', 'int8'] as const) {
      const name = `GRPO step ${model.name}, ${shape}, ${rolloutPrecision} rollouts`;
      const engine = { modelDirectory: folder, trainThreads: threads, sampleThreads: threads, rolloutPrecision };
      const measured = await measureSteps(engine, work, repeats);
      const tokensPerSecond = measured.tokens / summarize(measured.samples, 'seconds').median;
      ours.push({ name, tokensPerSecond: () => tokensPerSecond });
      report.add({ name, value: tokensPerSecond, unit: 'completion tokens/s' }, { ...measured, threads });
    }
  } finally {
    await rm(parent, { recursive: true, force: true });
  }
  if (!isCompared) return;
  const peerWork = { threads, sequences: prompts, groupSize: work.groupSize, newTokens, microbatch: 8, ...repeats };
  const peer = await measurePeer(report, `GRPO step ${model.name}`, stepPeer(folder, peerWork, isLarge));
  addComparison(report, ours, peer, { goal: goals[key]! });
}
