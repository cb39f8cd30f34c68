/**
 * Collects what a loop measures beside its rewards: wall times, tokens, money. Layer 5. Names as in Python ART.
 * Each `log` writes one row: what was added since the last one, and totals over all rows of the model under `…/cum/…`. Totals are read
 * back from the model's own rows, so they go on after a restart; what was not logged when a process died is not in them.
 */
import { ConfigError, DataError } from '../core/errors.ts';
import { refuseUnknownKeys } from '../core/options.ts';
import { type TokenPrices, type TokenUsage, tokenCost } from '../core/token-cost.ts';
import type { CallOptions } from './call.ts';
import type { LogOptions, TrainableModel } from './model.ts';

/** What the money or time was spent on. */
export type Phase = 'train' | 'eval';

export interface MetricsBuilderOptions extends CallOptions {
  /** Prices by model name, as `addUsage` is told it. */
  readonly prices?: Readonly<Record<string, TokenPrices>>;
}

export interface CostOptions {
  /** Default `train`. */
  readonly phase?: Phase;
}

/** The part of a response that says what it used: OpenAI's chat, completions and Responses API, or Anthropic's Messages. */
export interface MeteredResponse {
  readonly model?: string;
  readonly usage?: object | null;
}

type LoggedModel = Pick<TrainableModel, 'log' | 'backend' | 'name'>;

/** Names that have a total over all rows. */
const isTotalled = (name: string): boolean => /^(costs|time|data)\/(?!cum\/)/.test(name);
const totalOf = (name: string): string => name.replace('/', '/cum/');

/** Made by `openMetricsBuilder`. Values of one name add up until they are logged. */
export class MetricsBuilder {
  readonly #model: LoggedModel;
  readonly #prices: Readonly<Record<string, TokenPrices>>;
  readonly #totals: Map<string, number>;
  #values = new Map<string, number>();

  /** `totals`: the values of `…/cum/…` so far. */
  constructor(model: LoggedModel, prices: Readonly<Record<string, TokenPrices>>, totals: Iterable<[string, number]>) {
    this.#model = model;
    this.#prices = prices;
    this.#totals = new Map(totals);
  }

  /** Adds to a metric. Throws DataError for a value that is not finite. */
  add(name: string, value: number): void {
    if (!Number.isFinite(value)) throw new DataError(`metric ${name}: must be finite, got ${value}`);
    this.#values.set(name, (this.#values.get(name) ?? 0) + value);
  }

  /** Does the work and adds its wall time to `time/<name>_s`, in seconds, also when it fails. */
  async measure<T>(name: string, work: () => T | PromiseLike<T>): Promise<T> {
    const startedAt = performance.now();
    try {
      return await work();
    } finally {
      this.add(`time/${name}_s`, (performance.now() - startedAt) / 1000);
    }
  }

  /** Money, in one currency throughout, under `costs/<phase>/<source>`. */
  addCost(source: string, cost: number, { phase = 'train' }: CostOptions = {}): void {
    if (!/^[a-z][a-z0-9_]*$/.test(source)) {
      throw new ConfigError(`addCost: source must be a lower-case word such as judge, got ${source}`);
    }
    if (cost < 0) throw new DataError(`addCost: cost of ${source} must be at least 0, got ${cost}`);
    this.add(`costs/${phase}/${source}`, cost);
  }

