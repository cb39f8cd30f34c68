import { expect, test } from 'vitest';
import { formatValue } from './errors.ts';

test('a value in a message is short, and one that is nested too deep for JSON is named as such', () => {
  expect(formatValue({ a: 1 })).toBe('{"a":1}');
  expect(formatValue(undefined)).toBe('undefined');
  expect(formatValue('x'.repeat(200))).toHaveLength(78);
  let nested: unknown[] = [];
  for (let depth = 0; depth < 200_000; depth++) nested = [nested];
  expect(formatValue(nested)).toBe('a value nested too deep to be shown');
});
