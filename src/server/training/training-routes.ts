/**
 * The training API under `/api`: every row of `wire/api-routes.ts` has its handler in this folder. Layer 5.
 * Errors before an event stream starts are plain HTTP errors, from the application's error handler; later ones are its last event.
 */
import type { Hono } from 'hono';
import { apiRoutes } from '../../wire/api-routes.ts';
import { refuse } from '../../wire/errors.ts';
import type { RegistrationPending } from '../../wire/training.ts';
import type { WireAnyJob } from '../../wire/transfers.ts';
import { answerEvents } from '../http/event-stream.ts';
import { pathParam, type RouteHandlers, registerRoutes } from '../http/routes.ts';
import { serverHandlers } from '../http/server-routes.ts';
import { callerOf, recordChange, whoOf } from '../security/caller.ts';
import { requireConfirmation } from '../security/confirmation.ts';
import { type AnswerableJob, answerJob } from './answer-job.ts';
import { guardBaseModel } from './base-model-guard.ts';
import { createRegistrationRecorder, createTrainingRecorder, recordLog } from './change-records.ts';
import { checkpointHandlers } from './checkpoint-routes.ts';
import { dataHandlers } from './data-routes.ts';
import { createTeacher } from './distill-teacher.ts';
import type { ModelRegistry } from './model-registry.ts';
import { stateHandlers } from './state-routes.ts';
import { transferHandlers } from './transfer-handlers.ts';

export interface TrainingRoutesOptions {
  /** After this time a registration that is not done is answered 202; default 20 s. */
  readonly registerAnswerMs?: number;
}

/**
 * Adds the routes to an application. A client that disconnects does not stop its step: the call can be sent again with the same
 * idempotency key, and gets the progress of the running step or the result of the finished one. A registration that takes long (a model
 * is being downloaded) is answered 202, goes on, and is waited for by sending it again.
 */
export function registerTrainingRoutes(app: Hono, registry: ModelRegistry, options: TrainingRoutesOptions = {}): void {
  const handlers: RouteHandlers<typeof apiRoutes> = {
    ...modelHandlers(registry, options.registerAnswerMs ?? 20_000),
    ...jobHandlers(registry),
    ...dataHandlers(registry),
    ...checkpointHandlers(registry),
    ...stateHandlers(registry),
    ...transferHandlers(registry),
    ...serverHandlers(registry),
  };
  registerRoutes(app, apiRoutes, handlers);
}

type Handlers<Name extends keyof typeof apiRoutes> = RouteHandlers<Pick<typeof apiRoutes, Name>>;

function modelHandlers(
  registry: ModelRegistry,
  registerAnswerMs: number,
): Handlers<'registerModel' | 'listModels' | 'getModel' | 'deleteModel' | 'train' | 'sft' | 'distill' | 'log'> {
  const recordRegistration = createRegistrationRecorder(registry);
  const recordTraining = createTrainingRecorder();
  return {
    registerModel: async (c, { body }) => {
      await guardBaseModel(c, body, registry);
      const registering = recordRegistration(c, body, () => registry.register(body));
      const run = await settleWithin(registering, registerAnswerMs);
      if (run === null) return c.json(pendingOf(registry, body.name), 202);
      return c.json(await run.info());
    },
    listModels: async (c) => c.json({ models: await Promise.all(registry.list().map((run) => run.info())) }),
    getModel: async (c) => c.json(await registry.get(pathParam(c, 'name')).info()),
    deleteModel: async (c) => {
      const { model } = registry.get(pathParam(c, 'name'));
      const target = `${model.project}/${model.name}`;
      const what = `model ${model.name} of project ${model.project} stops; its run of ${model.step()} steps moves to the trash`;
      requireConfirmation(c, { action: 'model.delete', target, what });
      const item = await registry.remove(model.name, whoOf(callerOf(c)));
      await recordChange(c, {
        what: 'model.delete',
        target,
        before: { step: model.step() },
        after: { trash_id: item.id },
      });
      return c.json({ name: model.name, trash_id: item.id });
    },
    train: async (c, { body, query }) => {
      const run = registry.get(pathParam(c, 'name'));
      const job = recordTraining(c, run, run.train(body, whoOf(callerOf(c))));
      return answerJob(c, job, query.wait ?? true);
    },
    sft: async (c, { body, query }) => {
      const run = registry.get(pathParam(c, 'name'));
      const job = recordTraining(c, run, await run.sft(body, whoOf(callerOf(c))));
      return answerJob(c, job, query.wait ?? true);
    },
    distill: async (c, { body, query }) => {
      const run = registry.get(pathParam(c, 'name'));
      const teacher = createTeacher(body.teacher, registry.get(body.teacher.model).model, run.model);
      const job = recordTraining(c, run, run.distill(body, teacher, whoOf(callerOf(c))));
      return answerJob(c, job, query.wait ?? true);
    },
    log: async (c, { body }) => {
      const run = registry.get(pathParam(c, 'name'));
      const step = await run.log(body);
      await recordLog(c, run, body, step);
      return c.json({ step });
    },
  };
}

