/** Which keywords of a JSON schema may stand together, and what they say of its values. Layer 3. */
import type { JsonSchema } from '../../core/constraint.ts';
import { DataError } from '../../core/errors.ts';
import { stringFormats } from './string-formats.ts';

export type SchemaObject = Readonly<Record<string, unknown>>;

/** Say something to readers, not about values. */
const annotations = [
  'title',
  'description',
  'default',
  'examples',
  'deprecated',
  'readOnly',
  'writeOnly',
  '$schema',
  '$id',
  '$comment',
  '$defs',
  'definitions',
  'discriminator',
];

const byType: Readonly<Record<string, readonly string[]>> = {
  object: ['properties', 'required', 'additionalProperties', 'propertyNames'],
  array: ['items', 'prefixItems', 'minItems', 'maxItems'],
  string: ['minLength', 'maxLength', 'pattern', 'format'],
  number: ['minimum', 'maximum', 'exclusiveMinimum', 'exclusiveMaximum'],
  integer: ['minimum', 'maximum', 'exclusiveMinimum', 'exclusiveMaximum'],
  boolean: [],
  null: [],
};
/** Each says all about a value; `type` may stand beside `enum` and `const`. */
const alone = ['$ref', 'const', 'enum', 'anyOf', 'oneOf', 'allOf'] as const;

/** Larger repetitions make grammars that take seconds to compile. */
const MAX_COUNT = 4096;
/** A character that is counted costs about 20 ms of compiling at 49,000 tokens, during which nobody samples. */
const MAX_LENGTH = 64;

/** The keyword that says all about a value, or null if `type` and its keywords do. Throws DataError on one that is not supported. */
export function checkKeywords(schema: SchemaObject, path: string): (typeof alone)[number] | null {
  if (typeof schema !== 'object' || schema === null || Array.isArray(schema)) {
    throw new DataError(`${path}: must be a schema, got ${JSON.stringify(schema)}`);
  }
  const keywords = Object.keys(schema).filter((key) => !annotations.includes(key));
  const kind = alone.find((key) => keywords.includes(key)) ?? null;
  const known = kind ? [kind, 'type'] : ['type', ...new Set(Object.values(byType).flat())];
  const wrong = keywords.find((key) => !known.includes(key));
  if (wrong !== undefined) {
    const rule = kind ? `must stand without ${kind}` : `must be one of ${known.join(', ')}, ${alone.join(', ')}`;
    throw new DataError(`${path}.${wrong}: ${rule}, got a keyword that is not supported there`, {
      details: { keyword: wrong },
    });
  }
  if (kind && kind !== 'enum' && kind !== 'const' && keywords.includes('type')) {
    throw new DataError(`${path}.type: must stand without ${kind}`);
  }
  checkValues(schema, path);
  return kind;
}

function checkValues(schema: SchemaObject, path: string): void {
  const require = (key: string, isRight: (value: never) => boolean, rule: string): void => {
    const value = schema[key];
    if (value === undefined || isRight(value as never)) return;
    throw new DataError(`${path}.${key}: must be ${rule}, got ${JSON.stringify(value)?.slice(0, 80)}`);
  };
  const isUpTo =
    (most: number) =>
    (value: unknown): boolean =>
      Number.isSafeInteger(value) && (value as number) >= 0 && (value as number) <= most;
  const isList = (value: unknown): boolean => Array.isArray(value) && value.length > 0;
  for (const key of ['minItems', 'maxItems']) require(key, isUpTo(MAX_COUNT), `a whole number from 0 to ${MAX_COUNT}`);
  const countable = `a whole number from 0 to ${MAX_LENGTH}, more is not enforced (leave it out and check the answer)`;
  for (const key of ['minLength', 'maxLength']) require(key, isUpTo(MAX_LENGTH), countable);
  for (const key of byType.number!) require(key, Number.isFinite, 'a number');
  for (const key of ['enum', 'anyOf', 'oneOf']) require(key, isList, 'a list with entries');
  require('prefixItems', Array.isArray, 'a list of schemas');
  require('items', (value: unknown) => !Array.isArray(value), 'one schema; a list of them is prefixItems');
  require('allOf', (value: unknown) => Array.isArray(value) && value.length === 1, 'a list of one schema');
  require('$ref', (value: unknown) => typeof value === 'string', 'a text');
  require('pattern', (value: unknown) => typeof value === 'string', 'a text');
  require('format', (value: string) =>
    Object.hasOwn(stringFormats, value), `one of ${Object.keys(stringFormats).join(', ')}`);
  require('properties', (value: unknown) =>
    typeof value === 'object' && value !== null && !Array.isArray(value), 'an object');
  require('required', (value: unknown) =>
    Array.isArray(value) && value.every((name) => typeof name === 'string'), 'a list of texts');
  const orders = [
    ['minLength', 'maxLength'],
    ['minItems', 'maxItems'],
  ] as const;
  for (const [least, most] of orders) {
    require(most, (value: number) => value >= Number(schema[least] ?? 0), `at least ${least}`);
  }
  const lengths = ['pattern', 'format', 'minLength', 'maxLength'].filter((key) => schema[key] !== undefined);
  const [first, second] = lengths;
  if ((first === 'pattern' || first === 'format') && second)
    throw new DataError(`${path}.${second}: must stand without ${first}`);
}

