/**
 * Tensor names of GGUF files, to and from Hugging Face's, for each architecture that is read and written. Layer 1.
 * Source: llama.cpp gguf-py/gguf/tensor_mapping.py and src/llama-arch.cpp.
 */
import type { ModelType } from './hf-config.ts';

type Modules = Readonly<Record<string, string>>;

export type GgufArchitecture = 'llama' | 'qwen2' | 'qwen3' | 'gemma3' | 'phi3';

/** `general.architecture` of a model; a file of Mistral says llama. */
export const ggufArchitectures: { readonly [M in ModelType]: GgufArchitecture } = {
  llama: 'llama',
  mistral: 'llama',
  qwen2: 'qwen2',
  qwen3: 'qwen3',
  gemma3_text: 'gemma3',
  phi3: 'phi3',
};

/** Hugging Face's module outside the layers → GGUF's. */
const outerModules: Modules = { 'model.embed_tokens': 'token_embd', 'model.norm': 'output_norm', lm_head: 'output' };

const plainModules: Modules = {
  input_layernorm: 'attn_norm',
  'self_attn.q_proj': 'attn_q',
  'self_attn.k_proj': 'attn_k',
  'self_attn.v_proj': 'attn_v',
  'self_attn.o_proj': 'attn_output',
  post_attention_layernorm: 'ffn_norm',
  'mlp.gate_proj': 'ffn_gate',
  'mlp.up_proj': 'ffn_up',
  'mlp.down_proj': 'ffn_down',
};
const qkNorms: Modules = { 'self_attn.q_norm': 'attn_q_norm', 'self_attn.k_norm': 'attn_k_norm' };

/** Hugging Face's module of a layer → GGUF's. Every layer of a model of the architecture has all of them. */
const layerModules: { readonly [A in GgufArchitecture]: Modules } = {
  llama: plainModules,
  qwen2: plainModules,
  qwen3: { ...plainModules, ...qkNorms },
  gemma3: {
    ...plainModules,
    ...qkNorms,
    post_attention_layernorm: 'post_attention_norm',
    pre_feedforward_layernorm: 'ffn_norm',
    post_feedforward_layernorm: 'post_ffw_norm',
  },
  phi3: {
    input_layernorm: 'attn_norm',
    'self_attn.qkv_proj': 'attn_qkv',
    'self_attn.o_proj': 'attn_output',
    post_attention_layernorm: 'ffn_norm',
    'mlp.gate_up_proj': 'ffn_up',
    'mlp.down_proj': 'ffn_down',
  },
};

/** GGUF's name of a parameter such as `model.layers.0.mlp.up_proj.weight`; null if it has none. */
export function toGgufName(hfName: string, architecture: GgufArchitecture): string | null {
  const [, layer, module = '', kind] = /^(?:model\.layers\.(\d+)\.)?(.+)\.(weight|bias)$/.exec(hfName) ?? [];
  const name = Object.entries(layer === undefined ? outerModules : layerModules[architecture]).find(
    ([hf]) => hf === module,
  )?.[1];
  if (name === undefined) return null;
  return `${layer === undefined ? '' : `blk.${layer}.`}${name}.${kind}`;
}

/** Hugging Face's name of a tensor such as `blk.0.ffn_up.weight`; null if the architecture has no such parameter. */
export function toHfName(ggufName: string, architecture: GgufArchitecture): string | null {
  const [, layer, module = '', kind] = /^(?:blk\.(\d+)\.)?(.+)\.(weight|bias)$/.exec(ggufName) ?? [];
  const name = Object.entries(layer === undefined ? outerModules : layerModules[architecture]).find(
    ([, gguf]) => gguf === module,
  )?.[0];
  if (name === undefined) return null;
  return `${layer === undefined ? '' : `model.layers.${layer}.`}${name}.${kind}`;
}

/** GGUF's names of the weights that a model must have; `output.weight` is missing where the embedding is the output. */
export function requiredTensors(architecture: GgufArchitecture, layers: number): string[] {
  const ofLayer = (layer: number): string[] =>
    Object.values(layerModules[architecture]).map((name) => `blk.${layer}.${name}.weight`);
  const outer = ['token_embd.weight', 'output_norm.weight'];
  return [...outer, ...Array.from({ length: layers }, (_, layer) => ofLayer(layer)).flat()];
}

/** Whether rows of a parameter stand in another order in GGUF: Llama's q and k, whose halves of a head are interleaved. */
export function isRowPermuted(hfName: string, architecture: GgufArchitecture): boolean {
  return architecture === 'llama' && /\.self_attn\.[qk]_proj\.(weight|bias)$/.test(hfName);
}

/** What a GGUF file adds to the values of a parameter: 1 on Gemma's norms, whose weights Hugging Face stores less 1. */
export function addedInGguf(hfName: string, architecture: GgufArchitecture): number {
  return architecture === 'gemma3' && /norm\.weight$/.test(hfName) ? 1 : 0;
}