  /** Tokens that a priced model used, as money. Throws ConfigError for a model without a price. */
  addUsage(source: string, modelName: string, usage: TokenUsage, options: CostOptions = {}): void {
    const prices = Object.hasOwn(this.#prices, modelName) ? this.#prices[modelName] : undefined;
    if (prices === undefined) {
      const known = Object.keys(this.#prices).join(', ') || 'none';
      throw new ConfigError(
        `addUsage: ${modelName} must have a price (prices of openMetricsBuilder); priced are ${known}`,
      );
    }
    this.addCost(source, tokenCost(usage, prices), options);
  }

  /** The same from the answer of an API. `modelName`: default the one the answer names. */
  addResponse(
    source: string,
    response: MeteredResponse,
    options: CostOptions & { readonly modelName?: string } = {},
  ): void {
    const { modelName = response.model, ...rest } = options;
    if (modelName === undefined)
      throw new DataError('addResponse: the answer must name its model, or modelName must be given');
    this.addUsage(source, modelName, readUsage(response.usage), rest);
  }

  /** What `log` would write. */
  metrics(): Readonly<Record<string, number>> {
    const metrics = Object.fromEntries(this.#values);
    let all = 0;
    for (const phase of ['train', 'eval'] as const) {
      const costs = [...this.#values].filter(([name]) => name.startsWith(`costs/${phase}/`));
      if (costs.length === 0) continue;
      const sum = costs.reduce((total, [, value]) => total + value, 0);
      metrics[`costs/${phase}`] = sum;
      all += sum;
    }
    if (Object.keys(metrics).some((name) => name.startsWith('costs/'))) metrics['costs/all'] = all;
    for (const [name, value] of Object.entries(metrics)) {
      if (isTotalled(name)) metrics[totalOf(name)] = (this.#totals.get(totalOf(name)) ?? 0) + value;
    }
    return metrics;
  }

  /** Writes one row and begins the next. If it rejects, everything is kept for another try. */
  async log(options: Omit<LogOptions, 'metrics'> = {}): Promise<void> {
    const metrics = this.metrics();
    const written = this.#values;
    this.#values = new Map();
    try {
      await this.#model.log([], { split: 'train', ...options, metrics });
    } catch (error) {
      for (const [name, value] of written) this.add(name, value);
      throw error;
    }
    for (const [name, value] of Object.entries(metrics)) if (name.includes('/cum/')) this.#totals.set(name, value);
  }
}

/** A builder whose totals go on from the rows that the model has. */
export async function openMetricsBuilder(
  model: TrainableModel,
  options: MetricsBuilderOptions = {},
): Promise<MetricsBuilder> {
  refuseUnknownKeys('openMetricsBuilder', options, ['prices', 'signal']);
  const { prices = {}, signal } = options;
  const backend = model.backend();
  const names = (await backend.listMetrics(model, { signal })).filter((name) => name.includes('/cum/'));
  const totals: [string, number][] = [];
  for (const name of names) {
    const last = (await backend.getMetric(model, name, { signal })).at(-1);
    if (last !== undefined) totals.push([name, last.value]);
  }
  return new MetricsBuilder(model, prices, totals);
}

/** Token counts under the names of OpenAI's and Anthropic's APIs. Throws DataError where there are none. */
export function readUsage(usage: object | null | undefined): TokenUsage {
  const counts = (usage ?? {}) as Record<string, unknown>;
  const isAnthropic = 'cache_read_input_tokens' in counts || 'cache_creation_input_tokens' in counts;
  const prompt = counts.prompt_tokens ?? counts.input_tokens;
  const completion = counts.completion_tokens ?? counts.output_tokens;
  if (typeof prompt !== 'number' || typeof completion !== 'number') {
    throw new DataError(
      `usage: must have prompt_tokens and completion_tokens, or input_tokens and output_tokens, got ${JSON.stringify(usage)}`,
    );
  }
  const details = (counts.prompt_tokens_details ?? counts.input_tokens_details) as
    | { cached_tokens?: number }
    | undefined;
  if (!isAnthropic)
    return { promptTokens: prompt, completionTokens: completion, cachedPromptTokens: details?.cached_tokens ?? 0 };
  // Anthropic counts what it read from and wrote to its cache apart.
  const cached = Number(counts.cache_read_input_tokens ?? 0);
  const created = Number(counts.cache_creation_input_tokens ?? 0);
  return { promptTokens: prompt + cached + created, completionTokens: completion, cachedPromptTokens: cached };
}
