import { PassThrough } from 'node:stream';
import { expect, test } from 'vitest';
import { createProgressBar, formatDetails } from './gather-bar.ts';
import type { GatherProgress } from './gather-tally.ts';

const progress: GatherProgress = {
  groupsDone: 0,
  groupsTotal: 1,
  rolloutsDone: 3,
  rolloutsTotal: 8,
  exceptions: 1,
  meanReward: 0.614,
  meanMetrics: { win: 0.5, completion_tokens: 40 },
  completionTokens: 2400,
  elapsedSeconds: 2,
};

function fakeStream(isTTY: boolean): { stream: NodeJS.WriteStream; text: () => string } {
  const chunks: string[] = [];
  const stream = new PassThrough();
  stream.on('data', (chunk) => chunks.push(String(chunk)));
  const terminal = { isTTY, columns: 120, cursorTo: () => true, clearLine: () => true, moveCursor: () => true };
  return { stream: Object.assign(stream, terminal) as unknown as NodeJS.WriteStream, text: () => chunks.join('') };
}

test('details show running means, failures and tokens per second', () => {
  expect(formatDetails(progress)).toBe('  reward 0.61  win 0.50  exceptions 1  1,200 tok/s');
});

test('nothing is drawn where there is no terminal, unless asked for', () => {
  expect(createProgressBar('gather', undefined, fakeStream(false).stream)).toBeUndefined();
  expect(createProgressBar('gather', false, fakeStream(true).stream)).toBeUndefined();
  expect(createProgressBar('gather', true, fakeStream(false).stream)).toBeDefined();
});

test('the bar draws its last state when it stops, and nothing afterwards', async () => {
  const { stream, text } = fakeStream(true);
  const bar = createProgressBar('play', undefined, stream);
  bar?.update(progress);
  bar?.stop();
  const written = text();
  expect(written).toContain('3/8  reward 0.61');
  await new Promise((resolve) => setTimeout(resolve, 300));
  expect(text()).toBe(written);
});
