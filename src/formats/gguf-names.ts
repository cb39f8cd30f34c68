/**
 * Tensor names of GGUF files, to and from Hugging Face's, for each architecture that is read and written. Layer 1.
 * Source: llama.cpp gguf-py/gguf/tensor_mapping.py and src/llama-arch.cpp.
 */
import type { ModelType } from './hf-config.ts';

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
const outerModules = { 'model.embed_tokens': 'token_embd', 'model.norm': 'output_norm', lm_head: 'output' };

/** Hugging Face's module of a layer → GGUF's. */
const layerModules = {
  input_layernorm: 'attn_norm',
  'self_attn.q_proj': 'attn_q',
  'self_attn.k_proj': 'attn_k',
  'self_attn.v_proj': 'attn_v',
  'self_attn.qkv_proj': 'attn_qkv',
  'self_attn.o_proj': 'attn_output',
  'self_attn.q_norm': 'attn_q_norm',
  'self_attn.k_norm': 'attn_k_norm',
  post_attention_layernorm: 'ffn_norm',
  'mlp.gate_proj': 'ffn_gate',
  'mlp.up_proj': 'ffn_up',
  'mlp.gate_up_proj': 'ffn_up',
  'mlp.down_proj': 'ffn_down',
};

/** Gemma has norms before and after, so that the same name means another place; Phi's `ffn_up` is gate and up in one. */
const otherModules: { readonly [A in GgufArchitecture]?: Readonly<Record<string, string>> } = {
  gemma3: {
    post_attention_layernorm: 'post_attention_norm',
    pre_feedforward_layernorm: 'ffn_norm',
    post_feedforward_layernorm: 'post_ffw_norm',
  },
};

/** GGUF's name of a parameter such as `model.layers.0.mlp.up_proj.weight`; null if it has none. */
export function toGgufName(hfName: string, architecture: GgufArchitecture): string | null {
  const [, layer, module = '', kind] = /^(?:model\.layers\.(\d+)\.)?(.+)\.(weight|bias)$/.exec(hfName) ?? [];
  const modules: Readonly<Record<string, string>> =
    layer === undefined ? outerModules : { ...layerModules, ...otherModules[architecture] };
  const name = Object.hasOwn(modules, module) ? modules[module] : undefined;
  if (name === undefined) return null;
  return `${layer === undefined ? '' : `blk.${layer}.`}${name}.${kind}`;
}

/** Whether rows of a parameter stand in another order in GGUF: Llama's q and k, whose halves of a head are interleaved. */
export function isRowPermuted(hfName: string, architecture: GgufArchitecture): boolean {
  return architecture === 'llama' && /\.self_attn\.[qk]_proj\.(weight|bias)$/.test(hfName);
}

/** What a GGUF file adds to the values of a parameter: 1 on Gemma's norms, whose weights Hugging Face stores less 1. */
export function addedInGguf(hfName: string, architecture: GgufArchitecture): number {
  return architecture === 'gemma3' && /norm\.weight$/.test(hfName) ? 1 : 0;
}
