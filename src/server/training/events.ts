/**
 * What happens in the server, for those who follow it. Layer 5. A bounded ring holds the newest events for readers that come back.
 * Ids begin at the clock, so that they rise across restarts without a file; a clock that was set back makes readers see a `reset`.
 */
import type { NewEvent, ServerEvent } from '../../wire/events.ts';

/** Ids of one millisecond; a server publishes far fewer events. */
const idsPerMs = 1024;
const defaultCapacity = 4096;
/** Between two progress events of one job. */
const progressIntervalMs = 500;

export interface EventFilter {
  /** Null: events of all models. */
  readonly model: string | null;
}

export interface EventReplay {
  /** Those after the given id that the ring holds, oldest first. */
  readonly events: readonly ServerEvent[];
  /** Some after the given id are lost. */
  readonly isReset: boolean;
}

export interface EventHub {
  /** Gives the event its id and tells every listener; never throws. */
  readonly publish: (event: NewEvent) => void;
  /** What to send to a reader that has seen `lastId`; null = it begins now. */
  readonly replay: (lastId: number | null, filter: EventFilter) => EventReplay;
  /** Calls back for each event until the returned function is called. */
  readonly subscribe: (filter: EventFilter, listener: (event: ServerEvent) => void) => () => void;
  /** Events that the ring holds at most. */
  readonly capacity: number;
  /** The id that the next event has at least. */
  readonly nextId: () => number;
}

export interface EventHubOptions {
  /** Events kept; default 4096. */
  readonly capacity?: number;
  /** Milliseconds since 1970. */
  readonly now?: () => number;
}

export function createEventHub(options: EventHubOptions = {}): EventHub {
  const now = options.now ?? Date.now;
  const capacity = options.capacity ?? defaultCapacity;
  const firstId = now() * idsPerMs;
  const ring: ServerEvent[] = [];
  const listeners = new Set<(event: ServerEvent) => void>();
  const sentProgress = new Map<string, { state: string; atMs: number }>();
  let next = firstId;
  let lostUpTo = firstId - 1;

  /** Progress between two changes of state is passed on now and then; the state itself always. */
  const isDue = (event: NewEvent): boolean => {
    if (event.type !== 'job') return true;
    const { id, state } = event.data;
    const known = sentProgress.get(id);
    const atMs = now();
    if (known?.state === state && atMs - known.atMs < progressIntervalMs) return false;
    if (state === 'queued' || state === 'running') sentProgress.set(id, { state, atMs });
    else sentProgress.delete(id);
    return true;
  };
  return {
    publish: (event) => {
      if (!isDue(event)) return;
      const stored: ServerEvent = { id: next, time: new Date(now()).toISOString(), ...event };
      next += 1;
      ring.push(stored);
      if (ring.length > capacity) lostUpTo = ring.shift()!.id;
      for (const listener of listeners) listener(stored);
    },
    replay: (lastId, filter) => {
      if (lastId === null) return { events: [], isReset: false };
      const isReset = lastId < lostUpTo || lastId >= next;
      const from = isReset ? firstId : lastId + 1;
      return { events: ring.filter((event) => event.id >= from && matches(event, filter)), isReset };
    },
    subscribe: (filter, listener) => {
      const filtered = (event: ServerEvent): void => {
        if (matches(event, filter)) listener(event);
      };
      listeners.add(filtered);
      return () => void listeners.delete(filtered);
    },
    capacity,
    nextId: () => next,
  };
}

function matches(event: ServerEvent, { model }: EventFilter): boolean {
  return model === null || event.data.model === model;
}
