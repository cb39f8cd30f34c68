/** The state that a program keeps with a model's run, as the training API tells it. Layer 0. */
import * as z from 'zod';
import { defineRoute } from './route.ts';

/** Largest state, as JSON text. */
export const maxStateBytes = 2 ** 20;

/** A JSON object of the user's own. */
export const runState = z.record(z.string(), z.unknown());
export type RunState = z.infer<typeof runState>;

export const stateRoutes = {
  readState: defineRoute({
    method: 'get',
    path: '/api/models/{name}/state',
    tag: 'Data',
    summary: "What programs keep with the model's run",
    scope: 'train',
    responses: { 200: { description: 'The state; {} where none was written.', schema: runState } },
    errors: [404],
  }),
  mergeState: defineRoute({
    method: 'post',
    path: '/api/models/{name}/state',
    tag: 'Data',
    summary: 'Merge an object into the state',
    details:
      'Objects are merged at every depth; everything else, arrays and null too, takes the place of what was there. Merges that come at ' +
      'the same time are done one after another. The state may have 1 MiB.',
    scope: 'train',
    body: runState,
    maxBodyBytes: maxStateBytes,
    responses: { 200: { description: 'The state after it.', schema: runState } },
    errors: [404, 413],
  }),
  overwriteState: defineRoute({
    method: 'put',
    path: '/api/models/{name}/state',
    tag: 'Data',
    summary: 'Replace the state',
    scope: 'train',
    body: runState,
    maxBodyBytes: maxStateBytes,
    responses: { 200: { description: 'The state after it.', schema: runState } },
    errors: [404, 413],
  }),
} as const;
