/** `PipelineTrainer` beside a loop that gathers and trains in turns: time to the same reward. */
import { median } from './measure.ts';
import { alternating, pipelined, type RaceOptions, type RaceResult, race } from './pipeline.ts';
import type { StageContext } from './stages.ts';

export async function benchPipeline({ report, options: { isQuick, threads } }: StageContext): Promise<void> {
  const seeds = isQuick ? [1] : [1, 2, 3];
  const work: Omit<RaceOptions, 'seed'> = {
    ...{ groupsPerStep: isQuick ? 2 : 8, toolMs: isQuick ? 5 : 400, trainThreads: threads },
    ...{ target: isQuick ? 0 : 0.6, maxSteps: isQuick ? 6 : 150 },
  };
  const run = (loop: typeof alternating, seed: number): Promise<RaceResult> => race(loop, { ...work, seed });
  const runs: { readonly alternating: RaceResult; readonly pipelined: RaceResult }[] = [];
  for (const [position, seed] of seeds.entries()) {
    // Which goes first changes, so that what else the machine does falls on both.
    const first = position % 2 === 0 ? alternating : pipelined;
    const results = [await run(first, seed)];
    results.push(await run(first === alternating ? pipelined : alternating, seed));
    const [a, b] = (first === alternating ? results : results.reverse()) as [RaceResult, RaceResult];
    runs.push({ alternating: a, pipelined: b });
    const describe = ({ seconds, steps, reward }: RaceResult): string =>
      `${seconds.toFixed(1)} s, ${steps} steps, reward ${reward.toFixed(2)}`;
    console.log(`  seed ${seed}: alternating ${describe(a)}; pipelined ${describe(b)}`);
  }
  const missed = runs
    .flatMap((pair) => [pair.alternating, pair.pipelined])
    .filter(({ isReached }) => !isReached).length;
  report.add(
    {
      ...{ name: `pipeline, to mean reward ${work.target}, tool of ${work.toolMs} ms`, unit: 's' },
      ...{ value: median(runs.map(({ pipelined: { seconds } }) => seconds)), peer: 'alternating loop', goal: 1.3 },
      ...(missed > 0
        ? { ratio: null, reason: `${missed} runs did not reach the reward within ${work.maxSteps} steps` }
        : { ratio: median(runs.map((pair) => pair.alternating.seconds / pair.pipelined.seconds)) }),
    },
    { runs },
  );
}
