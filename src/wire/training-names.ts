/**
 * Between the names of the training API (snake case) and those of `core/` and the SDK (camel case). Layer 0.
 * The only place that knows both; each function is one direction of one object.
 */
import { isJsonObject } from '../core/json.ts';
import {
  type AdamOptions,
  defaultKlPenalty,
  defaultLearningRateSchedule,
  defaultOverlong,
  type KlPenalty,
  type TrainConfig,
} from '../core/train-config.ts';
import type { ModelInfo, RegisterRequest, TrainResult, WireTrainOptions } from './training.ts';

function snakeCase(name: string): string {
  return name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
}

/** A name of the API, such as a loss, as `core/` has it. */
export function camelCase(name: string): string {
  return name.replace(/_([a-z])/g, (_match, letter: string) => letter.toUpperCase());
}

/** Keys in snake case, as the API writes them, at every depth of plain objects; undefined ones are left out. Values stay as they are. */
export function toSnakeCase(options: object): Record<string, unknown> {
  return Object.fromEntries(
    Object.entries(options)
      .filter(([, value]) => value !== undefined)
      .map(([key, value]) => [snakeCase(key), isJsonObject(value) ? toSnakeCase(value) : value]),
  );
}

/** The field name at the start of a message, as in `adam.weight_decay: must be …`, in camel case. */
export function toCamelCaseField(message: string): string {
  const [field = ''] = message.split(':', 1);
  return camelCase(field) + message.slice(field.length);
}

/** Options whose values are names, in snake case on the wire. */
const namedValues = ['loss', 'advantage'];

/** Training options as the API has them; not checked. */
export function toWireTrainOptions(options: object): Record<string, unknown> {
  return Object.fromEntries(
    Object.entries(toSnakeCase(options)).map(([key, value]) => [
      key,
      namedValues.includes(key) && typeof value === 'string' ? snakeCase(value) : value,
    ]),
  );
}

/** What the options of the optimizer leave out is that of `base`. */
export function toAdamConfig(options: WireTrainOptions['adam'], base: AdamOptions): AdamOptions {
  return {
    beta1: options?.beta1 ?? base.beta1,
    beta2: options?.beta2 ?? base.beta2,
    epsilon: options?.epsilon ?? base.epsilon,
    weightDecay: options?.weight_decay ?? base.weightDecay,
  };
}

/** The configuration that the options of a request describe; what they leave out, or set to null, is that of `base`. */
export function toTrainConfig(options: WireTrainOptions, base: TrainConfig): TrainConfig {
  return {
    learningRate: options.learning_rate ?? base.learningRate,
    learningRateSchedule: toLearningRateSchedule(options.learning_rate_schedule) ?? base.learningRateSchedule,
    loss: options.loss === undefined ? base.loss : (camelCase(options.loss) as TrainConfig['loss']),
    clipLow: options.clip_low ?? base.clipLow,
    clipHigh: options.clip_high ?? base.clipHigh,
    importanceCap: options.importance_cap ?? base.importanceCap,
    importanceMask: options.importance_mask ?? base.importanceMask,
    sequenceMask: options.sequence_mask ?? base.sequenceMask,
    advantage: options.advantage ? (camelCase(options.advantage) as TrainConfig['advantage']) : base.advantage,
    maxAdvantage: options.max_advantage ?? base.maxAdvantage,
    lengthNormalization: options.length_normalization ?? base.lengthNormalization,
    maxCompletionTokens: options.max_completion_tokens ?? base.maxCompletionTokens,
    overlong: toOverlong(options.overlong) ?? base.overlong,
    klPenalty: toKlPenalty(options.kl_penalty) ?? base.klPenalty,
    entropyBonus: options.entropy_bonus ?? base.entropyBonus,
    turnDiscount: options.turn_discount ?? base.turnDiscount,
    gradientSteps: options.gradient_steps ?? base.gradientSteps,
    epochs: options.epochs ?? base.epochs,
    maxGradNorm: options.max_grad_norm ?? base.maxGradNorm,
    adam: toAdamConfig(options.adam, base.adam),
    seed: options.seed ?? base.seed,
  };
}

