import { expect, test } from 'vitest';
import { formatHistory, parseHistory } from './history.ts';

const text = [
  '{"step":1,"split":"train","train/reward":0.25,"loss/entropy":1.5}',
  '{"step":1,"split":"val","val/win":0.5}',
  '{"step":12,"split":"train","train/reward":1,"loss/entropy":0.70123}',
  '{"step":13,"spl',
].join('\n');

test('the curve is a table of the metrics that were asked for and exist', () => {
  expect(formatHistory(parseHistory(text), ['reward', 'win', 'draw', 'loss/entropy'])).toBe(
    [
      'step  split  reward     win  loss/entropy',
      '   1  train  0.2500                 1.500',
      '   1    val          0.5000              ',
      '  12  train       1                0.7012',
    ].join('\n'),
  );
  expect(formatHistory([], ['reward'])).toBe('(no rows)');
});

test('a damaged line is named', () => {
  expect(() => parseHistory('{"step":1}\nnonsense\n')).toThrow('history: line 2 must be JSON, got nonsense');
});
