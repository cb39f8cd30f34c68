/** On-policy distillation as users write it: a teacher among the models of the server, and options. Layer 5. */

import { type DistillConfig, defaultDistillConfig } from '../core/distill-config.ts';
import { ConfigError } from '../core/errors.ts';
import { refuseUnknownKeys } from '../core/options.ts';
import type { AdamOptions } from '../core/train-config.ts';
import { type DistillRequest, distillOptions, distillTeacher } from '../wire/distill.ts';
import { describeIssue } from '../wire/errors.ts';
import type { TrainResult as WireTrainResult } from '../wire/training.ts';
import { toCamelCaseField, toSnakeCase, toWireTrainOptions } from '../wire/training-names.ts';
import type { ModelReference } from './backend.ts';
import { type Api, modelPath } from './call.ts';
import { callTrainingJob, type TrainCallOptions } from './training-calls.ts';

/** Who scores what the policy sampled: a model of the same server with the same vocabulary. */
export interface DistillTeacher {
  /** Default: the model that learns, which makes sense with a `systemPrompt` or a `step`. */
  readonly model?: ModelReference | string;
  /** A served step of it; default: the newest when the job runs. */
  readonly step?: number;
  /** System message that the teacher reads before each conversation, and the policy does not: what it says is learned. */
  readonly systemPrompt?: string;
}

/** Options of one `distill` call; what is left out takes the value of `defaultDistillConfig`. */
export type DistillOptions = Partial<Omit<DistillConfig, 'adam'>> & {
  readonly teacher: DistillTeacher | ModelReference;
  readonly adam?: Partial<AdamOptions>;
};

export interface DistillCallOptions extends TrainCallOptions {
  /** Calls with one key train once, also after a crash: the second gets the first one's result. Default: a new one. */
  readonly idempotencyKey?: string | undefined;
}

/** Checks teacher and options and puts them in wire form. Throws ConfigError with the name and the rule. */
export function encodeDistillOptions(
  model: ModelReference,
  { teacher, ...options }: DistillOptions,
): Pick<DistillRequest, 'teacher' | 'options'> {
  refuseUnknownKeys('distill options', options, Object.keys(defaultDistillConfig));
  refuseUnknownKeys('distill options.adam', options.adam ?? {}, Object.keys(defaultDistillConfig.adam));
  const wire = toWireTrainOptions(options);
  const parsed = distillOptions.safeParse(wire);
  if (!parsed.success) {
    const { message } = describeIssue(parsed.error.issues[0], wire);
    throw new ConfigError(`distill options.${toCamelCaseField(message)}`);
  }
  return { teacher: encodeTeacher(model, teacher), options: parsed.data };
}

function encodeTeacher(
  model: ModelReference,
  teacher: DistillOptions['teacher'] | undefined,
): DistillRequest['teacher'] {
  if (typeof teacher !== 'object' || teacher === null) {
    throw new ConfigError('distill options.teacher: must be a model, or { model, step, systemPrompt }, got none');
  }
  if ('name' in teacher) return { model: teacher.name };
  refuseUnknownKeys('distill options.teacher', teacher, ['model', 'step', 'systemPrompt']);
  const { model: given = model, step, systemPrompt } = teacher;
  const name = typeof given === 'string' ? given : given.name;
  if (name === model.name && step === undefined && systemPrompt === undefined) {
    throw new ConfigError(
      `distill options.teacher: must differ from model ${name}; name another model, a step or a systemPrompt`,
    );
  }
  const wire = { model: name, ...toSnakeCase({ step, systemPrompt }) };
  const parsed = distillTeacher.safeParse(wire);
  if (parsed.success) return parsed.data;
  throw new ConfigError(
    `distill options.teacher.${toCamelCaseField(describeIssue(parsed.error.issues[0], wire).message)}`,
  );
}

export function callDistill(
  api: Api,
  name: string,
  request: DistillRequest,
  options: TrainCallOptions,
): Promise<WireTrainResult> {
  const job = { what: `distillation of model ${name}`, path: `${modelPath(name)}/distill`, body: request };
  return callTrainingJob(api, job, options);
}
