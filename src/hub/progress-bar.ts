/** The progress bar of a download, on standard error. Layer 2. It writes nothing where that is no terminal. */
import cliProgress from 'cli-progress';
import type { DownloadProgress } from './options.ts';

/** Draws reports of one download until all bytes are there. */
export function createDownloadBar(stream: NodeJS.WriteStream = process.stderr): (progress: DownloadProgress) => void {
  if (stream.isTTY !== true) return () => {};
  let bar: cliProgress.SingleBar | null = null;
  return ({ repo, file, receivedBytes, totalBytes }) => {
    const payload = { repo, file, received: formatBytes(receivedBytes), all: formatBytes(totalBytes) };
    if (bar === null) {
      const format = '{repo} {bar} {received}/{all}  {file}';
      const style = {
        barCompleteChar: '█',
        barIncompleteChar: '░',
        barsize: 20,
        hideCursor: true,
        clearOnComplete: true,
      };
      bar = new cliProgress.SingleBar({ format, ...style, stream });
      bar.start(totalBytes, receivedBytes, payload);
    }
    bar.update(receivedBytes, payload);
    if (receivedBytes < totalBytes) return;
    bar.stop();
    bar = null;
  };
}

/** `269 MB`: decimal units, as the hub's pages have them. */
export function formatBytes(bytes: number): string {
  const units = ['B', 'kB', 'MB', 'GB', 'TB'];
  const power = Math.min(units.length - 1, Math.floor(Math.log10(Math.max(1, bytes)) / 3));
  const value = bytes / 1000 ** power;
  return `${value >= 100 || power === 0 ? Math.round(value) : value.toPrecision(3)} ${units[power]}`;
}