function toLearningRateSchedule(
  options: WireTrainOptions['learning_rate_schedule'],
): TrainConfig['learningRateSchedule'] {
  if (!options) return null;
  const { warmupSteps, totalSteps } = defaultLearningRateSchedule;
  return {
    decay: options.decay,
    warmupSteps: options.warmup_steps ?? warmupSteps,
    totalSteps: options.total_steps ?? totalSteps,
  };
}

function toOverlong(options: WireTrainOptions['overlong']): TrainConfig['overlong'] {
  if (!options) return null;
  return {
    mask: options.mask ?? defaultOverlong.mask,
    bufferTokens: options.buffer_tokens ?? defaultOverlong.bufferTokens,
  };
}

function toKlPenalty(options: WireTrainOptions['kl_penalty']): KlPenalty | null {
  if (!options) return null;
  const { weight, reference = defaultKlPenalty.reference, form = defaultKlPenalty.form } = options;
  const isStepsBack = typeof reference === 'object' && 'steps_back' in reference;
  return { weight, form, reference: isStepsBack ? { stepsBack: reference.steps_back } : reference };
}

/** What a registration needs, in the SDK's names. */
export interface RegisteredModel {
  readonly name: string;
  readonly project: string;
  readonly baseModel: string;
  readonly lora: {
    readonly rank: number;
    readonly alpha: number;
    readonly targetModules?: readonly string[] | undefined;
  };
  readonly seed: number;
  readonly chatTemplate?: string | undefined;
}

/** A registration as the API has it; not checked. */
export function toRegisterRequest(model: RegisteredModel): RegisterRequest {
  const { rank, alpha, targetModules } = model.lora;
  return {
    name: model.name,
    project: model.project,
    base_model: model.baseModel,
    lora: { rank, alpha, ...(targetModules === undefined ? {} : { target_modules: [...targetModules] }) },
    seed: model.seed,
    ...(model.chatTemplate === undefined ? {} : { chat_template: model.chatTemplate }),
  };
}

/** What an engine has done so far, as `Engine.doInfo` tells it. */
export interface EngineTotals {
  readonly parameters: number;
  readonly trainableParameters: number;
  readonly rssBytes: number;
  readonly peakRssBytes: number;
  readonly sampledTokens: number;
  readonly prefilledTokens: number;
  readonly samplingSeconds: number;
  readonly trainedTokens: number;
  readonly trainingSeconds: number;
}

/** The description of a model from what its run and its engine know. */
export function toModelInfo(
  identity: Pick<ModelInfo, 'name' | 'project' | 'base_model' | 'step' | 'directory'>,
  engine: EngineTotals,
): ModelInfo {
  return {
    ...identity,
    parameters: engine.parameters,
    trainable_parameters: engine.trainableParameters,
    engine: {
      rss_bytes: engine.rssBytes,
      peak_rss_bytes: engine.peakRssBytes,
      sampled_tokens: engine.sampledTokens,
      prefilled_tokens: engine.prefilledTokens,
      sampling_seconds: engine.samplingSeconds,
      trained_tokens: engine.trainedTokens,
      training_seconds: engine.trainingSeconds,
    },
  };
}

/** `ModelState` of the SDK. */
export function fromModelInfo({ step, parameters, trainable_parameters, directory, engine }: ModelInfo) {
  return {
    step,
    parameters,
    trainableParameters: trainable_parameters,
    directory,
    engine: {
      rssBytes: engine.rss_bytes,
      peakRssBytes: engine.peak_rss_bytes,
      sampledTokens: engine.sampled_tokens,
      prefilledTokens: engine.prefilled_tokens,
      samplingSeconds: engine.sampling_seconds,
      trainedTokens: engine.trained_tokens,
      trainingSeconds: engine.training_seconds,
    },
  };
}

/** `TrainResult` of the SDK. */
export function fromTrainResult({ step, metrics, checkpoint_path, adapter_sha256 }: TrainResult) {
  return { step, metrics, checkpointPath: checkpoint_path, adapterSha256: adapter_sha256 };
}
