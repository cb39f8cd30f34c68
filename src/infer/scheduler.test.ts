/** Scheduler, cache and model together on ONNX Runtime: nothing that is served beside a request may change its tokens or logprobs. */
import { beforeAll, describe, expect, test } from 'vitest';
import {
  adapterFeeds,
  createHarness,
  finish,
  type Harness,
  outcome,
  params,
  type Request,
  request,
  runAlone,
  shapings,
} from '../../test/scheduler-harness.ts';
import { randomIds, tinyConfig } from '../../test/tiny-model.ts';
import { ConfigError, DataError } from '../core/errors.ts';
import { createRng } from '../core/rng.ts';
import type { Sequence } from './sequence.ts';

let solo: Harness;
beforeAll(async () => {
  solo = await createHarness();
});

test('a request gives seeded tokens, their logprobs and a stop cause', async () => {
  const first = outcome(await runAlone(solo, request()));
  expect(first.tokenIds).toHaveLength(32);
  expect(first.tokenIds.slice(0, 20)).toEqual(request().promptIds);
  expect(first.logprobs).toHaveLength(12);
  expect(first.logprobs.every((logprob) => logprob < 0 && logprob === Math.fround(logprob))).toBe(true);
  expect(first.stopCause).toBe('length');
  expect(outcome(await runAlone(solo, request()))).toEqual(first);
  expect(outcome(await runAlone(solo, request({ seed: 2 })))).not.toEqual(first);
  expect(outcome(await runAlone(solo, request({}, 20, 2)))).not.toEqual(first);
});

test.each([
  ['grouped queries', tinyConfig()],
  ['one query head a kv head', tinyConfig({ heads: 2 })],
  ['head size 32', tinyConfig({ headSize: 32, kvHeads: 1 })],
])('cached decode and score() give the logprobs of sampling, bit for bit: %s', async (_name, config) => {
  const harness = await createHarness({ config });
  for (const [temperature, inverse] of [
    [1, 1],
    [0.7, 1 / 0.7],
    [0, 1],
  ] as const) {
    const { tokenIds, logprobs } = await runAlone(harness, request({ temperature, maxTokens: 80 }), config);
    const scored = await harness.scheduler.score(tokenIds, inverse, 1);
    expect(scored!.slice(20)).toEqual(logprobs);
    expect(scored![0]).toBe(0);
  }
  const scores = await Promise.all([1, 2].map((step) => harness.scheduler.score(randomIds(5, 64, 'a'), 1, step)));
  expect(scores[0]).not.toEqual(scores[1]);
});

test('greedy takes the most likely token, and reports alternatives of the same row', async () => {
  const sequence = await runAlone(solo, request({ temperature: 0, topLogprobs: 3 }));
  for (const [i, alternatives] of sequence.topLogprobs.entries()) {
    expect(alternatives).toHaveLength(3);
    expect(alternatives[0]).toEqual({ tokenId: sequence.tokenIds[20 + i], logprob: sequence.logprobs[i] });
    expect(alternatives[1]!.logprob).toBeLessThanOrEqual(alternatives[0]!.logprob);
  }
});

