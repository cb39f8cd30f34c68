/**
 * The decoder's forward pass as a function over graphs: RMSNorm, RoPE, grouped-query attention and a gated MLP, with what the families
 * of `hf-config.ts` add by config, and an unmerged LoRA adapter on any linear layer. Layer 2.
 * Sampler and trainer both call it, so that both run the same operators: this is what makes their logprobs equal bit for bit.
 * Source: transformers `modeling_{llama,mistral,qwen2,qwen3,gemma3,phi3}.py`. Leaves out dropout.
 */
import type { DecoderConfig } from '../formats/hf-config.ts';
import {
  add,
  concat,
  div,
  gatherRows,
  geluTanh,
  input,
  logSoftmax,
  matmul,
  matmulAdd,
  mul,
  reshape,
  rmsNorm,
  rope,
  silu,
  slice,
  softmax,
  splitRows,
  type Tensor,
  tanh,
  transpose,
} from '../graph/builder.ts';
import { type Dim, divideDims, multiplyDims, type Shape } from '../graph/sizes.ts';
import { isSlidingLayer, type LayerKind, layerKind, maskNames } from './attention-masks.ts';
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

/**
 * What one pass reads beside the parameters. The graph has those inputs that its layers use, no others: masks for the kinds that
 * `layerKinds` lists (`attention-masks.ts` says what they hold), and the tables that `createRopeFeeds` returns.
 */
export interface DecoderInputs extends RotaryInputs {
  readonly mask: Tensor; // [B, 1, G*T, S]; the query rows of a kv head are its G heads one after the other
  readonly slidingMask: Tensor; // [B, 1, G*T, S]
}

/** What rotary embeddings read; `localCos` and `localSin` belong to sliding layers of a model with `localRopeTheta`. */
export interface RotaryInputs {
  readonly tokenIds: Tensor; // int64 [B, T]
  readonly positions: Tensor; // int64 [B, T]
  readonly cos: Tensor; // [P, rotarySize/2]
  readonly sin: Tensor; // [P, rotarySize/2]
  readonly localCos: Tensor; // [P, rotarySize/2]
  readonly localSin: Tensor; // [P, rotarySize/2]
}

/** The mask that `attend` reads in this layer. */
export function layerMask(
  config: DecoderConfig,
  layer: number,
  inputs: Pick<DecoderInputs, 'mask' | 'slidingMask'>,
): Tensor {
  return inputs[maskNames[layerKind(config, layer)]];
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
  const table = (name: string): Tensor => input(name, ['P', (config.rotarySize ?? config.headSize) / 2]);
  const mask = (kind: LayerKind): Tensor =>
    input(maskNames[kind], ['B', 1, multiplyDims([config.heads / config.kvHeads, 'T']), keyAxis]);
  return {
    tokenIds: input('tokenIds', ['B', 'T'], 'int64'),
    positions: input('positions', ['B', 'T'], 'int64'),
    mask: mask('full'),
    slidingMask: mask('sliding'),
    cos: table('cos'),
    sin: table('sin'),
    localCos: table('localCos'),
    localSin: table('localSin'),
  };
}

/**
 * The residual stream after the last layer, before the final norm: [B·T, D]. Everything but attention works on rows: one product over
 * all rows is a third faster than a batch of B products. With `rows` it is [M, D]: after its attention the last layer computes those alone,
 * as rows of `decoderLogits`, of which there must be 2 at least for the same bits.
 */
export function decoderHidden(
  model: DecoderTensors,
  inputs: DecoderInputs,
  route: KeyValueRoute,
  rows: Tensor | null = null,
): Tensor {
  let x = embedTokens(model, inputs.tokenIds);
  for (let layer = 0; layer < model.config.layers; layer++) {
    const { queries, keys, values } = projectAttention(model, layer, x, inputs);
    const seen = route(layer, keys, values);
    const mask = layerMask(model.config, layer, inputs);
    const mixed = attend(model.config, queries, seen.keys, seen.values, mask);
    x = finishLayer(model, layer, x, mixed, layer === model.config.layers - 1 ? rows : null);
  }
  return x;
}

