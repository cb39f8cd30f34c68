/**
 * The decoder's forward pass as a function over graphs: Llama, Qwen2 and Qwen3 (RMSNorm, RoPE, grouped-query attention, SwiGLU,
 * q/k norm by config), with an unmerged LoRA adapter on any linear layer. Layer 2.
 * Sampler and trainer both call it, so that both run the same operators: this is what makes their logprobs equal bit for bit.
 * Source: Hugging Face `modeling_llama.py` and `modeling_qwen3.py`. Leaves out sliding windows, rope scaling and dropout.
 */
import type { DecoderConfig } from '../formats/hf-config.ts';
import {
  add,
  gatherRows,
  input,
  logSoftmax,
  matmul,
  mul,
  reshape,
  rmsNorm,
  rope,
  silu,
  softmax,
  splitRows,
  type Tensor,
  transpose,
} from '../graph/builder.ts';
import { type Dim, divideDims, multiplyDims, type Shape } from '../graph/sizes.ts';
import { type LoraSpec, loraShapes, loraTensorName } from './lora.ts';
import { type LinearModule, linearName, parameterShapes } from './parameters.ts';

/** Graph inputs of a model: every parameter by its Hugging Face name, adapters by their PEFT name. */
export interface DecoderTensors {
  readonly config: DecoderConfig;
  readonly lora: LoraSpec | null;
  readonly parameters: ReadonlyMap<string, Tensor>;
}

/** Declares every weight of the model, and of its adapter, as a graph input. */
export function declareDecoder(config: DecoderConfig, lora: LoraSpec | null): DecoderTensors {
  const parameters = new Map<string, Tensor>();
  const declare = (shapes: ReadonlyMap<string, Shape>): void => {
    for (const [name, shape] of shapes) parameters.set(name, input(name, shape));
  };
  declare(parameterShapes(config));
  if (lora) declare(loraShapes(config, lora));
  return { config, lora, parameters };
}

/** What one pass reads beside the parameters. `mask` is 0 where a query may see a key and −1e30 elsewhere. */
export interface DecoderInputs {
  readonly tokenIds: Tensor; // int64 [B, T]
  readonly positions: Tensor; // int64 [B, T]
  readonly mask: Tensor; // [B, 1, G*T, S]; the query rows of a kv head are its G heads one after the other
  readonly cos: Tensor; // [P, C/2]
  readonly sin: Tensor; // [P, C/2]
}

/**
 * Turns the keys and values of this pass, [B, K, T, C] with RoPE applied, into those that queries read, [B, K, S, C]. In training
 * it is the identity; with a KV cache it puts them among the cached ones, each at its own index.
 */
export type KeyValueRoute = (
  layer: number,
  keys: Tensor,
  values: Tensor,
) => { readonly keys: Tensor; readonly values: Tensor };

/** Training: queries read the keys and values of their own pass. */
export const withoutCache: KeyValueRoute = (_layer, keys, values) => ({ keys, values });

/** Declares the inputs of a pass. S is 'T' without a cache. */
export function declareInputs(config: DecoderConfig, keyAxis: 'T' | 'S'): DecoderInputs {
  const tables = (name: string): Tensor => input(name, ['P', config.headSize / 2]);
  return {
    tokenIds: input('tokenIds', ['B', 'T'], 'int64'),
    positions: input('positions', ['B', 'T'], 'int64'),
    mask: input('mask', ['B', 1, multiplyDims([config.heads / config.kvHeads, 'T']), keyAxis]),
    cos: tables('cos'),
    sin: tables('sin'),
  };
}

/**
 * The residual stream after the last layer, before the final norm: [B·T, D]. Everything but attention works on rows: one product over
 * all rows is a third faster than a batch of B products.
 */
export function decoderHidden(model: DecoderTensors, inputs: DecoderInputs, route: KeyValueRoute): Tensor {
  let x = embedTokens(model, inputs.tokenIds);
  for (let layer = 0; layer < model.config.layers; layer++) {
    const { queries, keys, values } = projectAttention(model, layer, x, inputs);
    const seen = route(layer, keys, values);
    x = finishLayer(model, layer, x, attend(model.config, queries, seen.keys, seen.values, inputs.mask));
  }
  return x;
}

/** The residual stream before the first layer, [B·T, D]. */
export function embedTokens(model: DecoderTensors, tokenIds: Tensor): Tensor {
  const embedded = gatherRows(parameter(model, 'model.embed_tokens.weight'), tokenIds);
  return reshape(embedded, [multiplyDims(tokenIds.shape), model.config.width]);
}

/** What attention of one layer reads, with RoPE applied. */
export interface AttentionTensors {
  readonly queries: Tensor; // [B, H, T, C]
  readonly keys: Tensor; // [B, K, T, C]
  readonly values: Tensor; // [B, K, T, C]
}

