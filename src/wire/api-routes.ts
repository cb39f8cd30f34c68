/** The training API as a table: what `/openapi.json` describes, what `server/` handles, and which scope each route needs. Layer 0. */
import * as z from 'zod';
import {
  checkpointInfo,
  checkpointList,
  deletedModel,
  removedCheckpoints,
  retention,
  rollbackRequest,
  trashItem,
  trashList,
} from './checkpoints.ts';
import {
  checkpointsQuery,
  confirmationQuery,
  eventsQuery,
  health,
  historyQuery,
  jobsQuery,
  metricNames,
  metricSeries,
  metricsQuery,
  startQuery,
  trajectoriesQuery,
  trajectoryFiles,
  trajectoryLine,
} from './data.ts';
import { errorBody } from './errors.ts';
import { eventData, resetEvent } from './events.ts';
import { job, jobList } from './jobs.ts';
import { defineRoute, type RouteResponse } from './route.ts';
import { sftRequest } from './sft.ts';
import {
  historyResponse,
  logRequest,
  logResponse,
  modelInfo,
  modelList,
  registerRequest,
  registrationPending,
  trainProgress,
  trainRequest,
  trainResult,
} from './training.ts';

/** Conversations cross as text; a large batch of long ones. */
const maxDataBytes = 256 * 2 ** 20;

const sse = 'text/event-stream';

const trainingResponses: Readonly<Record<number, RouteResponse>> = {
  200: {
    description: 'Any number of progress events, then one result or one error. The header x-art-job-id names the job.',
    contentType: sse,
    events: { progress: trainProgress, result: trainResult, error: errorBody },
  },
  202: { description: 'With wait=false: the job, which goes on.', schema: job },
};

