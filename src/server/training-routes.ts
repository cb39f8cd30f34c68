/**
 * The training API under `/api`: register, train, log, history. Layer 5. Shapes: `wire/training.ts`.
 * Errors before the event stream starts are plain HTTP errors, from the application's error handler; later ones are its last event.
 */
import type { Hono } from 'hono';
import { type SSEStreamingApi, streamSSE } from 'hono/streaming';
import { parseWire, toHttpError } from '../wire/errors.ts';
import {
  logRequest,
  type RegistrationPending,
  registerRequest,
  type TrainProgress,
  trainRequest,
} from '../wire/training.ts';
import { guardBaseModel } from './base-model-guard.ts';
import { callerOf, whoOf } from './caller.ts';
import { createRegistrationRecorder, createTrainingRecorder, recordLog } from './change-records.ts';
import type { TrainJob } from './jobs.ts';
import type { ModelRegistry } from './model-registry.ts';
import { readJson } from './read-json.ts';

/** Well below the idle limits of clients and proxies, 60 s and more. */
const keepAliveMs = 15_000;

/** A large batch of long conversations; their text crosses, not their tokens. */
const maxBodyBytes = 256 * 2 ** 20;

/**
 * Adds the routes to an application. A client that disconnects does not stop its step: the call can be sent again with the same
 * idempotency key, and gets the progress of the running step or the result of the finished one. A registration that is not done after
 * `registerAnswerMs` (a model is being downloaded) is answered 202, goes on, and is waited for by sending it again.
 */
export function registerTrainingRoutes(app: Hono, registry: ModelRegistry, registerAnswerMs: number = 20_000): void {
  const recordRegistration = createRegistrationRecorder(registry);
  const recordTraining = createTrainingRecorder();
  app.post('/api/models', async (c) => {
    const request = parseWire(registerRequest, await readJson(c, maxBodyBytes));
    await guardBaseModel(c, request, registry);
    const registering = recordRegistration(c, request, () => registry.register(request));
    const run = await settleWithin(registering, registerAnswerMs);
    if (run !== null) return c.json(await run.info());
    const { receivedBytes = 0, totalBytes = 0 } = registry.download(request.name) ?? {};
    const pending: RegistrationPending = { status: 'opening', received_bytes: receivedBytes, total_bytes: totalBytes };
    return c.json(pending, 202);
  });
  app.get('/api/models', async (c) => {
    return c.json({ models: await Promise.all(registry.list().map((run) => run.info())) });
  });
  app.get('/api/models/:name', async (c) => c.json(await registry.get(c.req.param('name')).info()));
  app.post('/api/models/:name/train', async (c) => {
    const run = registry.get(c.req.param('name'));
    const request = parseWire(trainRequest, await readJson(c, maxBodyBytes));
    const job = recordTraining(c, run, run.train(request, whoOf(callerOf(c))));
    return streamSSE(c, (stream) => sendJob(stream, job));
  });
  app.post('/api/models/:name/log', async (c) => {
    const run = registry.get(c.req.param('name'));
    const request = parseWire(logRequest, await readJson(c, maxBodyBytes));
    const step = await run.log(request);
    await recordLog(c, run, request, step);
    return c.json({ step });
  });
  app.get('/api/models/:name/history', (c) => c.json({ rows: registry.get(c.req.param('name')).history() }));
}

/** Null if the work is not done by then; its failure is then told to whoever asks next. */
async function settleWithin<T>(work: Promise<T>, timeoutMs: number): Promise<T | null> {
  let timer: NodeJS.Timeout | undefined;
  const timeout = new Promise<null>((resolve) => {
    timer = setTimeout(resolve, timeoutMs, null);
  });
  work.catch(() => {});
  try {
    return await Promise.race([work, timeout]);
  } finally {
    clearTimeout(timer);
  }
}

async function sendJob(stream: SSEStreamingApi, job: TrainJob): Promise<void> {
  // Events leave in order, each after the one before it was taken; writing to a client that has gone does nothing.
  let sending: Promise<unknown> = Promise.resolve();
  const send = (event: string, data: unknown): void => {
    sending = sending.then(() => stream.writeSSE({ event, data: JSON.stringify(data) }));
  };
  const unsubscribe = job.subscribe((progress: TrainProgress) => send('progress', progress));
  const keepAlive = setInterval(() => {
    sending = sending.then(() => stream.write(': keep-alive\n\n'));
  }, keepAliveMs);
  stream.onAbort(() => {
    unsubscribe();
    clearInterval(keepAlive);
  });
  try {
    send('result', await job.result);
  } catch (error) {
    const { body, isInternal } = toHttpError(error);
    if (isInternal) console.error(error);
    send('error', body);
  } finally {
    unsubscribe();
    clearInterval(keepAlive);
  }
  await sending;
}
