import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { type SentEvent, TestApi } from '../../../test/server/test-api.ts';
import type { NewEvent, ServerEvent } from '../../wire/events.ts';
import { createEventHub, type EventHub } from './events.ts';

const registered = (model: string, step = 0): NewEvent => ({
  type: 'model.registered',
  data: { model, project: 'p', step },
});
const steps = (events: readonly ServerEvent[]): unknown[] =>
  events.map(({ data }) => ('step' in data ? data.step : null));

describe('the hub', () => {
  const everything = { model: null };
  let now = 1_000;
  const open = (capacity: number): EventHub => createEventHub({ capacity, now: () => now });

  test('ids rise, also across restarts', () => {
    const ids: number[] = [];
    for (let life = 0; life < 3; life++) {
      const hub = open(4);
      hub.subscribe(everything, ({ id }) => ids.push(id));
      for (let index = 0; index < 10; index++) hub.publish(registered('m'));
      now += 1;
    }
    expect(ids).toHaveLength(30);
    expect(ids).toEqual([...new Set(ids)].sort((a, b) => a - b));
  });

  test('who comes back gets what it missed; of what the ring lost it is told', () => {
    const hub = open(3);
    const ids: number[] = [];
    hub.subscribe(everything, ({ id }) => ids.push(id));
    for (let step = 0; step < 5; step++) hub.publish(registered('m', step));
    const replay = (lastId: number | null) => hub.replay(lastId, everything);
    expect(replay(null)).toEqual({ events: [], isReset: false });
    expect(replay(ids[4]!)).toEqual({ events: [], isReset: false });
    expect(steps(replay(ids[2]!).events)).toEqual([3, 4]);
    expect(replay(ids[1]!)).toMatchObject({ isReset: false });
    expect(steps(replay(ids[1]!).events)).toEqual([2, 3, 4]);
    expect(replay(ids[0]!)).toMatchObject({ isReset: true });
    expect(steps(replay(ids[0]!).events)).toEqual([2, 3, 4]);
    // An id that was never given: of a server whose clock was ahead.
    expect(replay(ids[4]! + 1)).toMatchObject({ isReset: true });
  });

  test('an id of an earlier life is behind a gap', () => {
    const before = open(3).nextId();
    now += 1;
    const hub = open(3);
    hub.publish(registered('m'));
    expect(hub.replay(before, everything)).toMatchObject({ isReset: true, events: [{ type: 'model.registered' }] });
  });

  test('a filter passes one model', () => {
    const hub = open(10);
    const seen: string[] = [];
    hub.subscribe({ model: 'a' }, ({ data }) => seen.push(String(data.model)));
    for (const model of ['a', 'b', 'a']) hub.publish(registered(model));
    expect(seen).toEqual(['a', 'a']);
  });

  test('progress of a job is passed on twice a second, its states always', () => {
    const hub = open(100);
    const seen: unknown[] = [];
    hub.subscribe(everything, ({ data }) =>
      seen.push('idempotency_key' in data ? [data.state, data.progress?.done] : null),
    );
    const publish = (state: 'running' | 'done', done: number): void => {
      const progress = { stage: 'train' as const, done, total: 9 };
      const times = { created_at: null, started_at: null, finished_at: null };
      const job = {
        id: 'j',
        kind: 'train' as const,
        model: 'm',
        idempotency_key: 'k',
        result: null,
        error: null,
        ...times,
      };
      hub.publish({ type: 'job', data: { ...job, state, progress } });
    };
    for (let done = 0; done < 8; done++) {
      publish('running', done);
      now += 200;
    }
    publish('done', 9);
    expect(seen).toEqual([
      ['running', 0],
      ['running', 3],
      ['running', 6],
      ['done', 9],
    ]);
  });
});

describe('over HTTP', () => {
  let api: TestApi;
  beforeEach(async () => {
    api = await TestApi.open();
  });
  afterEach(() => api.close());

  const follow = (path: string, headers: Record<string, string> = {}): Promise<Response> =>
    api.request('GET', path, undefined, headers);
  const until =
    (type: string) =>
    (events: readonly SentEvent[]): boolean =>
      events.some(({ event }) => event === type);
  const read = (response: Response, isLast: (events: readonly SentEvent[]) => boolean): Promise<SentEvent[]> =>
    api.readEvents(response, 'GET', '/api/events', isLast);

  test('a step of training is seen as it happens, and missed events come after the last one that was seen', async () => {
    const response = await follow('/api/events?model=agent');
    const reading = read(response, until('checkpoint.committed'));
    await api.train('a');
    const events = await reading;
    const types = new Set(events.map(({ event }) => event));
    expect(types).toEqual(new Set(['job', 'step.trained', 'checkpoint.committed']));
    const ids = events.map(({ id }) => Number(id));
    expect(ids).toEqual([...ids].sort((a, b) => a - b));
    const missed = await read(
      await follow('/api/events', { 'last-event-id': String(ids[0]) }),
      (again) => again.length >= events.length - 1,
    );
    expect(missed.slice(0, events.length - 1)).toEqual(events.slice(1));
    // For clients that cannot set a header.
    const fromQuery = await read(await follow(`/api/events?last_event_id=${ids[0]}`), (again) => again.length > 0);
    expect(fromQuery[0]).toEqual(events[1]);
  });

  test('after a restart a reader is told of the gap, and ids go on rising', async () => {
    const reading = read(await follow('/api/events'), until('step.trained'));
    await api.train('a');
    const last = Number((await reading).at(-1)?.id);
    await api.restart();
    const events = await read(
      await follow('/api/events', { 'last-event-id': String(last) }),
      until('model.registered'),
    );
    expect(events[0]).toMatchObject({ event: 'reset', data: { last_event_id: last } });
    const ids = events.map(({ id }) => Number(id));
    expect(Math.min(...ids)).toBeGreaterThan(last);
    expect(events[0]?.data.next_event_id).toBe(ids[1]);
  });

  test('an id that is none is refused', async () => {
    expect((await follow('/api/events', { 'last-event-id': 'x' })).status).toBe(400);
    expect((await follow('/api/events?last_event_id=-1')).status).toBe(400);
  });

  test('a reader that does not keep up is cut off, and others go on', async () => {
    const slow = (await follow('/api/events')).body!.getReader();
    const quick = read(await follow('/api/events'), (events) => events.length >= 6_000);
    for (let step = 0; step < 6_000; step++) {
      api.registry.events.publish(registered('agent', step));
      if (step % 100 === 0) await new Promise((resolve) => setImmediate(resolve));
    }
    expect((await quick).length).toBeGreaterThanOrEqual(6_000);
    let chunks = 0;
    await expect(async () => {
      for (;;) {
        const { done } = await slow.read();
        if (done) return;
        chunks += 1;
      }
    }).rejects.toThrow(/did not keep up/);
    expect(chunks).toBeLessThan(6_000);
  });
});
