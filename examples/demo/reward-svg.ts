/** The reward curve as one self-contained SVG file: no script, no font to load, readable on light and dark pages. */
import { extent, formatTick, niceTicks, type Point } from './scale.ts';

export interface Series {
  readonly name: string;
  readonly points: readonly Point[];
}

export interface SvgOptions {
  readonly title: string;
  readonly xLabel?: string;
  readonly yLabel?: string;
}

const [WIDTH, HEIGHT] = [720, 400];
const [LEFT, RIGHT, TOP, BOTTOM] = [64, 24, 72, 56];
/** Okabe-Ito colours: told apart with any colour vision, and with enough contrast on white and on near-black. */
const COLOURS = ['#0072b2', '#d55e00', '#009e73', '#cc79a7', '#e69f00'];

/** Throws nothing on empty series: the axes are drawn alone. */
export function renderRewardSvg(series: readonly Series[], options: SvgOptions): string {
  const { title, xLabel = 'step', yLabel = 'reward' } = options;
  const all = series.flatMap(({ points }) => points);
  const [xLow, xHigh] = extent(all.map(({ x }) => x));
  const yTicks = niceTicks(...extent(all.map(({ y }) => y)), 6);
  const xTicks = niceTicks(xLow, xHigh, 9).filter((tick) => tick >= xLow && tick <= xHigh);
  const [yLow, yHigh] = [yTicks[0] as number, yTicks.at(-1) as number];
  const toX = (x: number): string => (LEFT + ((x - xLow) / (xHigh - xLow)) * (WIDTH - LEFT - RIGHT)).toFixed(1);
  const toY = (y: number): string => (TOP + ((yHigh - y) / (yHigh - yLow)) * (HEIGHT - TOP - BOTTOM)).toFixed(1);
  const bottom = HEIGHT - BOTTOM;
  const grid = yTicks.map(
    (tick) =>
      `<line class="grid" x1="${LEFT}" x2="${WIDTH - RIGHT}" y1="${toY(tick)}" y2="${toY(tick)}"/>` +
      `<text x="${LEFT - 8}" y="${toY(tick)}" dy="0.32em" text-anchor="end">${formatTick(tick, yTicks)}</text>`,
  );
  const xAxis = xTicks.map(
    (tick) =>
      `<line class="axis" x1="${toX(tick)}" x2="${toX(tick)}" y1="${bottom}" y2="${bottom + 5}"/>` +
      `<text x="${toX(tick)}" y="${bottom + 20}" text-anchor="middle">${formatTick(tick, xTicks)}</text>`,
  );
  const legend = series.map(({ name }, index) => legendEntry(name, index));
  const curves = series.map(({ points }, index) => {
    const path = points.filter(({ x, y }) => Number.isFinite(x) && Number.isFinite(y));
    const colour = COLOURS[index % COLOURS.length];
    const dots = path.map(({ x, y }) => `<circle cx="${toX(x)}" cy="${toY(y)}" r="2.5" fill="${colour}"/>`).join('');
    return `<polyline fill="none" stroke="${colour}" stroke-width="2" stroke-linejoin="round" points="${path
      .map(({ x, y }) => `${toX(x)},${toY(y)}`)
      .join(' ')}"/>${dots}`;
  });
  return `${[
    `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${WIDTH} ${HEIGHT}" width="${WIDTH}" height="${HEIGHT}" role="img" aria-label="${escapeXml(title)}">`,
    '<style>',
    'text { font: 12px system-ui, sans-serif; fill: #57606a } .title { font-size: 16px; font-weight: 600; fill: #1f2328 }',
    '.page { fill: #fff } .grid { stroke: #d0d7de } .axis { stroke: #57606a }',
    '@media (prefers-color-scheme: dark) { text { fill: #9198a1 } .title { fill: #f0f6fc } .page { fill: #0d1117 } .grid { stroke: #30363d } .axis { stroke: #9198a1 } }',
    '</style>',
    `<rect class="page" width="${WIDTH}" height="${HEIGHT}" rx="6"/>`,
    `<text class="title" x="${LEFT}" y="30">${escapeXml(title)}</text>`,
    ...legend,
    ...grid,
    `<line class="axis" x1="${LEFT}" x2="${WIDTH - RIGHT}" y1="${bottom}" y2="${bottom}"/>`,
    ...xAxis,
    `<text x="${(LEFT + WIDTH - RIGHT) / 2}" y="${HEIGHT - 12}" text-anchor="middle">${escapeXml(xLabel)}</text>`,
    `<text transform="translate(18 ${(TOP + bottom) / 2}) rotate(-90)" text-anchor="middle">${escapeXml(yLabel)}</text>`,
    ...curves,
    '</svg>',
  ].join('\n')}\n`;
}

/** Entries stand in columns of equal width under the title. */
function legendEntry(name: string, index: number): string {
  const x = LEFT + index * 150;
  return (
    `<line x1="${x}" x2="${x + 18}" y1="50" y2="50" stroke="${COLOURS[index % COLOURS.length]}" stroke-width="3"/>` +
    `<text x="${x + 24}" y="50" dy="0.32em">${escapeXml(name)}</text>`
  );
}

function escapeXml(text: string): string {
  return text.replace(/[&<>"]/g, (sign) => ({ '&': '&amp;', '<': '&lt;', '>': '&gt;', '"': '&quot;' })[sign] ?? sign);
}