/** First part of a layer: norm, projections, rotary embedding of the residual stream x [B·T, D]. */
export function projectAttention(
  model: DecoderTensors,
  layer: number,
  x: Tensor,
  inputs: Pick<DecoderInputs, 'tokenIds' | 'positions' | 'cos' | 'sin'>,
): AttentionTensors {
  const { heads, kvHeads, headSize, hasQkNorm } = model.config;
  const normed = norm(model, x, `model.layers.${layer}.input_layernorm.weight`);
  const project = (module: LinearModule, count: number, normName: string | null): Tensor => {
    let y = splitRows(linear(model, layer, module, normed), inputs.tokenIds, [count, headSize]);
    if (normName && hasQkNorm) y = norm(model, y, `model.layers.${layer}.self_attn.${normName}.weight`);
    return transpose(y, [0, 2, 1, 3]);
  };
  const rotate = (y: Tensor): Tensor => rope(y, inputs.positions, inputs.cos, inputs.sin);
  return {
    queries: rotate(project('q_proj', heads, 'q_norm')),
    keys: rotate(project('k_proj', kvHeads, 'k_norm')),
    values: project('v_proj', kvHeads, null),
  };
}

/** Scaled dot-product attention of queries [B, H, T, C] over keys and values [B, K, S, C]: [B, K, G*T, C]. */
export function attend(config: DecoderConfig, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor): Tensor {
  const { heads, kvHeads, headSize } = config;
  const [batch, , time] = queries.shape as readonly [Dim, Dim, Dim];
  const grouped = reshape(queries, [batch, kvHeads, multiplyDims([heads / kvHeads, time]), headSize]);
  const scores = matmul(grouped, keys, { transB: true, alpha: 1 / Math.sqrt(headSize) }); // [B, K, G*T, S]
  return matmul(softmax(add(scores, mask)), values);
}

/** Second part of a layer: output projection of `mixed` [B, K, G*T, C] and MLP, each added to the residual stream x [B·T, D]. */
export function finishLayer(model: DecoderTensors, layer: number, x: Tensor, mixed: Tensor): Tensor {
  const { heads, kvHeads, headSize } = model.config;
  const [batch, , queryRows] = mixed.shape as readonly [Dim, Dim, Dim];
  const time = divideDims(queryRows, heads / kvHeads);
  const perHead = reshape(mixed, [batch, heads, time, headSize]);
  const joined = reshape(transpose(perHead, [0, 2, 1, 3]), [x.shape[0]!, heads * headSize]);
  const attended = add(x, linear(model, layer, 'o_proj', joined));
  const mlpIn = norm(model, attended, `model.layers.${layer}.post_attention_layernorm.weight`);
  return add(attended, swiGlu(model, layer, mlpIn));
}

/**
 * Log-probabilities over the vocabulary at chosen places: [M, V].
 * `rows` int64 [M] counts places of `hidden` as b·T + t; `inverseTemperatures` is [M, 1].
 */
export function decoderLogprobs(
  model: DecoderTensors,
  hidden: Tensor,
  rows: Tensor,
  inverseTemperatures: Tensor,
): Tensor {
  const { config } = model;
  const chosen = norm(model, gatherRows(hidden, rows), 'model.norm.weight');
  const head = config.isEmbeddingTied ? 'model.embed_tokens.weight' : 'lm_head.weight';
  return logSoftmax(mul(matmul(chosen, parameter(model, head), { transB: true }), inverseTemperatures));
}

function parameter(model: DecoderTensors, name: string): Tensor {
  return model.parameters.get(name)!;
}

function norm(model: DecoderTensors, x: Tensor, name: string): Tensor {
  return rmsNorm(x, parameter(model, name), model.config.normEpsilon);
}

/** `x · Wᵀ (+ bias) + (alpha / rank) · (x · Aᵀ) · Bᵀ` */
function linear(model: DecoderTensors, layer: number, module: LinearModule, x: Tensor): Tensor {
  const name = linearName(layer, module);
  let y = matmul(x, parameter(model, `${name}.weight`), { transB: true });
  const bias = model.parameters.get(`${name}.bias`);
  if (bias) y = add(y, bias);
  const { lora } = model;
  if (!lora?.targetModules.includes(module)) return y;
  const down = matmul(x, parameter(model, loraTensorName(layer, module, 'A')), { transB: true });
  const up = matmul(down, parameter(model, loraTensorName(layer, module, 'B')), {
    transB: true,
    alpha: lora.alpha / lora.rank,
  });
  return add(y, up);
}

function swiGlu(model: DecoderTensors, layer: number, x: Tensor): Tensor {
  const gated = mul(silu(linear(model, layer, 'gate_proj', x)), linear(model, layer, 'up_proj', x));
  return linear(model, layer, 'down_proj', gated);
}
