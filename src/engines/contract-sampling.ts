/** Engine contract: sampling. Layer 4. */
import { expect, test } from 'vitest';
import { collect, expectIdle, type Subject, sampleRequest } from './contract-subject.ts';

/** Registers the tests; call inside `describe`. `decode` is the text of ids, for stop strings. */
export function testSampling(subject: Subject, decode: (ids: readonly number[]) => string): void {
  test('events: tokens, then finish with reason, policy step and cached tokens', async () => {
    const step = await subject.newestStep();
    const { events, finish, tokenIds } = await subject.sample({}, { promptIds: subject.ids(30, 'events') });
    expect(events.map(({ type }) => type)).toEqual(['tokens', 'finish']);
    expect(tokenIds).toHaveLength(16);
    expect(tokenIds.every((id) => Number.isSafeInteger(id) && id >= 0 && id < subject.vocabSize)).toBe(true);
    expect(finish).toEqual({ type: 'finish', reason: 'length', policyStep: step, cachedTokens: 0 });
  });

  test('streaming gives the same tokens and logprobs in several events', async () => {
    for (const temperature of [0, 1]) {
      const whole = await subject.sample({ temperature });
      const streamed = await subject.sample({ temperature }, { isStreaming: true });
      expect(streamed.events.length).toBeGreaterThan(2);
      expect([streamed.tokenIds, streamed.logprobs]).toEqual([whole.tokenIds, whole.logprobs]);
      expect(streamed.finish.reason).toBe(whole.finish.reason);
    }
  });

  test('a seed gives the same tokens alone and among others; another seed gives others', async () => {
    const alone = await subject.sample({ seed: 5 });
    const crowd = [1, 2, 3, 5, 8].map((seed) =>
      subject.sample({ seed, temperature: seed === 2 ? 0 : 1 }, seed === 5 ? {} : { promptIds: subject.ids(seed * 7) }),
    );
    const among = (await Promise.all(crowd))[3]!;
    expect([among.tokenIds, among.logprobs]).toEqual([alone.tokenIds, alone.logprobs]);
    expect((await subject.sample({ seed: 6 })).tokenIds).not.toEqual(alone.tokenIds);
  });

  test('a stop token ends the sequence and stays part of it', async () => {
    const { tokenIds } = await subject.sample({});
    const stop = tokenIds[7]!;
    const stopped = await subject.sample({ stopTokenIds: [stop] });
    expect(stopped.tokenIds).toEqual(tokenIds.slice(0, tokenIds.indexOf(stop) + 1));
    expect(stopped.finish.reason).toBe('stop');
  });

  test('a stop string ends the sequence with the token that completes it', async () => {
    const { tokenIds } = await subject.sample({});
    // Two tokens that are whole characters, so that the text runs over the border between them.
    const pairs = tokenIds.slice(1).map((id, i) => decode([tokenIds[i]!]) + decode([id]));
    const stop = pairs.slice(2).find((text) => text.length >= 2 && !text.includes('\uFFFD'))!;
    const first = 1 + tokenIds.findIndex((_, i) => decode(tokenIds.slice(0, i + 1)).includes(stop));
    const stopped = await subject.sample({ stopStrings: [stop] });
    expect(stopped.tokenIds).toEqual(tokenIds.slice(0, first));
    expect(stopped.finish.reason).toBe('stop');
  });

  test('lengths: maxTokens, and what the context leaves', async () => {
    expect((await subject.sample({ maxTokens: 1 })).tokenIds).toHaveLength(1);
    const { maxPositions } = await subject.engine.doInfo();
    const promptIds = subject.ids(maxPositions - 3, 'long');
    const cut = await subject.sample({ maxTokens: 50 }, { promptIds });
    expect([cut.tokenIds.length, cut.finish.reason]).toEqual([3, 'length']);
  });

  test('alternatives: as many as asked for, best first, the greedy token on top', async () => {
    const { events, tokenIds, logprobs } = await subject.sample({ topLogprobs: 3, temperature: 0 });
    const lists = events.flatMap((event) => (event.type === 'tokens' ? (event.topLogprobs ?? []) : []));
    expect(lists).toHaveLength(tokenIds.length);
    for (const [i, list] of lists.entries()) {
      expect(list[0]).toEqual({ tokenId: tokenIds[i], logprob: logprobs[i] });
      expect(list.map(({ logprob }) => logprob)).toEqual(list.map(({ logprob }) => logprob).sort((a, b) => b - a));
      expect(new Set(list.map(({ tokenId }) => tokenId)).size).toBe(3);
    }
    const plain = (await subject.sample({})).events[0];
    expect(plain).not.toHaveProperty('topLogprobs');
  });

  test('logprobs of prompt tokens: one event before the tokens, bit for bit what doLogprobs gives', async () => {
    const promptIds = subject.ids(70, 'prompt logprobs');
    const policyStep = await subject.newestStep();
    for (const [temperature, promptLogprobs] of [
      [1, 0],
      [0.7, 2],
      [0, 20],
    ] as const) {
      const { events, tokenIds } = await subject.sample({ temperature }, { promptIds, promptLogprobs });
      expect(events.map(({ type }) => type)).toEqual(['prompt', 'tokens', 'finish']);
      const event = events[0]!;
      if (event.type !== 'prompt') throw new Error('the first event must be of the prompt');
      const source = { kind: 'served', policyStep } as const;
      const scored = await subject.engine.doLogprobs({ tokenIds: promptIds, temperature, source });
      expect(event.logprobs).toEqual([null, ...scored.slice(1)]);
      if (promptLogprobs === 0) expect(event).not.toHaveProperty('topLogprobs');
      for (const [i, list] of event.topLogprobs?.entries() ?? []) {
        expect(list?.length ?? 0).toBe(i === 0 ? 0 : promptLogprobs);
        const own = list?.find(({ tokenId }) => tokenId === promptIds[i]);
        if (own) expect(own.logprob).toBe(event.logprobs[i]);
        if (list) expect(list[0]!.logprob).toBeGreaterThanOrEqual(event.logprobs[i]!);
      }
      expect(tokenIds).toEqual((await subject.sample({ temperature }, { promptIds })).tokenIds);
    }
    const single = await subject.sample({}, { promptIds: [1], promptLogprobs: 3 });
    expect(single.events[0]).toEqual({ type: 'prompt', logprobs: [null], topLogprobs: [null] });
  });

  test('top-k and top-p restrict what is drawn, not the logprob that is recorded', async () => {
    const greedy = await subject.sample({ temperature: 0 });
    const oneLeft = [await subject.sample({ topK: 1 }), await subject.sample({ topP: 1e-6 })];
    for (const { tokenIds, logprobs } of oneLeft) {
      expect([tokenIds, logprobs]).toEqual([greedy.tokenIds, greedy.logprobs]);
      expect(Math.max(...logprobs)).toBeLessThan(0);
    }
  });

  test('an abort ends the iteration with AbortedError and leaves nothing running', async () => {
    const abort = new AbortController();
    const request = sampleRequest(
      { promptIds: subject.ids(9), isStreaming: true, signal: abort.signal },
      { maxTokens: 80 },
    );
    const run = async (): Promise<void> => {
      for await (const event of subject.engine.doSample(request)) if (event.type === 'tokens') abort.abort();
    };
    await expect(run()).rejects.toMatchObject({ code: 'aborted' });
    await expect(collect(subject.engine, request)).rejects.toMatchObject({ code: 'aborted' });
    await expectIdle(subject.engine);
  });

  test('leaving the loop early leaves nothing running', async () => {
    const request = sampleRequest({ promptIds: subject.ids(9), isStreaming: true }, { maxTokens: 80 });
    for await (const event of subject.engine.doSample(request)) if (event.type === 'tokens') break;
    await expectIdle(subject.engine);
  });
}
