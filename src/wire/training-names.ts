/**
 * Between the names of the training API (snake case) and those of `core/` and the SDK (camel case). Layer 0.
 * The only place that knows both; each function is one direction of one object.
 */
import type { AdamOptions, TrainConfig } from '../core/train-config.ts';
import type { ModelInfo, RegisterRequest, TrainResult, WireTrainOptions } from './training.ts';

/** Keys in snake case, as the API writes them; undefined ones are left out. Not deep. */
export function toSnakeCase(options: object): Record<string, unknown> {
  return Object.fromEntries(
    Object.entries(options)
      .filter(([, value]) => value !== undefined)
      .map(([key, value]) => [key.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`), value]),
  );
}

/** The field name at the start of a message, as in `adam.weight_decay: must be …`, in camel case. */
export function toCamelCaseField(message: string): string {
  const [field = ''] = message.split(':', 1);
  return field.replace(/_([a-z])/g, (_match, letter: string) => letter.toUpperCase()) + message.slice(field.length);
}

/** Training options as the API has them; not checked. */
export function toWireTrainOptions(options: object & { readonly adam?: object | undefined }): Record<string, unknown> {
  const { adam, ...rest } = options;
  return { ...toSnakeCase(rest), ...(adam === undefined ? {} : { adam: toSnakeCase(adam) }) };
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

/** The configuration that the options of a request describe; what they leave out is that of `base`. */
export function toTrainConfig(options: WireTrainOptions, base: TrainConfig): TrainConfig {
  return {
    learningRate: options.learning_rate ?? base.learningRate,
    loss: options.loss ?? base.loss,
    clipLow: options.clip_low === undefined ? base.clipLow : options.clip_low,
    clipHigh: options.clip_high === undefined ? base.clipHigh : options.clip_high,
    importanceCap: options.importance_cap ?? base.importanceCap,
    normalizeAdvantages: options.normalize_advantages ?? base.normalizeAdvantages,
    turnDiscount: options.turn_discount ?? base.turnDiscount,
    entropyBonus: options.entropy_bonus ?? base.entropyBonus,
    gradientSteps: options.gradient_steps ?? base.gradientSteps,
    epochs: options.epochs ?? base.epochs,
    maxGradNorm: options.max_grad_norm ?? base.maxGradNorm,
    adam: toAdamConfig(options.adam, base.adam),
    seed: options.seed ?? base.seed,
  };
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
