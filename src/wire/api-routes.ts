/** The training API as a table: what `/openapi.json` describes, what `server/` handles, and which scope each route needs. Layer 0. */
import * as z from 'zod';
import { checkpointRoutes } from './checkpoint-routes.ts';
import { deletedModel } from './checkpoints.ts';
import {
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
import { distillRequest } from './distill.ts';
import { errorBody } from './errors.ts';
import { eventData, resetEvent } from './events.ts';
import { job } from './jobs.ts';
import { defineRoute, type RouteResponse } from './route.ts';
import { sftRequest } from './sft.ts';
import { stateRoutes } from './state.ts';
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
import { transferRoutes } from './transfer-routes.ts';
import { anyJob, jobList, transferProgress } from './transfers.ts';

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
  distill: defineRoute({
    method: 'post',
    path: '/api/models/{name}/distill',
    tag: 'Training',
    summary: 'Move the policy towards a teacher on what the policy sampled (on-policy distillation)',
    details:
      'Another served model, or an earlier policy or the same one with a system message, scores the tokens of the trajectories; no reward is ' +
      'read. One policy step, of the same counter as training by reward. Idempotent as train is.',
    scope: 'train',
    query: startQuery,
    body: distillRequest,
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
    details: 'Jobs that trained are there for ever; of the others, the newest since the server started.',
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
    responses: { 200: { description: 'The job.', schema: anyJob } },
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
        events: { job: anyJob, progress: z.union([trainProgress, transferProgress]) },
      },
    },
    errors: [404],
  }),
  cancelJob: defineRoute({
    method: 'post',
    path: '/api/jobs/{id}/cancel',
    tag: 'Jobs',
    summary: 'Stop a job between two engine calls and undo its step',
    details:
      'A job that has ended stays as it is. Steps that an sft job has committed already stay too. A copy that is cut off goes on where it ' +
      'stopped when it is made again.',
    scope: 'train',
    responses: { 202: { description: 'The job; it ends soon.', schema: anyJob } },
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
  ...checkpointRoutes,
  ...stateRoutes,
  ...transferRoutes,
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
