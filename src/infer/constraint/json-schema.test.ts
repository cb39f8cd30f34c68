/** Schemas as grammars: texts of noise parse and are valid by another implementation, zod's. */
import { readFileSync } from 'node:fs';
import fc from 'fast-check';
import { expect, test } from 'vitest';
import * as z from 'zod';
import { sampleNoise } from '../../../test/noise-sampler.ts';
import { DataError } from '../../core/errors.ts';
import { createTokenizer } from '../../formats/tokenizer.ts';
import { Grammars } from './grammars.ts';
import { jsonSchemaToEbnf } from './json-schema.ts';

const file = new URL('../../../test/fixtures/tokenizers/smollm2.json', import.meta.url);
const tokenizer = createTokenizer(JSON.parse(readFileSync(file, 'utf8')));
const stopIds = [...tokenizer.specialIds].slice(-1);
const grammars = new Grammars(tokenizer, tokenizer.vocabSize);

type Schema = Record<string, unknown>;

async function sampleJson(schema: Schema, seed: number): Promise<{ text: string; isEnded: boolean }> {
  return sampleNoise(grammars, tokenizer, { type: 'jsonSchema', schema }, { seed, stopIds, maxTokens: 1500 });
}

const decimal = fc.integer({ min: -5000, max: 5000 }).map((value) => value / 10 ** (Math.abs(value) % 4));
const bounds = (type: string) =>
  fc
    .record(
      { low: decimal, high: decimal, isLowOpen: fc.boolean(), isHighOpen: fc.boolean() },
      { requiredKeys: ['isLowOpen', 'isHighOpen'] },
    )
    .map(({ low, high, isLowOpen, isHighOpen }): Schema => {
      // Wide enough that a number lies between them.
      const top = high === undefined || low === undefined ? high : Math.max(high, Math.ceil(low) + 2);
      return {
        type,
        ...(low === undefined ? {} : { [isLowOpen ? 'exclusiveMinimum' : 'minimum']: low }),
        ...(top === undefined ? {} : { [isHighOpen ? 'exclusiveMaximum' : 'maximum']: top }),
      };
    });
const name = fc.constantFrom('a', 'ab', 'b', 'name', 'ключ', 'with "quotes"', 'a\\b', '', 'x y');
const leaf: fc.Arbitrary<Schema> = fc.oneof(
  bounds('integer'),
  bounds('number'),
  fc.constant({ type: 'boolean' }),
  fc.constant({ type: 'null' }),
  fc
    .record({ minLength: fc.integer({ min: 0, max: 4 }), more: fc.integer({ min: 0, max: 12 }) })
    .map(({ minLength, more }) => ({ type: 'string', minLength, maxLength: minLength + more })),
  fc
    .constantFrom('^[a-c]{2,4}$', '^(x|yy)"?$', '^\\d{3}-[\\w ]+$', '^[^a-z]{1,3}$', 'é')
    .map((pattern) => ({ type: 'string', pattern })),
  fc.constantFrom('date', 'time', 'date-time', 'uuid', 'ipv4').map((format) => ({ type: 'string', format })),
  fc
    .uniqueArray(fc.oneof(fc.string({ maxLength: 5 }), fc.integer(), fc.constant(null)), { minLength: 1, maxLength: 4 })
    .map((values) => ({ enum: values })),
  fc.string({ maxLength: 6 }).map((value) => ({ const: value })),
);
const schemas = fc.letrec<{ any: Schema }>((tie) => ({
  any: fc.oneof(
    { maxDepth: 3, depthSize: 'small' },
    leaf,
    fc
      .record({
        entries: fc.uniqueArray(fc.tuple(name, tie('any'), fc.boolean()), { maxLength: 4, selector: ([key]) => key }),
        additional: fc.constantFrom(undefined, false, { type: 'boolean' }),
      })
      .map(({ entries, additional }) => ({
        type: 'object',
        properties: Object.fromEntries(entries.map(([key, value]) => [key, value])),
        required: entries.flatMap(([key, , isRequired]) => (isRequired ? [key] : [])),
        ...(additional === undefined ? {} : { additionalProperties: additional }),
      })),
    fc
      .record({ items: tie('any'), minItems: fc.integer({ min: 0, max: 2 }), more: fc.integer({ min: 0, max: 2 }) })
      .map(({ items, minItems, more }) => ({ type: 'array', items, minItems, maxItems: minItems + more })),
    fc.array(tie('any'), { minLength: 1, maxLength: 3 }).map((options) => ({ anyOf: options })),
  ),
})).any;

test('200 random schemas: every text that comes to its end is JSON, and valid', { timeout: 120_000 }, async () => {
  let ended = 0;
  const check = fc.asyncProperty(schemas, fc.nat(), async (schema, seed) => {
    const { text, isEnded } = await sampleJson(schema, seed);
    if (!isEnded) return;
    ended++;
    const result = z.fromJSONSchema(schema as never).safeParse(JSON.parse(text));
    expect(result.success, `${text} of ${JSON.stringify(schema)}: ${result.error?.message}`).toBe(true);
  });
  await fc.assert(check, { numRuns: 200, seed: 11 });
  expect(ended).toBeGreaterThan(190);
});

