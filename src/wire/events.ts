/**
 * The event stream of the training API, `GET /api/events`: what happened, as server-sent events whose data is one of these. Layer 0.
 * Ids rise, also across restarts of the server. A reader that comes back with `Last-Event-ID` gets what it missed, or `reset` first.
 */
import * as z from 'zod';
import { anyJob } from './transfers.ts';

/** `restarting`: requests wait a limited time; `failed`: it died too often in a row, and is not started again. */
export const engineStates = ['running', 'restarting', 'failed'] as const;

const model = z.string();
const step = z.int();
const metrics = z.record(z.string(), z.number());

/** What happened, by type. */
export const eventData = {
  /** A model was registered or opened again. */
  'model.registered': z.object({ model, project: z.string(), step }),
  'model.deleted': z.object({ model, trash_id: z.string() }),
  /** A policy step is trained, proven and served. */
  'step.trained': z.object({ model, step, parent_step: step, split: z.string(), metrics }),
  'checkpoint.committed': z.object({ model, step, bytes: z.int() }),
  'checkpoint.deleted': z.object({ model, steps: z.array(step), reason: z.string() }),
  'checkpoint.restored': z.object({ model, steps: z.array(step) }),
  /** Another step than the newest is served from here on. */
  'model.rolled_back': z.object({ model, from_step: step, step }),
  /** State or progress of a job; progress at most twice a second. */
  job: anyJob,
  /** The engine of a model came up, went down or is restarted. */
  'engine.state': z.object({ model, state: z.enum(engineStates), reason: z.string().nullable() }),
  'rollout.finished': z.object({ model, rollout_id: z.string(), reward: z.number() }),
} as const;

export type EventType = keyof typeof eventData;
export type EventData<T extends EventType> = z.infer<(typeof eventData)[T]>;

/** An event before it has an id. */
export type NewEvent = { [T in EventType]: { readonly type: T; readonly data: EventData<T> } }[EventType];

/** `id` is also the id of the server-sent event, `type` its name. */
export const serverEvent = z.object({
  id: z.int(),
  type: z.enum(Object.keys(eventData) as [EventType, ...EventType[]]),
  time: z.iso.datetime(),
  data: z.union(Object.values(eventData)),
});
export type ServerEvent = { readonly id: number; readonly time: string } & NewEvent;

/** The event `reset`: events after `last_event_id` are lost; read the state anew, then go on with `next_event_id`. */
export const resetEvent = z.object({ last_event_id: z.int(), next_event_id: z.int() });