function pendingOf(registry: ModelRegistry, name: string): RegistrationPending {
  const { receivedBytes = 0, totalBytes = 0 } = registry.download(name) ?? {};
  return { status: 'opening', received_bytes: receivedBytes, total_bytes: totalBytes };
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

function jobHandlers(registry: ModelRegistry): Handlers<'listJobs' | 'getJob' | 'followJob' | 'cancelJob'> {
  const find = (id: string): FoundJob => {
    const copy = registry.transfers.get(id);
    if (copy !== undefined) {
      return { active: copy, describe: () => copy.describe(), cancel: () => registry.transfers.cancel(id) };
    }
    for (const run of registry.list()) {
      const job = run.job(id);
      if (job === undefined) continue;
      return { active: run.activeJob(id), describe: () => run.job(id) ?? job, cancel: () => run.cancelJob(id) };
    }
    throw refuse(
      404,
      'job_not_found',
      `job: must be one of this server's models, got ${JSON.stringify(id.slice(0, 80))}`,
    );
  };
  return {
    listJobs: async (c, { query }) => {
      const training = registry.list().flatMap((run) => [...run.jobs()]);
      const copies = registry.transfers.list().map((job) => job.describe());
      const isWanted = (job: WireAnyJob): boolean =>
        (query.model === undefined || job.model === query.model) &&
        (query.state === undefined || job.state === query.state);
      return c.json({ jobs: [...training, ...copies].filter(isWanted) });
    },
    getJob: async (c) => c.json(find(pathParam(c, 'id')).describe()),
    followJob: async (c) => {
      const { active, describe } = find(pathParam(c, 'id'));
      return answerEvents(c, ({ send, end }) => {
        send({ event: 'job', data: describe() });
        const unsubscribe = active?.subscribe((progress: unknown) => send({ event: 'progress', data: progress }));
        Promise.resolve(active?.result)
          .catch(() => undefined)
          .then(() => send({ event: 'job', data: describe() }))
          .finally(end);
        return () => unsubscribe?.();
      });
    },
    cancelJob: async (c) => {
      const { describe, cancel } = find(pathParam(c, 'id'));
      const { id, state } = describe();
      if (!cancel()) {
        throw refuse(409, 'job_ended', `job ${id}: must wait or run to be cancelled, got one that is ${state}`);
      }
      await recordChange(c, { what: 'job.cancel', target: id, before: { state } });
      return c.json(describe(), 202);
    },
  };
}

/** A job that trains or copies. */
interface FoundJob {
  readonly active: AnswerableJob<unknown, unknown> | undefined;
  readonly describe: () => WireAnyJob;
  readonly cancel: () => boolean;
}
