/** What tokens of a model cost, at the user's own prices. Layer 0. No price list: prices change, and a stale one lies. */
import { ConfigError } from './errors.ts';

export interface TokenUsage {
  /** All tokens of the prompt, those found in the provider's cache too. */
  readonly promptTokens: number;
  readonly completionTokens: number;
  /** Of `promptTokens`; default 0. */
  readonly cachedPromptTokens?: number;
}

/** Money for a million tokens, in any currency. */
export interface TokenPrices {
  readonly promptPerMillion: number;
  readonly completionPerMillion: number;
  /** Default `promptPerMillion`. */
  readonly cachedPromptPerMillion?: number;
}

/** Money for the tokens, in the currency of the prices. Throws ConfigError for a price that is negative or not finite. */
export function tokenCost(usage: TokenUsage, prices: TokenPrices): number {
  for (const [name, price] of Object.entries(prices)) {
    if (!Number.isFinite(price) || price < 0) {
      throw new ConfigError(`prices: ${name} must be a finite number of at least 0, got ${price}`);
    }
  }
  const { promptTokens, completionTokens, cachedPromptTokens = 0 } = usage;
  const { promptPerMillion, completionPerMillion, cachedPromptPerMillion = promptPerMillion } = prices;
  const freshTokens = Math.max(0, promptTokens - cachedPromptTokens);
  return (
    (freshTokens * promptPerMillion +
      cachedPromptTokens * cachedPromptPerMillion +
      completionTokens * completionPerMillion) /
    1_000_000
  );
}
