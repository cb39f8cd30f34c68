import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { ConfigError } from '../core/errors.ts';
import { BLOCK_TOKENS, type BlockTable, KvCache } from './kv-cache.ts';

const create = (capacityTokens: number): KvCache => new KvCache({ layers: 1, kvHeads: 2, headSize: 1 }, capacityTokens);
const ids = (count: number, first = 0): number[] => Array.from({ length: count }, (_, i) => first + i);

/** A finished user: its first `count` tokens are computed and given back. */
function leave(cache: KvCache, policy: number, tokenIds: readonly number[]): void {
  const { table } = cache.allocate(policy, tokenIds, tokenIds.length)!;
  cache.commit(table, tokenIds, tokenIds.length);
  cache.release(table);
}

describe('reuse', () => {
  test('complete blocks of an equal prefix are found, but never the last known token', () => {
    const cache = create(80);
    leave(cache, 1, ids(20));
    expect(cache.allocate(1, ids(20), 20)!.cachedTokens).toBe(16);
    expect(cache.allocate(1, ids(16), 16)!.cachedTokens).toBe(8); // 16 would leave no token to compute
    expect(cache.allocate(1, ids(17), 17)!.cachedTokens).toBe(16);
    expect(cache.allocate(1, [...ids(12), 99, ...ids(8)], 21)!.cachedTokens).toBe(8);
    expect(cache.allocate(1, [99, ...ids(19)], 20)!.cachedTokens).toBe(0);
  });

  test('the same tokens after another prefix are others', () => {
    const cache = create(80);
    leave(cache, 1, [...ids(8), ...ids(8, 50)]);
    expect(cache.allocate(1, [...ids(8, 20), ...ids(8, 50), 1], 17)!.cachedTokens).toBe(0);
  });

  test('tokens whose numbers join to the same text are others', () => {
    const cache = create(80);
    leave(cache, 1, [1, 11, 1, 1, 1, 1, 1, 1, 5]);
    expect(cache.allocate(1, [11, 1, 1, 1, 1, 1, 1, 1, 5], 9)!.cachedTokens).toBe(0);
    expect(cache.allocate(11, [1, 11, 1, 1, 1, 1, 1, 1, 5], 9)!.cachedTokens).toBe(0);
  });

  test('another policy finds nothing', () => {
    const cache = create(80);
    leave(cache, 1, ids(20));
    expect(cache.allocate(2, ids(20), 20)!.cachedTokens).toBe(0);
  });

  test('what is not committed is not found', () => {
    const cache = create(80);
    const { table } = cache.allocate(1, ids(20), 20)!;
    cache.commit(table, ids(20), 15);
    expect(cache.allocate(1, ids(20), 20)!.cachedTokens).toBe(8);
  });

  test('two that compute the same at the same time keep their own blocks, and a third finds one', () => {
    const cache = create(160);
    const [a, b] = [cache.allocate(1, ids(17), 17)!.table, cache.allocate(1, ids(17), 17)!.table];
    for (const table of [a, b]) cache.commit(table, ids(17), 17);
    expect(a.blocks.filter((block) => b.blocks.includes(block))).toEqual([]);
    // The second block of the second one stands after the first block, not at the beginning.
    expect(cache.allocate(1, [...ids(8, 8), 70], 9)!.cachedTokens).toBe(0);
    const third = cache.allocate(1, [...ids(16), 70], 17)!;
    expect(third.cachedTokens).toBe(16);
    expect(third.table.blocks.slice(0, 2)).toEqual(a.blocks.slice(0, 2));
  });
});

describe('room', () => {
  test('exhaustion is null and takes nothing; after a release it succeeds', () => {
    const cache = create(32);
    expect(cache.capacityTokens).toBe(32);
    const first = cache.allocate(1, ids(9), 20)!;
    expect(cache.freeTokens).toBe(8);
    expect(cache.allocate(1, ids(5, 40), 9)).toBeNull();
    expect(cache.freeTokens).toBe(8);
    expect(cache.allocate(1, ids(5, 40), 8)!.table.blocks).toHaveLength(1);
    cache.release(first.table);
    expect(cache.allocate(1, ids(5, 40), 24)!.cachedTokens).toBe(0);
    expect(cache.freeTokens).toBe(0);
  });

  test('free blocks of the own prefix do not count twice', () => {
    const cache = create(24);
    leave(cache, 1, ids(17));
    // Two of the three blocks are reused, so one is left for new tokens.
    expect(cache.allocate(1, ids(17), 25)).toBeNull();
    expect(cache.freeTokens).toBe(24);
    expect(cache.allocate(1, ids(17), 24)!.cachedTokens).toBe(16);
  });

  test('content without users is evicted, the longest unused first and the end of a sequence before its start', () => {
    const cache = create(40);
    leave(cache, 1, ids(17)); // three blocks, then two
    leave(cache, 1, ids(10, 50));
    const other = cache.allocate(1, ids(9, 80), 9)!; // two blocks: the end of the first sequence
    expect(cache.allocate(1, ids(17), 17)!.cachedTokens).toBe(8);
    expect(other.cachedTokens).toBe(0);
  });

  test('an evicted block takes its followers out of reach', () => {
    const cache = create(32);
    const { table } = cache.allocate(1, ids(25), 25)!;
    cache.commit(table, ids(25), 25);
    cache.release(table);
    // Takes all, then the same prefix again with other followers: old followers must not be found under it.
    const all = cache.allocate(2, ids(25, 60), 32)!;
    cache.release(all.table);
    leave(cache, 1, ids(9));
    expect(cache.allocate(1, ids(25), 25)!.cachedTokens).toBe(8);
  });

  test('a cache below one block is refused', () => {
    expect(() => create(7)).toThrow(new ConfigError('cacheTokens: must be at least 8, got 7'));
  });
});