/** The types a value may have, from `type` or what its keywords speak of; null = any. Throws DataError. */
export function typesOf(schema: SchemaObject, path: string): string[] | null {
  const keywords = Object.keys(schema).filter((key) => key !== 'type' && !annotations.includes(key));
  if (schema.type !== undefined) {
    const types = [...new Set([schema.type].flat())] as string[];
    const wrong = types.find((type) => typeof type !== 'string' || !Object.hasOwn(byType, type));
    if (wrong !== undefined || types.length === 0) {
      throw new DataError(
        `${path}.type: must be one of ${Object.keys(byType).join(', ')}, got ${JSON.stringify(wrong)}`,
      );
    }
    const foreign = keywords.find((key) => !types.some((type) => byType[type]!.includes(key)));
    if (foreign !== undefined)
      throw new DataError(`${path}.${foreign}: must fit the type ${types.join(', ')}, got a keyword of another`);
    return types.includes('number') ? types.filter((type) => type !== 'integer') : types;
  }
  if (keywords.length === 0) return null;
  const types = ['object', 'array', 'string'].filter((type) => keywords.every((key) => byType[type]!.includes(key)));
  if (types.length === 1) return types;
  throw new DataError(`${path}.type: must be given beside ${keywords.join(', ')}`);
}

/** What a JSON pointer within the document names. Throws DataError. */
export function resolvePointer(document: JsonSchema, pointer: string, path: string): JsonSchema {
  const fail = (): DataError => new DataError(`${path}: must point into the schema (#/…), got ${pointer}`);
  if (!pointer.startsWith('#') || (pointer.length > 1 && pointer[1] !== '/')) throw fail();
  let value: unknown = document;
  for (const part of pointer.slice(1).split('/').slice(1)) {
    let key: string;
    try {
      key = decodeURIComponent(part).replaceAll('~1', '/').replaceAll('~0', '~');
    } catch {
      throw fail();
    }
    if (typeof value !== 'object' || value === null || !Object.hasOwn(value, key)) throw fail();
    value = (value as Record<string, unknown>)[key];
  }
  if (typeof value !== 'boolean' && (typeof value !== 'object' || value === null || Array.isArray(value))) throw fail();
  return value as JsonSchema;
}

/** Whether no value can fit two of them, as far as types and required constants tell. */
export function isDisjoint(options: readonly JsonSchema[]): boolean {
  return options.every((a, i) => options.slice(i + 1).every((b) => areDisjoint(a, b)));
}

function areDisjoint(a: JsonSchema, b: JsonSchema): boolean {
  if (typeof a === 'boolean' || typeof b === 'boolean') return false;
  const values = [valuesOf(a), valuesOf(b)] as const;
  if (values[0] && values[1]) return !values[0].some((value) => values[1]!.includes(value));
  const [left, right] = [a, b].map(({ type }) => (type === undefined ? null : ([type].flat() as string[])));
  const isNumber = (type: string): string => (type === 'integer' ? 'number' : type);
  if (left && right && !left.some((type) => right.map(isNumber).includes(isNumber(type)))) return true;
  const [first, second] = [requiredProperties(a), requiredProperties(b)];
  return Object.keys(first).some((name) => {
    const [ours, theirs] = [valuesOf(first[name]!), second[name] === undefined ? null : valuesOf(second[name])];
    return ours !== null && theirs !== null && !ours.some((value) => theirs.includes(value));
  });
}

/** As JSON texts; null if any number of values may fit. */
function valuesOf(schema: JsonSchema): string[] | null {
  if (typeof schema === 'boolean') return null;
  if ('const' in schema) return [JSON.stringify(schema.const)];
  return Array.isArray(schema.enum) ? schema.enum.map((value) => JSON.stringify(value)) : null;
}

function requiredProperties(schema: SchemaObject): Readonly<Record<string, JsonSchema>> {
  const required = (schema.required ?? []) as string[];
  const properties = (schema.properties ?? {}) as Readonly<Record<string, JsonSchema>>;
  if (schema.type !== 'object') return {};
  return Object.fromEntries(Object.entries(properties).filter(([name]) => required.includes(name)));
}
