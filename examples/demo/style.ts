/** Colours of the terminal: none where there is no terminal, or where NO_COLOR (no-color.org) is set to anything. */
import type { WriteStream } from 'node:tty';

const CODES = { bold: [1, 22], dim: [2, 22], green: [32, 39], red: [31, 39], cyan: [36, 39] } as const;

export type Style = Readonly<Record<keyof typeof CODES, (text: string) => string>>;

/** Styles for what is written to `stream`. */
export function createStyle(
  stream: Pick<WriteStream, 'isTTY'> | { readonly isTTY?: boolean } = process.stdout,
  env: Readonly<Record<string, string | undefined>> = process.env,
): Style {
  const isColoured = stream.isTTY === true && !env.NO_COLOR && env.TERM !== 'dumb';
  const paint =
    (name: keyof typeof CODES) =>
    (text: string): string => {
      const [open, close] = CODES[name];
      return isColoured ? `\u001b[${open}m${text}\u001b[${close}m` : text;
    };
  return { bold: paint('bold'), dim: paint('dim'), green: paint('green'), red: paint('red'), cyan: paint('cyan') };
}