test.each([1, 2, 3, 4])('random schedule %i: joins and leaves at any step change nothing', async (trial) => {
  const rng = createRng('schedule', trial);
  // A small cache and few running ones, so that requests also wait; chunked prefill of whatever exceeds 24 tokens.
  const harness = await createHarness({ cacheTokens: 400, maxRunning: 6, maxPrefillTokens: 24 });
  const requests = Array.from({ length: 24 }, (_, i): Request => {
    const length = 1 + rng.integer(60);
    const shared = randomIds(60, 64, 'shared', rng.integer(2));
    const own = randomIds(60, 64, trial, i);
    const common = rng.integer(length);
    return {
      promptIds: [...shared.slice(0, common), ...own.slice(0, length - common)],
      step: 1 + rng.integer(2),
      params: {
        ...params,
        maxTokens: 1 + rng.integer(25),
        temperature: [0, 0.6, 1, 1.4][rng.integer(4)]!,
        topK: [0, 5][rng.integer(2)]!,
        topP: [1, 0.8][rng.integer(2)]!,
        seed: rng.uint32(),
        stopTokenIds: [rng.integer(64)],
        stopStrings: rng.integer(3) === 0 ? ['B', 'CD'] : [],
        ...shapings[rng.integer(shapings.length)],
      },
    };
  });
  const sequences: Sequence[] = [];
  const aborted = new Set<Sequence>();
  let isBusy = true;
  while (isBusy || sequences.length < requests.length) {
    for (let joins = rng.integer(4); joins > 0 && sequences.length < requests.length; joins--) {
      sequences.push(harness.start(requests[sequences.length]!));
    }
    const victim = sequences[rng.integer(sequences.length * 12 + 1)];
    if (victim && victim.stopCause === null) {
      harness.scheduler.abort(victim.id);
      aborted.add(victim);
    }
    isBusy = await harness.scheduler.step(() => undefined);
  }
  expect(harness.cache.freeTokens).toBe(harness.cache.capacityTokens);
  expect(sequences.filter((sequence) => sequence.cachedTokens > 0).length).toBeGreaterThan(2);
  expect(aborted.size).toBeLessThan(12);
  for (const [i, one] of requests.entries()) {
    const alone = await runAlone(solo, one);
    if (!aborted.has(sequences[i]!)) expect(outcome(sequences[i]!), `request ${i}`).toEqual(outcome(alone));
    else {
      // What came before the abort was right as well.
      const { tokenIds, logprobs } = sequences[i]!;
      expect(tokenIds).toEqual(alone.tokenIds.slice(0, tokenIds.length));
      expect(logprobs).toEqual(alone.logprobs.slice(0, logprobs.length));
    }
  }
});

test('beyond the first block of keys: shared, own and no heads in one pass, with the bits of each alone and of score()', async () => {
  // Head size 128 sums over keys in blocks of 128.
  const config = tinyConfig({ headSize: 128, kvHeads: 1, heads: 2, maxPositions: 420 });
  const harness = await createHarness({ config, cacheTokens: 6000, maxPrefillTokens: 512 });
  const prompt = (shared: string, common: number, own: number, i: number): number[] => [
    ...randomIds(common, 64, shared),
    ...randomIds(own, 64, 'own', i),
  ];
  const requests = [
    ...[0, 1, 2].map((i) => prompt('a', 150, 3, i)),
    ...[3, 4].map((i) => prompt('b', 300, 5, i)),
    prompt('c', 0, 7, 5), // crosses into its second block on its own
    prompt('a', 140, 120, 6), // the head of the first three, and another block after it
    prompt('d', 0, 100, 7),
  ].map(
    (promptIds, i): Request => ({ promptIds, step: 1, params: { ...params, maxTokens: i === 5 ? 130 : 40, seed: i } }),
  );
  const sequences = requests.map(harness.start);
  await finish(harness);
  for (const [i, sequence] of sequences.entries()) {
    const scored = await harness.scheduler.score(sequence.tokenIds, 1, 1);
    expect(scored!.slice(sequence.promptLength), `request ${i}`).toEqual(sequence.logprobs);
  }
  for (const [i, one] of requests.entries()) {
    expect(outcome(await runAlone(harness, one, config)), `request ${i}`).toEqual(outcome(sequences[i]!));
  }
});

test('a prompt in chunks gives what one pass gives, and as many passes as chunks', async () => {
  const one = request({ maxTokens: 3 }, 100);
  const whole = await runAlone(solo, one);
  for (const [maxPrefillTokens, passes] of [
    [100, 3],
    [40, 5],
    [33, 6], // 33 + 33 + 33 and a last token, which is a decode pass
  ] as const) {
    const harness = await createHarness({ maxPrefillTokens });
    const sequence = harness.start(one);
    let count = 0;
    while (await harness.scheduler.step(() => undefined)) count++;
    expect(count).toBe(passes);
    expect(outcome(sequence)).toEqual(outcome(whole));
  }
});