/** The residual stream before the first layer, [B·T, D]. */
export function embedTokens(model: DecoderTensors, tokenIds: Tensor): Tensor {
  const embedded = gatherRows(parameter(model, 'model.embed_tokens.weight'), tokenIds);
  const rows = reshape(embedded, [multiplyDims(tokenIds.shape), model.config.width]);
  return scaled(rows, model.config.embeddingScale);
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
  inputs: RotaryInputs,
): AttentionTensors {
  const { heads, kvHeads, headSize, hasQkNorm } = model.config;
  const normed = norm(model, x, `model.layers.${layer}.input_layernorm.weight`);
  const [q, k, v] = projectQkv(model, layer, normed);
  const perHead = (y: Tensor, count: number, normName: string | null): Tensor => {
    let split = splitRows(y, inputs.tokenIds, [count, headSize]);
    if (normName && hasQkNorm) split = norm(model, split, `model.layers.${layer}.self_attn.${normName}.weight`);
    return transpose(split, [0, 2, 1, 3]);
  };
  return {
    queries: rotate(model.config, layer, perHead(q, heads, 'q_norm'), inputs),
    keys: rotate(model.config, layer, perHead(k, kvHeads, 'k_norm'), inputs),
    values: perHead(v, kvHeads, null),
  };
}

function projectQkv(model: DecoderTensors, layer: number, x: Tensor): readonly [Tensor, Tensor, Tensor] {
  if (!model.config.hasFusedProjections) {
    return [linear(model, layer, 'q_proj', x), linear(model, layer, 'k_proj', x), linear(model, layer, 'v_proj', x)];
  }
  const { heads, kvHeads, headSize } = model.config;
  const fused = linear(model, layer, 'qkv_proj', x);
  const keyStart = heads * headSize;
  const valueStart = keyStart + kvHeads * headSize;
  return [
    slice(fused, -1, 0, keyStart),
    slice(fused, -1, keyStart, valueStart),
    slice(fused, -1, valueStart, valueStart + kvHeads * headSize),
  ];
}

/** Turns the leading `rotarySize` channels of y [B, H, T, C] by the layer's table. */
function rotate(config: DecoderConfig, layer: number, y: Tensor, inputs: RotaryInputs): Tensor {
  const isLocal = config.localRopeTheta !== null && isSlidingLayer(config, layer);
  const [cos, sin] = isLocal ? [inputs.localCos, inputs.localSin] : [inputs.cos, inputs.sin];
  const { headSize, rotarySize } = config;
  if (rotarySize === null || rotarySize === headSize) return rope(y, inputs.positions, cos, sin);
  const turned = rope(slice(y, -1, 0, rotarySize), inputs.positions, cos, sin);
  return concat([turned, slice(y, -1, rotarySize, headSize)], -1);
}

/** Factor of q·k. */
export function attentionScale({ queryScale, headSize }: Pick<DecoderConfig, 'queryScale' | 'headSize'>): number {
  return queryScale ?? 1 / Math.sqrt(headSize);
}

/**
 * Scaled dot-product attention of queries [B, H, T, C] over keys and values [B, K, S, C]: [B, K, G*T, C]. `mask` is that of
 * `layerMask`.
 */
export function attend(config: DecoderConfig, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor): Tensor {
  const { heads, kvHeads, headSize } = config;
  const [batch, , time] = queries.shape as readonly [Dim, Dim, Dim];
  const grouped = reshape(queries, [batch, kvHeads, multiplyDims([heads / kvHeads, time]), headSize]);
  const scores = matmul(grouped, keys, { transB: true, alpha: attentionScale(config) }); // [B, K, G*T, S]
  return matmul(softmax(add(scores, mask)), values);
}

/**
 * Second part of a layer: output projection of `mixed` [B, K, G*T, C] and MLP, each added to the residual stream [B·T, D]. With `rows`
 * only those go on, [M, D].
 */
