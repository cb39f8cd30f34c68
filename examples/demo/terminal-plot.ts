/** A curve in the terminal: braille dots, two columns by four rows a character, with labelled axes. */
import { extent, formatTick, niceTicks, type Point } from './scale.ts';

export interface TerminalPlotOptions {
  readonly title: string;
  /** Characters of the whole plot; default 72 by 14. */
  readonly width?: number;
  readonly height?: number;
  readonly xLabel?: string;
}

/** Bit of each dot in a braille character, [column][row]. Source: Unicode, block U+2800. */
const DOT_BITS = [
  [0x01, 0x02, 0x04, 0x40],
  [0x08, 0x10, 0x20, 0x80],
] as const;

/** Lines joined by newlines, without one at the end. Points are joined in the order of x. */
export function renderTerminalPlot(points: readonly Point[], options: TerminalPlotOptions): string {
  const { title, width = 72, height = 14, xLabel = 'step' } = options;
  const finite = points.filter(({ x, y }) => Number.isFinite(x) && Number.isFinite(y)).sort((a, b) => a.x - b.x);
  if (finite.length === 0) return `${title}\n(no data)`;
  const rows = Math.max(3, height - 4);
  const ticks = niceTicks(...extent(finite.map(({ y }) => y)), Math.min(5, rows));
  const [yLow, yHigh] = [ticks[0] as number, ticks.at(-1) as number];
  const [xLow, xHigh] = extent(finite.map(({ x }) => x));
  const labels = ticks.map((tick) => formatTick(tick, ticks));
  const margin = Math.max(...labels.map((label) => label.length));
  const columns = Math.max(10, width - margin - 3);
  const cells = drawCurve(
    finite.map(({ x, y }) => ({
      x: ((x - xLow) / (xHigh - xLow)) * (columns * 2 - 1),
      y: ((yHigh - y) / (yHigh - yLow)) * (rows * 4 - 1),
    })),
    columns,
    rows,
  );
  const labelOfRow = new Map(
    ticks.map((tick, index) => [Math.round(((yHigh - tick) / (yHigh - yLow)) * (rows - 1)), labels[index] as string]),
  );
  const body = cells.map((line, row) => {
    const label = labelOfRow.get(row);
    return `${(label ?? '').padStart(margin)} ${label === undefined ? '│' : '┤'}${line}`.trimEnd();
  });
  const indent = ' '.repeat(margin + 1);
  const left = String(Math.round(xLow * 100) / 100);
  const right = String(Math.round(xHigh * 100) / 100);
  const middle = centre(xLabel, Math.max(0, columns - left.length - right.length));
  return [title, ...body, `${indent}└${'─'.repeat(columns)}`, `${indent} ${left}${middle}${right}`].join('\n');
}

function drawCurve(dots: readonly Point[], columns: number, rows: number): string[] {
  const bits = Array.from({ length: rows }, () => new Uint8Array(columns));
  const set = (x: number, y: number): void => {
    const [column, row] = [Math.round(x), Math.round(y)];
    const line = bits[row >> 2];
    if (line === undefined) return;
    line[column >> 1] = (line[column >> 1] ?? 0) | (DOT_BITS[column & 1]?.[row & 3] ?? 0);
  };
  for (const [index, dot] of dots.entries()) {
    const from = dots[index - 1] ?? dot;
    const steps = Math.max(1, Math.ceil(Math.max(Math.abs(dot.x - from.x), Math.abs(dot.y - from.y))));
    for (let i = 0; i <= steps; i++) {
      set(from.x + ((dot.x - from.x) * i) / steps, from.y + ((dot.y - from.y) * i) / steps);
    }
  }
  return bits.map((line) =>
    Array.from(line, (value) => (value === 0 ? ' ' : String.fromCodePoint(0x2800 + value))).join(''),
  );
}

function centre(text: string, width: number): string {
  const left = Math.max(0, Math.floor((width - text.length) / 2));
  return (' '.repeat(left) + text).padEnd(width).slice(0, width);
}