test('what is written at a place is read there, whatever the cut, with a stride of its own on either side', () => {
  const model = { layers: 2, kvHeads: 3, headSize: 2 };
  const cache = new KvCache(model, 80);
  const other = cache.allocate(1, ids(9, 40), 9)!.table; // So that blocks are not those of an empty cache.
  const { table } = cache.allocate(1, ids(30), 30)!;
  const pool = cache.values[1]!;
  /** [K, tokens, C], each value its own. */
  const rows = (tokens: number, first: number): Float32Array =>
    Float32Array.from({ length: 3 * tokens * 2 }, (_, i) => {
      const [head, token, channel] = [Math.floor(i / (tokens * 2)), Math.floor(i / 2) % tokens, i % 2];
      return 1000 * head + 10 * (first + token) + channel;
    });
  for (const [start, count] of [
    [0, 5],
    [5, 1],
    [6, 20],
    [26, 4],
  ] as const) {
    const data = Float32Array.of(...Array<number>(7).fill(-1), ...rows(count, start));
    cache.write(table, pool, start, count, { data, offset: 7, headStride: count * 2 });
  }
  cache.write(other, pool, 0, 9, { data: new Float32Array(54), offset: 0, headStride: 18 });
  for (const [start, count] of [
    [0, 30],
    [3, 1],
    [7, 2],
    [9, 21],
  ] as const) {
    const data = new Float32Array(3 * 64);
    cache.read(table, pool, start, count, { data, offset: 1, headStride: 64 });
    for (let head = 0; head < 3; head++) {
      const expected = rows(count, start).subarray(head * count * 2, (head + 1) * count * 2);
      expect(data.subarray(1 + head * 64, 1 + head * 64 + count * 2)).toEqual(expected);
    }
  }
  expect(cache.keys[1]!.every((value) => value === 0)).toBe(true);
  expect(cache.values[0]!.every((value) => value === 0)).toBe(true);
});

/** Where a token stands in the pools. */
const placeOf = (table: BlockTable, position: number): number =>
  table.blocks[Math.floor(position / BLOCK_TOKENS)]! * BLOCK_TOKENS + (position % BLOCK_TOKENS);

interface User {
  readonly policy: number;
  readonly tokenIds: number[];
  readonly total: number;
  readonly table: BlockTable;
  computed: number;
}

/** What the model would store in a row: depends on the policy and all tokens up to there. */
const content = (policy: number, tokenIds: readonly number[], position: number): string =>
  `${policy}|${tokenIds.slice(0, position + 1).join()}`;

const steps = fc.array(
  fc.record({
    kind: fc.constantFrom('join', 'join', 'compute', 'compute', 'release'),
    policy: fc.integer({ min: 1, max: 2 }),
    // Few different blocks, so that they are often equal, at the same place and at others.
    tokens: fc
      .tuple(
        fc.array(fc.integer({ min: 0, max: 1 }), { maxLength: 4 }),
        fc.array(fc.integer({ min: 0, max: 1 }), { minLength: 1, maxLength: 8 }),
      )
      .map(([blocks, tail]) => [...blocks.flatMap((token) => new Array<number>(BLOCK_TOKENS).fill(token)), ...tail]),
    more: fc.integer({ min: 0, max: 12 }),
    pick: fc.nat(),
  }),
  { maxLength: 60 },
);

test('any schedule: every user reads what it would have computed itself, and no room is lost', () => {
  fc.assert(
    fc.property(steps, (schedule) => {
      const cache = create(120);
      const pool = new Map<number, string>(); // what stands in each row
      const users: User[] = [];
      const compute = (user: User, until: number): void => {
        for (; user.computed < until; user.computed++) {
          const row = placeOf(user.table, user.computed);
          const sharers = users.filter((other) => other !== user && other.table.blocks.includes(Math.floor(row / 8)));
          expect(sharers, 'users of a block that is written').toEqual([]);
          pool.set(row, content(user.policy, user.tokenIds, user.computed));
        }
        cache.commit(user.table, user.tokenIds, user.computed);
      };
      for (const { kind, policy, tokens, more, pick } of schedule) {
        const user = users[pick % Math.max(1, users.length)];
        if (kind === 'join') {
          const total = tokens.length + more;
          const free = cache.freeTokens;
          const allocation = cache.allocate(policy, tokens, total);
          if (!allocation) {
            expect(cache.freeTokens).toBe(free);
            expect(total).toBeGreaterThan(free);
            continue;
          }
          const { table, cachedTokens } = allocation;
          expect(cachedTokens).toBeLessThan(tokens.length);
          expect(table.blocks).toHaveLength(Math.ceil(total / BLOCK_TOKENS));
          users.push({ policy, tokenIds: [...tokens], total, table, computed: cachedTokens });
        } else if (kind === 'compute' && user) {
          compute(user, Math.min(user.tokenIds.length, user.computed + 1 + more));
          if (user.computed === user.tokenIds.length && user.tokenIds.length < user.total) {
            user.tokenIds.push(pick % 2); // a sampled token
          }
        } else if (kind === 'release' && user) {
          cache.release(user.table);
          users.splice(users.indexOf(user), 1);
        }
        for (const { policy: owner, tokenIds, table, computed } of users) {
          for (let position = 0; position < computed; position++) {
            expect(pool.get(placeOf(table, position))).toBe(content(owner, tokenIds, position));
          }
        }
        const used = new Set(users.flatMap(({ table }) => table.blocks));
        expect(cache.freeTokens).toBe(120 - used.size * BLOCK_TOKENS);
      }
    }),
    { seed: 5, numRuns: 100 },
  );
});
