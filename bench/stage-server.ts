/** The server's own share of a request, beside a server that does nothing. */
import { measure, type Sample, summarize } from './measure.ts';
import { createServerBench } from './server.ts';
import type { StageContext } from './stages.ts';

export async function benchServer({ report, options: { isQuick } }: StageContext): Promise<void> {
  await using bench = await createServerBench();
  const repeats = { warmUps: isQuick ? 0 : 1, iterations: isQuick ? 1 : 5 };
  const time = async (
    requests: number,
    work: () => Promise<void>,
  ): Promise<{ samples: Sample[]; rates: readonly [number, number] }> => {
    const samples = await measure(work, repeats);
    const wall = summarize(samples, 'seconds');
    return { samples, rates: [requests / wall.median, requests / wall.min] };
  };
  const count = isQuick ? 40 : 1000;
  const peer = 'a server that sends a stored reply';
  const nothing = await time(count, () => bench.nullServer(count));
  const conversations = count / 10;
  for (const [name, work] of [
    ['chat completions, single turns', () => bench.singleTurns(count)],
    ['chat completions, turns of 10-turn conversations', () => bench.tenTurns(conversations)],
  ] as const) {
    const { samples, rates } = await time(count, work);
    const ratio = rates[0] / nothing.rates[0];
    report.add({ name, value: rates[0], unit: 'requests/s', peer, ratio }, { best: rates[1], samples });
  }
}
