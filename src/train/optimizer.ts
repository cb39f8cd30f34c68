/**
 * AdamW with global-norm clipping, over plain arrays. Layer 3. Source: Loshchilov and Hutter 2019 (arXiv 1711.05101) algorithm 2,
 * with the bias corrections of Adam; PyTorch's `torch.optim.AdamW` computes the same. State is float32, arithmetic float64.
 */
import { ConfigError, EngineError } from '../core/errors.ts';
import type { Parameter } from '../nn/parameters.ts';

export interface AdamWSettings {
  readonly learningRate: number;
  readonly beta1: number;
  readonly beta2: number;
  readonly epsilon: number;
  readonly weightDecay: number;
  /** 0 = no clipping. */
  readonly maxGradNorm: number;
}

/** First and second moments per parameter, and the number of updates so far. */
export interface AdamWState {
  updates: number;
  readonly moments: ReadonlyMap<string, { readonly first: Float32Array; readonly second: Float32Array }>;
}

/** Zero moments, two float32 arrays for each parameter. */
export function createAdamWState(parameters: ReadonlyMap<string, Parameter>): AdamWState {
  const moments = new Map<string, { first: Float32Array; second: Float32Array }>();
  for (const [name, { data }] of parameters) {
    moments.set(name, { first: new Float32Array(data.length), second: new Float32Array(data.length) });
  }
  return { updates: 0, moments };
}

/** L2 norm over all gradients together. */
export function globalNorm(gradients: ReadonlyMap<string, Float32Array>): number {
  let sum = 0;
  for (const gradient of gradients.values()) {
    for (let i = 0; i < gradient.length; i++) sum += gradient[i]! * gradient[i]!;
  }
  return Math.sqrt(sum);
}

/**
 * One update in place. Returns the gradient norm before clipping.
 * Throws and changes nothing: ConfigError on a setting out of range, EngineError if the norm is not finite.
 */
export function adamWUpdate(
  parameters: ReadonlyMap<string, Parameter>,
  gradients: ReadonlyMap<string, Float32Array>,
  state: AdamWState,
  settings: AdamWSettings,
): number {
  checkSettings(settings);
  const norm = globalNorm(gradients);
  if (!Number.isFinite(norm)) {
    throw new EngineError(
      `optimizer: gradient norm must be finite, got ${norm}; lower the learning rate or the clip range`,
    );
  }
  const { learningRate, beta1, beta2, epsilon, weightDecay, maxGradNorm } = settings;
  const scale = maxGradNorm > 0 && norm > maxGradNorm ? maxGradNorm / norm : 1;
  state.updates++;
  const stepSize = learningRate / (1 - beta1 ** state.updates);
  const secondScale = 1 / Math.sqrt(1 - beta2 ** state.updates);
  const decay = 1 - learningRate * weightDecay;
  for (const [name, { data }] of parameters) {
    const gradient = gradients.get(name)!;
    const { first, second } = state.moments.get(name)!;
    for (let i = 0; i < data.length; i++) {
      const g = gradient[i]! * scale;
      const m = beta1 * first[i]! + (1 - beta1) * g;
      const v = beta2 * second[i]! + (1 - beta2) * g * g;
      first[i] = m;
      second[i] = v;
      data[i] = data[i]! * decay - (stepSize * m) / (Math.sqrt(v) * secondScale + epsilon);
    }
  }
  return norm;
}

/** A setting that is not a number would turn every weight into NaN. */
function checkSettings(settings: AdamWSettings): void {
  for (const name of ['learningRate', 'epsilon', 'weightDecay', 'maxGradNorm'] as const) {
    const value = settings[name];
    if (!(value >= 0) || !Number.isFinite(value)) {
      throw new ConfigError(`optimizer: ${name} must be finite and at least 0, got ${value}`);
    }
  }
  for (const name of ['beta1', 'beta2'] as const) {
    const value = settings[name];
    if (!(value >= 0 && value < 1)) {
      throw new ConfigError(`optimizer: ${name} must be at least 0 and below 1, got ${value}`);
    }
  }
}
