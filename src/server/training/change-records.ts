/** What registrations, training and logs leave in the audit log: once for each change, whoever asks how often. Layer 5. */
import { createHash } from 'node:crypto';
import type { Context } from 'hono';
import { messageOf } from '../../core/errors.ts';
import type { LogRequest, RegisterRequest } from '../../wire/training.ts';
import type { Change } from '../security/audit.ts';
import { recordChange } from '../security/caller.ts';
import type { TrainJob } from './jobs.ts';
import type { ModelRegistry } from './model-registry.ts';
import type { TrainingRun } from './training-run.ts';

/** As the log names a model, or one of its steps. */
export function targetOf(model: { readonly project: string; readonly name: string }, step?: number): string {
  return `${model.project}/${model.name}${step === undefined ? '' : `@${step}`}`;
}

/** Records a model when it has been opened; one that is open, or being opened by another call, is recorded once. */
export function createRegistrationRecorder(
  registry: Pick<ModelRegistry, 'list'>,
): (c: Context, request: RegisterRequest, register: () => Promise<TrainingRun>) => Promise<TrainingRun> {
  const opening = new Set<string>();
  return async (c, request, register) => {
    const { name } = request;
    const isKnown = opening.has(name) || registry.list().some(({ model }) => model.name === name);
    if (isKnown) return register();
    opening.add(name);
    try {
      const run = await register();
      const { base_model, lora, seed, chat_template } = request;
      const template = chat_template === undefined ? null : createHash('sha256').update(chat_template).digest('hex');
      const after = { base_model, lora, seed, chat_template_sha256: template, step: run.model.step() };
      await record(c, { what: 'model.register', target: targetOf(request), after });
      return run;
    } finally {
      opening.delete(name);
    }
  };
}

/** Records a training job when its step is there, before its result goes out. The job as the route is to send it. */
export function createTrainingRecorder(): (c: Context, run: TrainingRun, job: TrainJob) => TrainJob {
  const recorded = new WeakMap<TrainJob, Promise<void>>();
  return (c, run, job) => {
    const isEnded = ['done', 'failed', 'cancelled'].includes(job.describe().state);
    const before = { step: run.model.step() };
    const recording =
      recorded.get(job) ??
      (isEnded ? Promise.resolve() : job.result.then((result) => recordTrained(c, run, { job, before, result })));
    recorded.set(job, recording);
    const result = recording.then(() => job.result);
    result.catch(() => {}); // Who waits for it is told; nobody may.
    return { id: job.id, result, subscribe: (listener) => job.subscribe(listener), describe: () => job.describe() };
  };
}

interface Trained {
  readonly job: TrainJob;
  readonly before: object;
  readonly result: Awaited<TrainJob['result']>;
}

async function recordTrained(c: Context, run: TrainingRun, { job, before, result }: Trained): Promise<void> {
  const { kind } = job.describe();
  const after = { step: result.step, adapter_sha256: result.adapter_sha256, job: job.id };
  await record(c, { what: `model.${kind}`, target: targetOf(run.model, result.step), before, after });
}

export async function recordLog(c: Context, run: TrainingRun, request: LogRequest, step: number): Promise<void> {
  const { split, groups, metrics } = request;
  const after = { split, groups: groups.length, metrics: Object.keys(metrics) };
  await record(c, { what: 'model.log', target: targetOf(run.model, step), after });
}

/** The change is made and cannot be taken back: where it cannot be written down either, that is said where warnings go. */
async function record(c: Context, change: Change): Promise<void> {
  try {
    await recordChange(c, change);
  } catch (error) {
    console.warn(`audit log: ${change.what} of ${change.target} is not in it: ${messageOf(error)}`);
  }
}
