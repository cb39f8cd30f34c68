import { expect, test } from 'vitest';
import { MetricsBuilder, readUsage } from './metrics-builder.ts';
import type { LogOptions } from './model.ts';

interface Row {
  readonly split: string | undefined;
  readonly metrics: Readonly<Record<string, number>>;
}

/** A model that keeps its rows here. */
function scriptedModel(): { readonly rows: Row[]; fail: boolean } & ConstructorParameters<typeof MetricsBuilder>[0] {
  const rows: Row[] = [];
  return {
    rows,
    fail: false,
    name: 'agent',
    backend: () => {
      throw new Error('not asked');
    },
    async log(_entries: unknown, { split, metrics = {} }: LogOptions = {}) {
      if (this.fail) throw new Error('down');
      rows.push({ split, metrics });
    },
  };
}

const prices = { judge: { promptPerMillion: 2, completionPerMillion: 8 } };

test('values of a step add up; totals go on over rows and from those that are there', async () => {
  const model = scriptedModel();
  const builder = new MetricsBuilder(model, prices, [['costs/cum/train/judge', 1]]);
  builder.addCost('judge', 0.25);
  builder.addUsage('judge', 'judge', { promptTokens: 1_000_000, completionTokens: 500_000 }); // 2 + 4
  builder.addCost('judge', 0.5, { phase: 'eval' });
  builder.add('data/step_actor_tokens', 40);
  builder.add('sections/mine', 3);
  await builder.log();
  builder.addCost('tools', 1);
  await builder.log({ split: 'val' });
  expect(model.rows).toEqual([
    {
      split: 'train',
      metrics: {
        'costs/train/judge': 6.25,
        'costs/eval/judge': 0.5,
        'costs/train': 6.25,
        'costs/eval': 0.5,
        'costs/all': 6.75,
        'costs/cum/train/judge': 7.25,
        'costs/cum/eval/judge': 0.5,
        'costs/cum/train': 6.25,
        'costs/cum/eval': 0.5,
        'costs/cum/all': 6.75,
        'data/step_actor_tokens': 40,
        'data/cum/step_actor_tokens': 40,
        'sections/mine': 3,
      },
    },
    {
      split: 'val',
      metrics: {
        'costs/train/tools': 1,
        'costs/train': 1,
        'costs/all': 1,
        'costs/cum/train/tools': 1,
        'costs/cum/train': 7.25,
        'costs/cum/all': 7.75,
      },
    },
  ]);
});

test('a row that could not be written is written by the next try', async () => {
  const model = scriptedModel();
  const builder = new MetricsBuilder(model, prices, []);
  builder.addCost('judge', 1);
  model.fail = true;
  await expect(builder.log()).rejects.toThrow('down');
  builder.addCost('judge', 2);
  model.fail = false;
  await builder.log();
  expect(model.rows).toMatchObject([{ metrics: { 'costs/train/judge': 3, 'costs/cum/all': 3 } }]);
  expect(builder.metrics()).toEqual({});
});

test('measures wall time, of work that fails as well', async () => {
  const builder = new MetricsBuilder(scriptedModel(), {}, []);
  expect(await builder.measure('step_actor', async () => 5)).toBe(5);
  await expect(
    builder.measure('step_actor', () => {
      throw new Error('no');
    }),
  ).rejects.toThrow('no');
  expect(Object.keys(builder.metrics())).toEqual(['time/step_actor_s', 'time/cum/step_actor_s']);
  expect(builder.metrics()['time/step_actor_s']).toBeGreaterThan(0);
});

test('answers of both APIs are read; cached tokens have their own price', () => {
  expect(readUsage({ prompt_tokens: 10, completion_tokens: 2, prompt_tokens_details: { cached_tokens: 4 } })).toEqual({
    promptTokens: 10,
    completionTokens: 2,
    cachedPromptTokens: 4,
  });
  expect(
    readUsage({ input_tokens: 10, output_tokens: 2, cache_read_input_tokens: 5, cache_creation_input_tokens: 1 }),
  ).toEqual({
    promptTokens: 16,
    completionTokens: 2,
    cachedPromptTokens: 5,
  });
  expect(() => readUsage(null)).toThrow(/^usage: must have prompt_tokens and completion_tokens, or input_tokens/);
});

test('what cannot be right is refused by name', () => {
  const builder = new MetricsBuilder(scriptedModel(), prices, []);
  expect(() => builder.addUsage('judge', 'gpt', { promptTokens: 1, completionTokens: 1 })).toThrow(
    'addUsage: gpt must have a price (prices of openMetricsBuilder); priced are judge',
  );
  expect(() => builder.addCost('my judge', 1)).toThrow(
    'addCost: source must be a lower-case word such as judge, got my judge',
  );
  expect(() => builder.addCost('judge', -1)).toThrow('addCost: cost of judge must be at least 0, got -1');
  expect(() => builder.add('x', Number.NaN)).toThrow('metric x: must be finite, got NaN');
});
