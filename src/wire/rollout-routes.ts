/** Rollouts that the server collects, as a table for `/openapi.json`. Layer 0. */
import * as z from 'zod';
import {
  capturedRollout,
  rewardRequest,
  rolloutDetail,
  rolloutList,
  rolloutQuery,
  rolloutSummary,
} from './rollouts.ts';
import { defineRoute } from './route.ts';

/** Of the first model that the rollout called; `models` has it for each. */
export const endedRollout = rolloutSummary.extend({ models: z.array(z.string()) });

export const collectedRollout = rolloutDetail.extend({
  models: z.array(rolloutDetail.pick({ model: true, histories: true })),
});

export const rolloutRoutes = {
  rewardRollout: defineRoute({
    method: 'post',
    path: '/api/rollouts/{id}/reward',
    tag: 'Rollouts',
    summary: 'End a rollout with its reward',
    details:
      'All calls with the header x-art-rollout, or below /rollouts/{id}/v1, belong to the rollout. A train call names it, or the group.',
    scope: 'train',
    body: rewardRequest,
    responses: { 200: { description: 'The rollout as it ended.', schema: endedRollout } },
    errors: [404, 409],
  }),
  captureRollout: defineRoute({
    method: 'post',
    path: '/api/rollouts/{id}/capture',
    tag: 'Rollouts',
    summary: 'End a rollout and take its turns',
    details:
      'The client scores the rollout and trains its turns as trajectories of its own. It takes no more calls and no reward. Again it gives the same.',
    scope: 'train',
    responses: { 200: { description: 'The turns, by model and history.', schema: capturedRollout } },
    errors: [404, 409],
  }),
  getRollout: defineRoute({
    method: 'get',
    path: '/api/rollouts/{id}',
    tag: 'Rollouts',
    summary: 'One rollout with its turns',
    scope: 'train',
    responses: { 200: { description: 'The rollout.', schema: collectedRollout } },
    errors: [404],
  }),
  listRollouts: defineRoute({
    method: 'get',
    path: '/api/rollouts',
    tag: 'Rollouts',
    summary: 'Rollouts, newest first',
    scope: 'train',
    query: rolloutQuery,
    responses: { 200: { description: 'At most limit, 100 if not said.', schema: rolloutList } },
  }),
} as const;