describe('the cache', () => {
  test('finds what the same policy computed before, and counts it', async () => {
    const harness = await createHarness();
    const first = harness.start(request());
    await finish(harness);
    const again = harness.start(request());
    const other = harness.start(request({}, 20, 2));
    await finish(harness);
    expect([first.cachedTokens, again.cachedTokens, other.cachedTokens]).toEqual([0, 16, 0]);
    expect(outcome(again)).toEqual(outcome(first));
    expect(outcome(other)).toEqual(outcome(await runAlone(solo, request({}, 20, 2))));
    expect(harness.scheduler.counters).toMatchObject({ sampledTokens: 36, prefilledTokens: 20 + 4 + 20 });
  });

  test('serves the next turn of a conversation from what was sampled', async () => {
    const harness = await createHarness();
    const first = harness.start(request());
    await finish(harness);
    const nextTurn: Request = {
      promptIds: [...first.tokenIds, 7, 8, 9],
      step: 1,
      params: { ...params, temperature: 0 },
    };
    const next = harness.start(nextTurn);
    await finish(harness);
    // 31 tokens are computed, since the last sampled one is never read: three blocks of eight.
    expect(next.cachedTokens).toBe(24);
    expect(outcome(next)).toEqual(outcome(await runAlone(solo, nextTurn)));
  });

  test('of a step is not reused when the step is published again with other weights', async () => {
    const harness = await createHarness();
    const before = harness.start(request());
    await finish(harness);
    harness.scheduler.publish(1, adapterFeeds(tinyConfig(), 2), 2);
    const after = harness.start(request());
    await finish(harness);
    expect(after.cachedTokens).toBe(0);
    expect(outcome(after)).not.toEqual(outcome(before));
    expect(outcome(after)).toEqual(outcome(await runAlone(solo, request({}, 20, 2))));
  });

  test('a sequence under way keeps the weights it began with', async () => {
    const harness = await createHarness();
    const sequence = harness.start(request());
    for (let i = 0; i < 4; i++) await harness.scheduler.step(() => undefined);
    harness.scheduler.publish(1, adapterFeeds(tinyConfig(), 3), 2);
    harness.scheduler.publish(9, adapterFeeds(tinyConfig(), 3), 1);
    expect(harness.scheduler.policySteps).toEqual([9]);
    await finish(harness);
    expect(outcome(sequence)).toEqual(outcome(await runAlone(solo, request())));
  });
});

describe('a group', () => {
  const config = tinyConfig({ maxPositions: 700 });
  const promptIds = randomIds(512, 64, 'group');
  const members = Array.from(
    { length: 8 },
    (_, seed): Request => ({ promptIds, step: 1, params: { ...params, seed } }),
  );

  test('of 8 that arrive together computes its prompt once, with the tokens of each alone', async () => {
    const harness = await createHarness({ config, cacheTokens: 8000 });
    const other = harness.start({ ...members[0]!, promptIds: randomIds(300, 64, 'other') });
    const sequences = members.map(harness.start);
    await finish(harness);
    expect(harness.scheduler.counters).toMatchObject({ sampledTokens: 9 * 12, prefilledTokens: 512 + 300 });
    expect(sequences.map(({ cachedTokens }) => cachedTokens)).toEqual([0, ...Array(7).fill(511)]);
    expect(new Set(sequences.map(({ tokenIds }) => tokenIds.slice(512).join())).size).toBe(8);
    for (const [i, member] of members.entries()) {
      expect(outcome(await runAlone(harness, member, config))).toEqual(outcome(sequences[i]!));
    }
    expect(other.stopCause).toBe('length');
  });

  test('goes on when the one that computes for all is aborted, or ends at once', async () => {
    const harness = await createHarness({ config, cacheTokens: 8000, maxPrefillTokens: 200 });
    const [first, ...others] = members.map(harness.start);
    await harness.scheduler.step(() => undefined);
    expect([harness.scheduler.runningCount, harness.scheduler.waitingCount]).toEqual([1, 7]);
    harness.scheduler.abort(first!.id);
    await finish(harness);
    const short = harness.start({ ...members[0]!, step: 2, params: { ...params, maxTokens: 1 } });
    const late = harness.start({ ...members[1]!, step: 2 });
    await finish(harness);
    expect([short.logprobs.length, late.cachedTokens]).toEqual([1, 504]);
    for (const [i, sequence] of [...others, late].entries()) {
      const member = sequence === late ? { ...members[1]!, step: 2 } : members[i + 1]!;
      expect(outcome(await runAlone(harness, member, config))).toEqual(outcome(sequence));
    }
    expect(harness.cache.freeTokens).toBe(harness.cache.capacityTokens);
  });
});

