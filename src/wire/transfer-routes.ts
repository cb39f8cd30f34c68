/** Routes that copy checkpoints elsewhere and back: part of the table of the training API. Layer 0. */
import { startQuery } from './data.ts';
import { errorBody } from './errors.ts';
import { defineRoute, type RouteResponse } from './route.ts';
import { pullRequest, pushRequest, transferJob, transferProgress, transferResult } from './transfers.ts';

const transferResponses: Readonly<Record<number, RouteResponse>> = {
  200: {
    description: 'Any number of progress events, then one result or one error. The header x-art-job-id names the job.',
    contentType: 'text/event-stream',
    events: { progress: transferProgress, result: transferResult, error: errorBody },
  },
  202: { description: 'With wait=false: the job, which goes on.', schema: transferJob },
};

export const transferRoutes = {
  pushCheckpoint: defineRoute({
    method: 'post',
    path: '/api/models/{name}/push',
    tag: 'Checkpoints',
    summary: 'Copy a checkpoint to S3-compatible storage or the Hugging Face hub',
    details:
      'Endpoint and credentials are those of the environment of the server. Files that are there already with the same bytes are skipped, ' +
      'every file is checked by its SHA-256, and the manifest comes last. Sent again while it runs, it joins that job.',
    scope: 'admin',
    query: startQuery,
    body: pushRequest,
    responses: transferResponses,
    errors: [404, 409],
  }),
  pullCheckpoint: defineRoute({
    method: 'post',
    path: '/api/models/{name}/pull',
    tag: 'Checkpoints',
    summary: 'Fetch a checkpoint that was pushed',
    details:
      'A model that is not here yet begins with it, and is then registered; one that is registered gets the checkpoint beside its own, ' +
      'and serves it if it is the newest. Under another name it is a fork.',
    scope: 'admin',
    query: startQuery,
    body: pullRequest,
    responses: transferResponses,
    errors: [404, 409],
  }),
} as const;
