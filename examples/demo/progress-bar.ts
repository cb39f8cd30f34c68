/** A progress bar on standard error for stages that are no gather; it writes nothing where that is no terminal. */
import cliProgress from 'cli-progress';

export interface Bar {
  update(done: number, total: number, details: string): void;
  stop(): void;
}

export function createBar(description: string, stream: NodeJS.WriteStream = process.stderr): Bar {
  const bar = new cliProgress.SingleBar({
    format: `${description} {bar} {value}/{total}  {details}`,
    barCompleteChar: '█',
    barIncompleteChar: '░',
    barsize: 20,
    hideCursor: true,
    stream,
  });
  let isStarted = false;
  return {
    update: (done, total, details) => {
      if (stream.isTTY !== true) return;
      if (!isStarted) bar.start(total, done, { details });
      isStarted = true;
      bar.setTotal(total);
      bar.update(done, { details });
    },
    stop: () => {
      if (isStarted) bar.stop();
      isStarted = false;
    },
  };
}