export const apiRoutes = {
  registerModel: defineRoute({
    method: 'post',
    path: '/api/models',
    tag: 'Models',
    summary: 'Register a model',
    details:
      'Idempotent: a model that is registered already is answered as it is; one that was registered otherwise is refused. ' +
      'A registration that downloads is answered 202 and goes on; sent again, it is waited for.',
    scope: 'train',
    body: registerRequest,
    responses: {
      200: { description: 'It is open and served.', schema: modelInfo },
      202: { description: 'It is still being opened.', schema: registrationPending },
    },
  }),
  listModels: defineRoute({
    method: 'get',
    path: '/api/models',
    tag: 'Models',
    summary: 'All registered models',
    scope: 'infer',
    responses: { 200: { description: 'In the order of registration.', schema: modelList } },
  }),
  getModel: defineRoute({
    method: 'get',
    path: '/api/models/{name}',
    tag: 'Models',
    summary: 'One model: its step, sizes and engine',
    scope: 'infer',
    responses: { 200: { description: 'The model.', schema: modelInfo } },
    errors: [404],
  }),
  deleteModel: defineRoute({
    method: 'delete',
    path: '/api/models/{name}',
    tag: 'Models',
    summary: 'Stop a model and move its run to the trash',
    details:
      'Everything that the run has goes: checkpoints, history, trajectories. It can be restored until it is purged.',
    scope: 'admin',
    query: confirmationQuery,
    isConfirmed: true,
    responses: { 200: { description: 'Where it went.', schema: deletedModel } },
    errors: [404],
  }),
  train: defineRoute({
    method: 'post',
    path: '/api/models/{name}/train',
    tag: 'Training',
    summary: 'Train one step by reward',
    details:
      'A step is: update, publish, prove, commit the checkpoint, append to the history. The idempotency key trains once, however often ' +
      'it is sent, also at the same time and after a restart; with another body it is refused (409). A full queue answers 429.',
    scope: 'train',
    query: startQuery,
    body: trainRequest,
    maxBodyBytes: maxDataBytes,
    responses: trainingResponses,
    errors: [404, 409, 429],
  }),
  sft: defineRoute({
    method: 'post',
    path: '/api/models/{name}/sft',
    tag: 'Training',
    summary: 'Train on conversations (supervised fine-tuning)',
    details:
      'Learns the assistant turns of the conversations, all or the last of each, with the same adapter, optimizer state and step ' +
      'counter as training by reward. One policy step at the end, or one every checkpoint_every updates. Idempotent as train is.',
    scope: 'train',
    query: startQuery,
    body: sftRequest,
    maxBodyBytes: maxDataBytes,
    responses: trainingResponses,
    errors: [404, 409, 429],
  }),
  log: defineRoute({
    method: 'post',
    path: '/api/models/{name}/log',
    tag: 'Training',
    summary: 'Log trajectories and metrics of a split, e.g. an evaluation',
    scope: 'train',
    body: logRequest,
    maxBodyBytes: maxDataBytes,
    responses: { 200: { description: 'The step they were logged for.', schema: logResponse } },
    errors: [404],
  }),
  listJobs: defineRoute({
    method: 'get',
    path: '/api/jobs',
    tag: 'Jobs',
    summary: 'Jobs of all models, oldest first',
    details:
      'Jobs that trained are there for ever; of those that failed or were cancelled, the newest since the server started.',
    scope: 'train',
    query: jobsQuery,
    responses: { 200: { description: 'The jobs.', schema: jobList } },
  }),
  getJob: defineRoute({
    method: 'get',
    path: '/api/jobs/{id}',
    tag: 'Jobs',
    summary: 'One job: state, progress, result or error',
    scope: 'train',
    responses: { 200: { description: 'The job.', schema: job } },
    errors: [404],
  }),
  followJob: defineRoute({
    method: 'get',
    path: '/api/jobs/{id}/events',
    tag: 'Jobs',
    summary: 'Follow a job to its end',
    scope: 'train',
    responses: {
      200: {
        description: 'The job as it is, then progress as it comes, then the job as it ended.',
        contentType: sse,
        events: { job, progress: trainProgress },
      },
    },
    errors: [404],
  }),
  cancelJob: defineRoute({
    method: 'post',
    path: '/api/jobs/{id}/cancel',
    tag: 'Jobs',
    summary: 'Stop a job between two engine calls and undo its step',
    details: 'A job that has ended stays as it is. Steps that an sft job has committed already stay too.',
    scope: 'train',
    responses: { 202: { description: 'The job; it ends soon.', schema: job } },
    errors: [404, 409],
  }),
  history: defineRoute({
    method: 'get',
    path: '/api/models/{name}/history',
    tag: 'Data',
    summary: 'Rows of metrics, oldest first',
    scope: 'train',
    query: historyQuery,
    responses: {
      200: { description: 'At most 10,000 rows; next_offset is where the next page begins.', schema: historyResponse },
    },
    errors: [404],
  }),
  metrics: defineRoute({
    method: 'get',
    path: '/api/models/{name}/metrics',
    tag: 'Data',
    summary: 'One metric over the steps',
    details: 'Metrics of the history, and those that a clock measured (time/…, throughput/…, engine/…).',
    scope: 'train',
    query: metricsQuery,
    responses: { 200: { description: 'The series.', schema: metricSeries } },
    errors: [404],
  }),
  metricNames: defineRoute({
    method: 'get',
    path: '/api/models/{name}/metric-names',
    tag: 'Data',
    summary: 'Names of all metrics that were logged',
    scope: 'train',
    responses: { 200: { description: 'In alphabetical order.', schema: metricNames } },
    errors: [404],
  }),
  listTrajectories: defineRoute({
    method: 'get',
    path: '/api/models/{name}/trajectories',
    tag: 'Data',
    summary: 'Which trajectories are stored',
    scope: 'train',
    query: trajectoriesQuery,
    responses: { 200: { description: 'By split and step.', schema: trajectoryFiles } },
    errors: [404],
  }),
  trajectories: defineRoute({
    method: 'get',
    path: '/api/models/{name}/trajectories/{split}/{step}',
    tag: 'Data',
    summary: 'Trajectories of one split and step',
    scope: 'train',
    responses: {
      200: {
        description: 'One JSON object a line: trajectories, and after those of a group what belongs to all of it.',
        contentType: 'application/jsonl',
        schema: trajectoryLine,
      },
    },
    errors: [404],
  }),
  listCheckpoints: defineRoute({
    method: 'get',
    path: '/api/models/{name}/checkpoints',
    tag: 'Checkpoints',
    summary: 'Checkpoints by ascending step',
    scope: 'train',
    query: checkpointsQuery,
    responses: { 200: { description: 'At most 1,000; next_from is the step after them.', schema: checkpointList } },
    errors: [404],
  }),
  getCheckpoint: defineRoute({
    method: 'get',
    path: '/api/models/{name}/checkpoints/{step}',
    tag: 'Checkpoints',
    summary: 'One checkpoint: time, size, metrics, provenance',
    scope: 'train',
    responses: { 200: { description: 'The checkpoint.', schema: checkpointInfo } },
    errors: [404],
  }),
  downloadFile: defineRoute({
    method: 'get',
    path: '/api/models/{name}/checkpoints/{step}/files/{file}',
    tag: 'Checkpoints',
    summary: 'Download a file of a checkpoint, e.g. adapter_model.safetensors',
    scope: 'train',
    responses: { 200: { description: 'Its bytes; etag is their SHA-256.', contentType: 'application/octet-stream' } },
    errors: [404],
  }),
  deleteCheckpoint: defineRoute({
    method: 'delete',
    path: '/api/models/{name}/checkpoints/{step}',
    tag: 'Checkpoints',
    summary: 'Move a checkpoint to the trash',
    details:
      'The newest is refused: roll back first. What the step taught stays in the steps after it, and its key still trains once.',
    scope: 'admin',
    query: confirmationQuery,
    isConfirmed: true,
    responses: { 200: { description: 'Where it went.', schema: removedCheckpoints } },
    errors: [404],
  }),
  rollBack: defineRoute({
    method: 'post',
    path: '/api/models/{name}/rollback',
    tag: 'Checkpoints',
    summary: 'Serve and train on from an earlier step',
    details:
      'Later checkpoints move to the trash and can be restored until they are purged. History and trajectories stay. Step numbers are not ' +
      'used again: the next step is numbered after the highest that ever was.',
    scope: 'admin',
    query: confirmationQuery,
    body: rollbackRequest,
    isConfirmed: true,
    responses: { 200: { description: 'What is served, and where the later steps went.', schema: removedCheckpoints } },
    errors: [404],
  }),
  getRetention: defineRoute({
    method: 'get',
    path: '/api/models/{name}/retention',
    tag: 'Checkpoints',
    summary: 'Which checkpoints are kept',
    scope: 'train',
    responses: { 200: { description: 'The rule.', schema: retention } },
    errors: [404],
  }),
  setRetention: defineRoute({
    method: 'put',
    path: '/api/models/{name}/retention',
    tag: 'Checkpoints',
    summary: 'Keep the last, or the best, checkpoints only',
    details:
      'Applied at once and after every step. Checkpoints that no rule keeps are deleted for good, as the rule is there to save space; ' +
      'the newest is always kept, and keys of deleted steps still train once.',
    scope: 'admin',
    query: confirmationQuery,
    body: retention,
    isConfirmed: true,
    responses: { 200: { description: 'The rule.', schema: retention } },
    errors: [404],
  }),
  listTrash: defineRoute({
    method: 'get',
    path: '/api/trash',
    tag: 'Trash',
    summary: 'What was deleted and not purged, oldest first',
    scope: 'admin',
    responses: { 200: { description: 'The items.', schema: trashList } },
  }),
  restoreTrash: defineRoute({
    method: 'post',
    path: '/api/trash/{id}/restore',
    tag: 'Trash',
    summary: 'Move an item back to where it was',
    details: 'A model must be registered again to be served. A checkpoint after the newest one becomes what is served.',
    scope: 'admin',
    responses: { 200: { description: 'The item, which is back.', schema: trashItem } },
    errors: [404, 409],
  }),
  purgeTrash: defineRoute({
    method: 'delete',
    path: '/api/trash/{id}',
    tag: 'Trash',
    summary: 'Delete an item for good',
    scope: 'admin',
    query: confirmationQuery,
    isConfirmed: true,
    responses: { 200: { description: 'What is gone.', schema: trashItem } },
    errors: [404],
  }),
  events: defineRoute({
    method: 'get',
    path: '/api/events',
    tag: 'Server',
    summary: 'Follow what happens',
    details:
      'Ids rise, also across restarts. A reader that comes back with Last-Event-ID gets what it missed; a reset event tells that some is ' +
      'lost. A reader that does not keep up is disconnected, and comes back the same way.',
    scope: 'train',
    query: eventsQuery,
    responses: {
      200: { description: 'One event after another.', contentType: sse, events: { ...eventData, reset: resetEvent } },
    },
  }),
  health: defineRoute({
    method: 'get',
    path: '/api/health',
    tag: 'Server',
    summary: 'State of the server and its engines',
    scope: 'infer',
    responses: {
      200: { description: 'All engines answer.', schema: health },
      503: { description: 'An engine does not answer.', schema: health },
    },
  }),
  openapi: defineRoute({
    method: 'get',
    path: '/openapi.json',
    tag: 'Server',
    summary: 'This description, as OpenAPI 3.1',
    scope: 'open',
    responses: { 200: { description: 'The document.', schema: z.record(z.string(), z.unknown()) } },
  }),
  docs: defineRoute({
    method: 'get',
    path: '/docs',
    tag: 'Server',
    summary: 'This description, as a page',
    scope: 'open',
    responses: { 200: { description: 'HTML.', contentType: 'text/html' } },
  }),
} as const;

export type ApiRouteName = keyof typeof apiRoutes;
