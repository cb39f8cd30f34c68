/**
 * Names and shapes of a decoder's parameters, as Hugging Face writes them. Layer 2.
 * Linear weights are [out, in] everywhere in this package: `y = x · Wᵀ`.
 */
import { DataError } from '../core/errors.ts';
import type { DecoderConfig } from '../formats/hf-config.ts';

/** A parameter's values with their shape; whoever holds the map owns the data. */
export interface Parameter {
  readonly shape: readonly number[];
  readonly data: Float32Array;
}
export type Parameters = ReadonlyMap<string, Parameter>;

/** The linear layers of one decoder layer, by PEFT's target-module name. */
export const linearModules = {
  q_proj: 'self_attn.q_proj',
  k_proj: 'self_attn.k_proj',
  v_proj: 'self_attn.v_proj',
  o_proj: 'self_attn.o_proj',
  gate_proj: 'mlp.gate_proj',
  up_proj: 'mlp.up_proj',
  down_proj: 'mlp.down_proj',
} as const;
export type LinearModule = keyof typeof linearModules;

/** [out, in] of a linear layer. */
export function linearShape(config: DecoderConfig, module: LinearModule): readonly [number, number] {
  const queryWidth = config.heads * config.headSize;
  const keyWidth = config.kvHeads * config.headSize;
  const shapes: { readonly [K in LinearModule]: readonly [number, number] } = {
    q_proj: [queryWidth, config.width],
    k_proj: [keyWidth, config.width],
    v_proj: [keyWidth, config.width],
    o_proj: [config.width, queryWidth],
    gate_proj: [config.ffWidth, config.width],
    up_proj: [config.ffWidth, config.width],
    down_proj: [config.width, config.ffWidth],
  };
  return shapes[module];
}

/** Full name of a linear layer's weight without its `.weight`, e.g. `model.layers.0.self_attn.q_proj`. */
export function linearName(layer: number, module: LinearModule): string {
  return `model.layers.${layer}.${linearModules[module]}`;
}

/** Every parameter of the model in file order. */
export function parameterShapes(config: DecoderConfig): Map<string, readonly number[]> {
  const shapes = new Map<string, readonly number[]>();
  shapes.set('model.embed_tokens.weight', [config.vocabSize, config.width]);
  for (let layer = 0; layer < config.layers; layer++) {
    const prefix = `model.layers.${layer}`;
    shapes.set(`${prefix}.input_layernorm.weight`, [config.width]);
    for (const module of Object.keys(linearModules) as LinearModule[]) {
      const [outSize, inSize] = linearShape(config, module);
      shapes.set(`${linearName(layer, module)}.weight`, [outSize, inSize]);
      if (config.hasAttentionBias && (module === 'q_proj' || module === 'k_proj' || module === 'v_proj')) {
        shapes.set(`${linearName(layer, module)}.bias`, [outSize]);
      }
    }
    if (config.hasQkNorm) {
      shapes.set(`${prefix}.self_attn.q_norm.weight`, [config.headSize]);
      shapes.set(`${prefix}.self_attn.k_norm.weight`, [config.headSize]);
    }
    shapes.set(`${prefix}.post_attention_layernorm.weight`, [config.width]);
  }
  shapes.set('model.norm.weight', [config.width]);
  if (!config.isEmbeddingTied) shapes.set('lm_head.weight', [config.vocabSize, config.width]);
  return shapes;
}

/** Number of values. */
export function countValues(shapes: Iterable<readonly number[]>): number {
  let total = 0;
  for (const shape of shapes) total += shape.reduce((product, size) => product * size, 1);
  return total;
}

/** Throws DataError if a tensor is missing, left over or of another shape. */
export function checkParameters(
  parameters: Parameters,
  shapes: ReadonlyMap<string, readonly number[]>,
  what: string,
): void {
  for (const [name, shape] of shapes) {
    const found = parameters.get(name);
    if (!found) throw new DataError(`${what}: must hold the tensor ${name} [${shape.join(', ')}], got none`);
    if (found.shape.join() !== shape.join()) {
      throw new DataError(`${what}: ${name} must be [${shape.join(', ')}], got [${found.shape.join(', ')}]`);
    }
  }
  for (const name of parameters.keys()) {
    if (!shapes.has(name)) throw new DataError(`${what}: must hold nothing but the model's tensors, got ${name}`);
  }
}
