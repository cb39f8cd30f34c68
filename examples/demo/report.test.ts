import { expect, test } from 'vitest';
import { formatStep, renderTable } from './report.ts';
import { renderRewardSvg } from './reward-svg.ts';
import { extent, formatTick, niceTicks } from './scale.ts';
import { createStyle } from './style.ts';
import { renderTerminalPlot } from './terminal-plot.ts';

const plain = createStyle({ isTTY: false });
const step = {
  step: 7,
  steps: 20,
  reward: 0.61,
  rewardStd: 0.48,
  win: 0.63,
  draw: 0.12,
  loss: 0.22,
  illegal: 0.03,
  entropy: 0.71,
  mismatchKl: 0,
  rolloutSeconds: 8.1,
  sampleTokensPerSecond: 12_000,
  trainSeconds: 2.9,
  trainTokensPerSecond: 24_000,
};

test('one line says how a step went', () => {
  expect(formatStep(step, plain)).toBe(
    'step  7/20  reward  0.61 ± 0.48  win  63 %  draw  12 %  loss  22 %  illegal   3 %  entropy 0.71  mismatch kl 0  ' +
      'rollout 8.1 s (12,000 tok/s)  train 2.9 s (24,000 tok/s)',
  );
  expect(formatStep({ ...step, mismatchKl: 1.24e-9 }, plain)).toContain('mismatch kl 1.2e-9');
});

test('colours appear on a terminal alone, and never with NO_COLOR', () => {
  expect(createStyle({ isTTY: true }, {}).green('a')).toBe('\u001b[32ma\u001b[39m');
  expect(createStyle({ isTTY: true }, { NO_COLOR: '1' }).green('a')).toBe('a');
  expect(createStyle({ isTTY: false }, {}).green('a')).toBe('a');
});

test('the table sets before and after side by side', () => {
  const before = { win: 0.5425, draw: 0.1, loss: 0.3575, illegal: 0.02 };
  const after = { win: 0.93, draw: 0.05, loss: 0.02, illegal: 0 };
  expect(renderTable([{ title: 'random opponent', before, after }], plain)).toBe(
    [
      'random opponent    before     after    change',
      '            win    54.3 %    93.0 %     +38.8',
      '           draw    10.0 %     5.0 %      −5.0',
      '           loss    35.8 %     2.0 %     −33.8',
      '        illegal     2.0 %     0.0 %      −2.0',
    ].join('\n'),
  );
});

test('ticks are round numbers that cover the range', () => {
  expect(niceTicks(0.03, 0.87, 5)).toEqual([0, 0.5, 1]);
  expect(niceTicks(-0.5, 1, 6)).toEqual([-0.5, 0, 0.5, 1]);
  expect(niceTicks(1, 40, 9)).toEqual([0, 5, 10, 15, 20, 25, 30, 35, 40]);
  expect(niceTicks(0.03, 0.87, 5).map((tick) => formatTick(tick, [0, 0.5, 1]))).toEqual(['0.0', '0.5', '1.0']);
  expect(extent([])).toEqual([0, 1]);
  expect(extent([2, 2, Number.NaN])).toEqual([1.5, 2.5]);
});

test('the terminal plot draws a rising line between labelled axes', () => {
  const points = Array.from({ length: 20 }, (_, index) => ({ x: index + 1, y: index / 19 }));
  const plot = renderTerminalPlot(points, { title: 'reward', width: 40, height: 10 });
  const lines = plot.split('\n');
  expect(lines).toHaveLength(9);
  expect(lines[0]).toBe('reward');
  expect(lines[1]).toMatch(/^1\.0 ┤ +[\u2801-\u28ff]+$/);
  expect(lines[6]).toMatch(/^0\.0 ┤[\u2801-\u28ff]+$/);
  expect(lines[7]).toBe(`    └${'─'.repeat(34)}`);
  expect(lines[8]).toMatch(/^ {5}1 +step +20$/);
  expect(Math.max(...lines.map((line) => line.length))).toBeLessThanOrEqual(40);
});

test('a plot of nothing, of one point and of NaN does not fail', () => {
  expect(renderTerminalPlot([], { title: 'reward' })).toBe('reward\n(no data)');
  expect(renderTerminalPlot([{ x: 1, y: 0.5 }], { title: 'reward' })).toContain('┤');
  expect(renderTerminalPlot([{ x: 1, y: Number.NaN }], { title: 'reward' })).toContain('(no data)');
});

test('the SVG stands alone, escapes its texts and has a curve and a legend entry per series', () => {
  const points = [
    { x: 1, y: 0.2 },
    { x: 2, y: 0.8 },
  ];
  const svg = renderRewardSvg(
    [
      { name: 'train <reward>', points },
      { name: 'win', points: [] },
    ],
    { title: 'A & B' },
  );
  expect(svg.match(/<polyline/g)).toHaveLength(2);
  expect(svg).toContain('>A &amp; B</text>');
  expect(svg).toContain('train &lt;reward&gt;');
  expect(svg).not.toMatch(/NaN|undefined|href|<script/);
});
