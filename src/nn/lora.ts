/**
 * LoRA adapters as in PEFT: `W + (alpha / rank) · B · A`, A [R, in] random, B [out, R] zero. Layer 2.
 * Source: Hu et al. 2021 (arXiv 2106.09685); A uniform in ±1/√in as in "LoRA without regret" (Schulman et al. 2025), which is
 * also PEFT's Kaiming initialisation with a = √5. Leaves out dropout, rsLoRA and adapters on embeddings.
 */
import { ConfigError } from '../core/errors.ts';
import { createRng } from '../core/rng.ts';
import type { DecoderConfig } from '../formats/hf-config.ts';
import { adapterKey } from '../formats/peft.ts';
import { type LinearModule, linearModules, linearName, linearShape, type Parameter } from './parameters.ts';

export interface LoraSpec {
  readonly rank: number;
  readonly alpha: number;
  readonly targetModules: readonly LinearModule[];
}

/**
 * An adapter on `targetModules` of this model, on all of its linear modules when left out; sorted as in `linearModules`. Throws
 * ConfigError on a module that the model has not and on a rank or alpha that is not positive.
 */
export function loraSpec(
  options: { readonly rank: number; readonly alpha: number; readonly targetModules?: readonly string[] },
  config: Pick<DecoderConfig, 'modelType' | 'hasFusedProjections'>,
): LoraSpec {
  const modules = linearModules(config);
  const { rank, alpha, targetModules = modules } = options;
  if (!Number.isSafeInteger(rank) || rank < 1)
    throw new ConfigError(`lora.rank: must be a whole number ≥ 1, got ${rank}`);
  if (!(alpha > 0) || !Number.isFinite(alpha)) throw new ConfigError(`lora.alpha: must be positive, got ${alpha}`);
  for (const module of targetModules) {
    if (!modules.some((name) => name === module)) {
      throw new ConfigError(
        `lora.targetModules: must be of ${modules.join(', ')} for a ${config.modelType} model, got '${module}'`,
      );
    }
  }
  const wanted = new Set(targetModules);
  if (wanted.size === 0) throw new ConfigError('lora.targetModules: must name at least one module, got none');
  return { rank, alpha, targetModules: modules.filter((module) => wanted.has(module)) };
}

/** PEFT's tensor name in `adapter_model.safetensors`. */
export function loraTensorName(layer: number, module: LinearModule, matrix: 'A' | 'B'): string {
  return adapterKey(linearName(layer, module), matrix);
}

/** Names and shapes of an adapter's tensors. */
export function loraShapes(config: DecoderConfig, spec: LoraSpec): Map<string, readonly number[]> {
  const shapes = new Map<string, readonly number[]>();
  for (let layer = 0; layer < config.layers; layer++) {
    for (const module of spec.targetModules) {
      const [outSize, inSize] = linearShape(config, module);
      shapes.set(loraTensorName(layer, module, 'A'), [spec.rank, inSize]);
      shapes.set(loraTensorName(layer, module, 'B'), [outSize, spec.rank]);
    }
  }
  return shapes;
}

/** A fresh adapter: it changes nothing until B is trained. */
export function createAdapter(config: DecoderConfig, spec: LoraSpec, seed: number): Map<string, Parameter> {
  const adapter = new Map<string, Parameter>();
  for (const [name, shape] of loraShapes(config, spec)) {
    const [rows = 0, columns = 0] = shape;
    const data = new Float32Array(rows * columns);
    if (name.includes('.lora_A.')) {
      const rng = createRng(seed, name);
      const bound = 1 / Math.sqrt(columns);
      for (let i = 0; i < data.length; i++) data[i] = (rng.uniform() * 2 - 1) * bound;
    }
    adapter.set(name, { shape, data });
  }
  return adapter;
}