export function finishLayer(
  model: DecoderTensors,
  layer: number,
  residual: Tensor,
  mixed: Tensor,
  rows: Tensor | null = null,
): Tensor {
  const { heads, kvHeads, headSize } = model.config;
  const [batch, , queryRows] = mixed.shape as readonly [Dim, Dim, Dim];
  const time = divideDims(queryRows, heads / kvHeads);
  const perHead = reshape(mixed, [batch, heads, time, headSize]);
  const joined = reshape(transpose(perHead, [0, 2, 1, 3]), [residual.shape[0]!, heads * headSize]);
  const chosen = (of: Tensor): Tensor => (rows === null ? of : gatherRows(of, rows));
  const x = chosen(residual);
  const attention = linear(model, layer, 'o_proj', chosen(joined));
  const prefix = `model.layers.${layer}`;
  if (!model.config.hasPostNorms) {
    const attended = add(x, attention);
    return add(attended, gatedMlp(model, layer, norm(model, attended, `${prefix}.post_attention_layernorm.weight`)));
  }
  const attended = add(x, norm(model, attention, `${prefix}.post_attention_layernorm.weight`));
  const mlp = gatedMlp(model, layer, norm(model, attended, `${prefix}.pre_feedforward_layernorm.weight`));
  return add(attended, norm(model, mlp, `${prefix}.post_feedforward_layernorm.weight`));
}

/**
 * Logits over the vocabulary at chosen places: [M, V]. `rows` int64 [M] counts places of `hidden` [B·T, D] as b·T + t; null takes all rows
 * of `hidden`.
 */
export function decoderLogits(model: DecoderTensors, hidden: Tensor, rows: Tensor | null): Tensor {
  const { config } = model;
  const chosen = norm(model, rows === null ? hidden : gatherRows(hidden, rows), 'model.norm.weight');
  const head = config.isEmbeddingTied ? 'model.embed_tokens.weight' : 'lm_head.weight';
  return softcapped(matmul(chosen, parameter(model, head), { transB: true }), config.logitSoftcap);
}

/** Logits at the temperature, as `decoderLogits`; `inverseTemperatures` is [M, 1]. */
export function scaledLogits(
  model: DecoderTensors,
  hidden: Tensor,
  rows: Tensor | null,
  inverseTemperatures: Tensor,
): Tensor {
  return mul(decoderLogits(model, hidden, rows), inverseTemperatures);
}

/** Log-probabilities over the vocabulary at chosen places: those of `scaledLogits`. */
export function decoderLogprobs(
  model: DecoderTensors,
  hidden: Tensor,
  rows: Tensor | null,
  inverseTemperatures: Tensor,
): Tensor {
  return logSoftmax(scaledLogits(model, hidden, rows, inverseTemperatures));
}

function parameter(model: DecoderTensors, name: string): Tensor {
  return model.parameters.get(name)!;
}

function norm(model: DecoderTensors, x: Tensor, name: string): Tensor {
  const { normEpsilon, normOffset } = model.config;
  const weight = parameter(model, name);
  return rmsNorm(x, normOffset === 0 ? weight : add(weight, normOffset), normEpsilon);
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
  return matmulAdd(down, parameter(model, loraTensorName(layer, module, 'B')), y, {
    transB: true,
    alpha: lora.alpha / lora.rank,
  });
}

function gatedMlp(model: DecoderTensors, layer: number, x: Tensor): Tensor {
  const [gate, up] = projectGateUp(model, layer, x);
  const activated = model.config.activation === 'silu' ? silu(gate) : geluTanh(gate);
  return linear(model, layer, 'down_proj', mul(activated, up));
}

function projectGateUp(model: DecoderTensors, layer: number, x: Tensor): readonly [Tensor, Tensor] {
  if (!model.config.hasFusedProjections) {
    return [linear(model, layer, 'gate_proj', x), linear(model, layer, 'up_proj', x)];
  }
  const { ffWidth } = model.config;
  const fused = linear(model, layer, 'gate_up_proj', x);
  return [slice(fused, -1, 0, ffWidth), slice(fused, -1, ffWidth, 2 * ffWidth)];
}

function scaled(x: Tensor, factor: number): Tensor {
  return factor === 1 ? x : mul(x, factor);
}

function softcapped(x: Tensor, cap: number | null): Tensor {
  return cap === null ? x : mul(tanh(div(x, cap)), cap);
}
