import { expect, test } from 'vitest';
import { ConfigError } from './errors.ts';
import { tokenCost } from './token-cost.ts';

test('tokens cost what the prices say, cached ones their own price', () => {
  const prices = { promptPerMillion: 2, completionPerMillion: 10 };
  expect(tokenCost({ promptTokens: 500_000, completionTokens: 100_000 }, prices)).toBe(2);
  const usage = { promptTokens: 500_000, completionTokens: 0, cachedPromptTokens: 250_000 };
  expect(tokenCost(usage, prices)).toBe(1);
  expect(tokenCost(usage, { ...prices, cachedPromptPerMillion: 0.4 })).toBeCloseTo(0.6, 12);
});

test.each([-1, Number.NaN, Number.POSITIVE_INFINITY])('a price of %d is refused by name', (completionPerMillion) => {
  const prices = { promptPerMillion: 1, completionPerMillion };
  expect(() => tokenCost({ promptTokens: 1, completionTokens: 1 }, prices)).toThrow(ConfigError);
  expect(() => tokenCost({ promptTokens: 1, completionTokens: 1 }, prices)).toThrow(
    /^prices: completionPerMillion must be/,
  );
});
