/** The progress bar of a gather, on standard error. Layer 5. It writes nothing where that is no terminal, unless asked to. */
import cliProgress from 'cli-progress';
import type { GatherProgress } from './gather-tally.ts';

export interface ProgressBar {
  update(progress: GatherProgress): void;
  /** Draws the last state and ends the line. Nothing is written afterwards. */
  stop(): void;
}

/** Undefined when nothing is to be drawn. */
export function createProgressBar(
  description: string,
  isWanted: boolean | undefined,
  stream: NodeJS.WriteStream = process.stderr,
): ProgressBar | undefined {
  if (!(isWanted ?? stream.isTTY === true)) return undefined;
  const bar = new cliProgress.SingleBar({
    format: `${description} {bar} {value}/{total}{details}`,
    barCompleteChar: '█',
    barIncompleteChar: '░',
    barsize: 20,
    hideCursor: true,
    noTTYOutput: true,
    notTTYSchedule: 2000,
    stream,
  });
  let isStarted = false;
  return {
    update: (progress) => {
      const payload = { details: formatDetails(progress) };
      if (!isStarted) bar.start(progress.rolloutsTotal, 0, payload);
      isStarted = true;
      bar.update(progress.rolloutsDone, payload);
    },
    stop: () => {
      if (isStarted) bar.stop();
    },
  };
}

/** `  reward 0.61  win 0.63  exceptions 2  812 tok/s`. */
export function formatDetails(progress: GatherProgress): string {
  const { completion_tokens: _tokens, ...metrics } = progress.meanMetrics;
  const parts = [`reward ${progress.meanReward.toFixed(2)}`];
  for (const [name, mean] of Object.entries(metrics)) parts.push(`${name} ${mean.toFixed(2)}`);
  if (progress.exceptions > 0) parts.push(`exceptions ${progress.exceptions}`);
  if (progress.completionTokens > 0 && progress.elapsedSeconds > 0) {
    parts.push(`${Math.round(progress.completionTokens / progress.elapsedSeconds).toLocaleString('en-US')} tok/s`);
  }
  return parts.map((part) => `  ${part}`).join('');
}