test('a recursive schema, references and alternatives by a constant', async () => {
  const schema = {
    $ref: '#/$defs/node',
    $defs: {
      node: {
        oneOf: [
          {
            type: 'object',
            properties: { kind: { const: 'leaf' }, value: { $ref: '#/$defs/a~1b' } },
            required: ['kind', 'value'],
          },
          {
            type: 'object',
            properties: { kind: { const: 'pair' }, left: { $ref: '#/$defs/node' }, right: { $ref: '#/$defs/node' } },
            required: ['kind', 'left', 'right'],
          },
        ],
      },
      'a/b': { type: ['integer', 'null'], maximum: 9 },
    },
  };
  const isNode = (node: Record<string, unknown>): boolean =>
    node.kind === 'leaf'
      ? Object.keys(node).join() === 'kind,value' && (node.value === null || (node.value as number) <= 9)
      : Object.keys(node).join() === 'kind,left,right' && isNode(node.left as never) && isNode(node.right as never);
  let ended = 0;
  for (let seed = 0; seed < 20; seed++) {
    const { text, isEnded } = await sampleJson(schema, seed);
    if (!isEnded) continue;
    ended++;
    expect(isNode(JSON.parse(text))).toBe(true);
  }
  expect(ended).toBeGreaterThan(5);
});

test('any JSON value, any object, maps, and tuples', async () => {
  for (let seed = 0; seed < 10; seed++) {
    const any = await sampleJson({}, seed);
    if (any.isEnded) expect(() => JSON.parse(any.text)).not.toThrow();
    const map = await sampleJson(
      { type: 'object', propertyNames: { enum: ['x', 'y'] }, additionalProperties: { type: 'integer', minimum: 0 } },
      seed,
    );
    if (map.isEnded)
      for (const [key, value] of Object.entries(JSON.parse(map.text)))
        expect(['x', 'y'].includes(key) && (value as number) >= 0).toBe(true);
    const tuple = await sampleJson(
      {
        type: 'array',
        prefixItems: [{ type: 'null' }, { type: 'boolean' }],
        items: { const: 'z' },
        minItems: 3,
        maxItems: 4,
      },
      seed,
    );
    const [first, second, ...rest] = JSON.parse(tuple.text);
    expect([first, typeof second, rest.length >= 1 && rest.length <= 2]).toEqual([null, 'boolean', true]);
    expect(rest.every((item: unknown) => item === 'z')).toBe(true);
    const missing = await sampleJson({ type: 'object', required: ['k'], additionalProperties: { type: 'null' } }, seed);
    if (missing.isEnded) expect(JSON.parse(missing.text).k).toBeNull();
  }
});

test.each<[Schema, RegExp]>([
  [{ type: 'array', uniqueItems: true }, /^s\.uniqueItems: must be one of/],
  [{ type: 'array', contains: {} }, /^s\.contains: /],
  [{ type: 'number', multipleOf: 3 }, /^s\.multipleOf: /],
  [{ type: 'object', patternProperties: {} }, /^s\.patternProperties: /],
  [{ type: 'object', minProperties: 1 }, /^s\.minProperties: /],
  [{ type: 'object', dependentRequired: {} }, /^s\.dependentRequired: /],
  [{ type: 'object', properties: { a: { not: {} } } }, /^s\.properties\.a\.not: /],
  [{ if: {}, else: {} }, /^s\.if: /],
  [{ type: 'string', nullable: true }, /^s\.nullable: /],
  [{ anyOf: [{ type: 'null' }], minLength: 3 }, /^s\.minLength: must stand without anyOf/],
  [{ allOf: [{}, {}] }, /^s\.allOf: must be a list of one schema/],
  [{ oneOf: [{ type: 'integer' }, { type: 'number' }] }, /^s\.oneOf: must be alternatives that differ/],
  [{ type: 'string', format: 'regex' }, /^s\.format: must be one of date, time/],
  [{ type: 'string', pattern: 'a', maxLength: 3 }, /^s\.maxLength: must stand without pattern/],
  [{ type: 'string', pattern: '(?!a)b' }, /^s\.pattern: must be a regular expression without/],
  [{ type: 'string', minLength: 3, maxLength: 2 }, /^s\.maxLength: must be at least minLength/],
  [{ type: 'string', maxLength: 1e6 }, /^s\.maxLength: must be a whole number from 0 to/],
  [{ type: 'string', minimum: 3 }, /^s\.minimum: must fit the type string/],
  [{ type: 'text' }, /^s\.type: must be one of .*, got "text"/],
  [{ minimum: 3 }, /^s\.type: must be given beside minimum/],
  [{ type: 'integer', minimum: 3, maximum: 2 }, /^s: must leave a number between its bounds/],
  [{ type: 'number', minimum: 1e30 }, /^s: bounds must have at most/],
  [{ $ref: '#/$defs/none' }, /^s\.\$ref: must point into the schema/],
  [{ $ref: 'https://example.com/x' }, /^s\.\$ref: must point into the schema/],
  [
    { $ref: '#/$defs/a', $defs: { a: { anyOf: [{ $ref: '#/$defs/a' }, { type: 'null' }] } } },
    /must not lead back to itself/,
  ],
  [{ type: 'object', required: ['a'], additionalProperties: false }, /^s\.required: must name properties, got a/],
  [{ type: 'object', properties: { a: false } }, /^s\.properties\.a: must admit some value/],
  [{ enum: [] }, /^s\.enum: must be a list with entries/],
  [{ type: 'string', enum: [1] }, /^s\.enum: must have a value of its type/],
  [{ type: 'array', items: [{}] }, /^s\.items: must be one schema/],
])('%j is refused by name', (schema, message) => {
  expect(() => jsonSchemaToEbnf(schema, 's')).toThrow(message);
  expect(() => jsonSchemaToEbnf(schema, 's')).toThrow(DataError);
});

test('schemas too deep are refused', () => {
  const deep = Array.from({ length: 40 }).reduce<Schema>((items) => ({ type: 'array', items }), {});
  expect(() => jsonSchemaToEbnf(deep, 's')).toThrow(/must be at most 32 levels deep/);
});
