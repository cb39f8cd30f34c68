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

const attentionModules = ['q_proj', 'k_proj', 'v_proj', 'qkv_proj', 'o_proj'] as const;
const mlpModules = ['gate_proj', 'up_proj', 'gate_up_proj', 'down_proj'] as const;

/** A linear layer of a decoder layer, by PEFT's target-module name; a model has those of `linearModules`. */
export type LinearModule = (typeof attentionModules)[number] | (typeof mlpModules)[number];

const separate: readonly LinearModule[] = ['q_proj', 'k_proj', 'v_proj', 'o_proj', 'gate_proj', 'up_proj', 'down_proj'];
const fused: readonly LinearModule[] = ['qkv_proj', 'o_proj', 'gate_up_proj', 'down_proj'];

/** The linear layers of each decoder layer of this model, in file order. */
export function linearModules(config: Pick<DecoderConfig, 'hasFusedProjections'>): readonly LinearModule[] {
  return config.hasFusedProjections ? fused : separate;
}

/** [out, in] of a linear layer. */
export function linearShape(config: DecoderConfig, module: LinearModule): readonly [number, number] {
  const queryWidth = config.heads * config.headSize;
  const keyWidth = config.kvHeads * config.headSize;
  const shapes: { readonly [K in LinearModule]: readonly [number, number] } = {
    q_proj: [queryWidth, config.width],
    k_proj: [keyWidth, config.width],
    v_proj: [keyWidth, config.width],
    qkv_proj: [queryWidth + 2 * keyWidth, config.width],
    o_proj: [config.width, queryWidth],
    gate_proj: [config.ffWidth, config.width],
    up_proj: [config.ffWidth, config.width],
    gate_up_proj: [2 * config.ffWidth, config.width],
    down_proj: [config.width, config.ffWidth],
  };
  return shapes[module];
}

/** Full name of a linear layer's weight without its `.weight`, e.g. `model.layers.0.self_attn.q_proj`. */
export function linearName(layer: number, module: LinearModule): string {
  const isMlp = mlpModules.some((name) => name === module);
  return `model.layers.${layer}.${isMlp ? 'mlp' : 'self_attn'}.${module}`;
}

function hasBias(config: DecoderConfig, module: LinearModule): boolean {
  if (mlpModules.some((name) => name === module)) return config.hasMlpBias;
  return module === 'o_proj' ? config.hasOutputBias : config.hasAttentionBias;
}

/** Every parameter of the model in file order. */
export function parameterShapes(config: DecoderConfig): Map<string, readonly number[]> {
  const shapes = new Map<string, readonly number[]>();
  shapes.set('model.embed_tokens.weight', [config.vocabSize, config.width]);
  for (let layer = 0; layer < config.layers; layer++) {
    const prefix = `model.layers.${layer}`;
    shapes.set(`${prefix}.input_layernorm.weight`, [config.width]);
    for (const module of linearModules(config)) {
      const [outSize, inSize] = linearShape(config, module);
      shapes.set(`${linearName(layer, module)}.weight`, [outSize, inSize]);
      if (hasBias(config, module)) shapes.set(`${linearName(layer, module)}.bias`, [outSize]);
    }
    if (config.hasQkNorm) {
      shapes.set(`${prefix}.self_attn.q_norm.weight`, [config.headSize]);
      shapes.set(`${prefix}.self_attn.k_norm.weight`, [config.headSize]);
    }
    shapes.set(`${prefix}.post_attention_layernorm.weight`, [config.width]);
    if (config.hasPostNorms) {
      shapes.set(`${prefix}.pre_feedforward_layernorm.weight`, [config.width]);
      shapes.set(`${prefix}.post_feedforward_layernorm.weight`, [config.width]);
    }
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

export function countParameters(parameters: Parameters): number {
  return countValues([...parameters.values()].map(({ shape }) => shape));
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