describe('aborts', () => {
  test.each([0, 1, 2, 5])('after %i passes free all blocks', async (passes) => {
    const harness = await createHarness({ maxRunning: 2, maxPrefillTokens: 16 });
    const sequences = [request(), request({}, 40), request({}, 9)].map(harness.start);
    for (let i = 0; i < passes; i++) await harness.scheduler.step(() => undefined);
    for (const { id } of sequences) harness.scheduler.abort(id);
    expect(await harness.scheduler.step(() => undefined)).toBe(false);
    expect(harness.cache.freeTokens).toBe(harness.cache.capacityTokens);
    expect([harness.scheduler.runningCount, harness.scheduler.waitingCount]).toEqual([0, 0]);
  });

  test('during a pass take effect after it, and an unknown id does nothing', async () => {
    const harness = await createHarness();
    const [kept, dropped] = [harness.start(request()), harness.start(request({}, 20, 1, 'other'))];
    const pass = harness.scheduler.step(() => undefined);
    harness.scheduler.abort(dropped.id);
    harness.scheduler.abort(12345);
    await pass;
    await finish(harness);
    expect(dropped.logprobs).toHaveLength(1);
    expect(outcome(kept)).toEqual(outcome(await runAlone(solo, request())));
    expect(harness.cache.freeTokens).toBe(harness.cache.capacityTokens);
  });
});

describe('limits', () => {
  test('a sequence that could never fit is refused, one that does not fit now waits', async () => {
    const harness = await createHarness({ cacheTokens: 64 });
    const tooLong = request({ maxTokens: 50 });
    expect(() => harness.start(tooLong)).toThrow(DataError);
    expect(() => harness.start(tooLong)).toThrow(
      'sequence: prompt and maxTokens must fit into the KV cache of 64 tokens, got 69',
    );
    const sequences = [1, 2, 3].map((seed) => harness.start(request({ seed }, 20, 1, `waits ${seed}`)));
    await harness.scheduler.step(() => undefined);
    expect([harness.scheduler.runningCount, harness.scheduler.waitingCount]).toEqual([2, 1]);
    expect(await harness.scheduler.score(randomIds(9, 64, 'x'), 1, 1)).toBeNull();
    await finish(harness);
    expect(sequences.map(({ logprobs }) => logprobs.length)).toEqual([12, 12, 12]);
    expect(await harness.scheduler.score(randomIds(9, 64, 'x'), 1, 1)).toHaveLength(9);
  });

  test('score gives its room back, even when the model fails', async () => {
    const harness = await createHarness();
    await harness.scheduler.score(randomIds(9, 64, 'x'), 1, 1);
    harness.scheduler.publish(5, {}, 3);
    await expect(harness.scheduler.score([1, 2], 1, 5)).rejects.toThrow('feeds: every input must be fed');
    expect(harness.cache.freeTokens).toBe(harness.cache.capacityTokens);
    await expect(harness.scheduler.score(new Array(2001).fill(1), 1, 1)).rejects.toThrow(
      'score: must fit into the KV cache of 2000 tokens, got 2001',
    );
    await expect(harness.scheduler.score([1, 2], 1, 7)).rejects.toThrow(ConfigError);
  });

  test('ids without a token are never sampled', async () => {
    const harness = await createHarness({ vocabSize: 3 });
    const sequence = harness.start(request({ maxTokens: 60, temperature: 2 }));
    await finish(harness);
    expect([...new Set(sequence.tokenIds.slice(20))].sort()).toEqual([0, 1, 2]);
  });

  test('unknown steps are refused, the newest are kept', async () => {
    const { scheduler } = await createHarness();
    expect(() => scheduler.policy(3)).toThrow(
      new ConfigError('policy step: must be one of those served (1, 2), got 3'),
    );
    scheduler.publish(3, adapterFeeds(tinyConfig(), 3), 2);
    expect(scheduler.policySteps).toEqual([2, 3]);
  });
});
