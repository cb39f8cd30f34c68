/** Training: tokens a second, as a share of the matrix-product ceiling and beside PyTorch + PEFT. */
import { addComparison, measurePeer } from './compare.ts';
import type { BenchModel } from './models.ts';
import { peerModel, trainingPeer } from './peer-catalogue.ts';
import type { StageContext } from './stages.ts';
import { startWorkload } from './throughput.ts';
import { createSequence, createTraining, promptTokens } from './training.ts';

/** Sequences of one of the peer's microbatches; more or fewer was not faster. */
const peerMicrobatch = 8;

/** Share of the ceiling that the project aims at, by width. */
const ceilingGoal = (width: number): number | undefined => (width >= 512 ? 0.75 : width >= 256 ? 0.6 : undefined);

const peerGoal = (key: string): number | undefined => ({ '3M': 2, '27M': 2, '135M': 1 })[key];

/** Returns the highest ceiling met. */
export async function benchTraining(context: StageContext, key: string, model: BenchModel): Promise<number> {
  const { report, options } = context;
  const { threads, isQuick } = options;
  const isLarge = model.config.width >= 512;
  const sequenceCount = isQuick ? 2 : isLarge ? 8 : 32;
  const ours = await startWorkload(`train ${model.name}, ${threads} threads`, threads, isQuick, (runtime) =>
    createTraining(model, runtime, sequenceCount, undefined, threads),
  );
  const iterations = isQuick ? 1 : isLarge ? 2 : 4;
  await ours.measure(iterations);
  const isCompared = context.hasPeers && peerGoal(key) !== undefined;
  const peer = isCompared ? await measureTrainingPeer(context, ours.name, model, sequenceCount) : null;
  if (!isQuick) await ours.measure(iterations);
  const { result, detail } = ours.row();
  const share = result.ceilingShare!;
  const goal = ceilingGoal(model.config.width);
  const ceiling = { peer: 'float32 matrix product', ratio: share, ...(goal === undefined ? {} : { goal }) };
  report.add({ ...result, ...ceiling }, detail);
  if (peer !== null) addComparison(report, [ours], peer, { goal: peerGoal(key)! });
  return ours.ceilingGflops();
}

async function measureTrainingPeer(
  { report, options: { threads } }: StageContext,
  name: string,
  model: BenchModel,
  sequenceCount: number,
): ReturnType<typeof measurePeer> {
  const sequences = Array.from({ length: sequenceCount }, (_, index) => [
    ...createSequence(model.config.vocabSize, index).tokenIds,
  ]);
  const iterations = model.config.width > 512 ? 2 : 3;
  const work = { threads, sequences, promptTokens, microbatch: peerMicrobatch, warmUps: 1, iterations };
  return measurePeer(report, name, trainingPeer(await peerModel(model), work));
}
