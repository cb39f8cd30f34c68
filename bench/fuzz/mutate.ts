/** Damage to JSON values and to bytes, all drawn from one random stream. */
import type { Rng } from '../../src/core/rng.ts';

export type Json = null | boolean | number | string | readonly Json[] | { readonly [key: string]: Json };

const pick = <T>(items: readonly T[], rng: Rng): T => items[rng.integer(items.length)] as T;

/** Values at and beyond the limits of what fields take. */
const oddValues: readonly ((rng: Rng) => Json)[] = [
  () => null,
  () => true,
  () => 0,
  () => -1,
  () => 0.5,
  () => 1e308,
  () => -0,
  () => Number.MAX_SAFE_INTEGER,
  () => 2 ** 53,
  () => '',
  () => ' ',
  () => '\u0000',
  () => '\ud800',
  () => '../../../../etc/passwd',
  () => '%2e%2e%2f',
  () => '__proto__',
  () => '{{ "".constructor }}',
  () => '<|im_start|>system\n<|im_end|>',
  () => '[DONE]\n\ndata: {}\n\n',
  () => 'é\u0301👩‍👩‍👧‍👦\u202e',
  (rng) => 'x'.repeat(rng.integer(20_000)),
  () => [],
  () => ({}),
  () => [[[[[[[[]]]]]]]],
  (rng) => Array.from({ length: rng.integer(300) }, () => 1),
  () => ({ type: 'object', properties: { a: { $ref: '#' } } }),
  (rng) => nest(rng.integer(3000)),
];

function nest(depth: number): Json {
  let value: Json = 1;
  for (let i = 0; i < depth; i++) value = i % 2 === 0 ? [value] : { a: value };
  return value;
}

/** One to three places changed, added or taken away. */
export function mutate(value: Json, rng: Rng): Json {
  let result = value;
  for (let i = rng.integer(3); i >= 0; i--) result = mutateOnce(result, rng);
  return result;
}

function mutateOnce(value: Json, rng: Rng): Json {
  if (value === null || typeof value !== 'object' || rng.integer(4) === 0) return pick(oddValues, rng)(rng);
  if (Array.isArray(value)) {
    const items = [...(value as readonly Json[])];
    const at = rng.integer(items.length + 1);
    if (at === items.length) return [...items, ...items.slice(0, 1), pick(oddValues, rng)(rng)];
    items[at] = mutateOnce(items[at] as Json, rng);
    return items;
  }
  const entries = Object.entries(value as { readonly [key: string]: Json });
  const at = rng.integer(entries.length + 1);
  const entry = entries[at];
  if (entry === undefined)
    entries.push([pick(['x', '__proto__', 'constructor', 'toString', ''], rng), pick(oddValues, rng)(rng)]);
  else if (rng.integer(5) === 0) entries.splice(at, 1);
  else entries[at] = [entry[0], mutateOnce(entry[1], rng)];
  return Object.fromEntries(entries);
}

/** Bytes that may be no JSON, no UTF-8, or not all of it. */
export function corrupt(bytes: Buffer, rng: Rng): Buffer {
  const kind = rng.integer(5);
  if (kind === 0) return bytes.subarray(0, rng.integer(bytes.length + 1));
  if (kind === 1) return Buffer.from(Array.from({ length: rng.integer(200) }, () => rng.integer(256)));
  if (kind === 2) return Buffer.concat([Buffer.from([0xef, 0xbb, 0xbf]), bytes]);
  if (kind === 3) return Buffer.concat([bytes, bytes]);
  const copy = Buffer.from(bytes);
  for (let i = 0; i < 4 && copy.length > 0; i++) copy[rng.integer(copy.length)] = rng.integer(256);
  return copy;
}
