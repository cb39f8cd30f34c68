/**
 * The graph of a pass over one new token of each sequence. Layer 3.
 * It only reads the cached keys and values, among which the new token's row is still zero. What that row would add comes beside it, with
 * the bits of attention over all keys:
 * - its score is added to the zero that the empty row gives;
 * - the sum over values ends with it, since later keys have probability 0, and a product [I | p] × [sum so far; v] appends that last
 *   term by the very multiply-add that the sum would use;
 * - the sum runs in blocks (`attentionBlock`), each added to those before. So what comes before the block of the new token, the head of a
 *   sequence, is a product of its own, and sequences with the same head share it: their queries are rows of one product.
 */
import type { DecoderConfig } from '../formats/hf-config.ts';
import { minProductRows } from '../graph/bit-exact.ts';
import {
  add,
  addAlongLast,
  concat,
  concatLike,
  type Graph,
  gatherRows,
  input,
  makeGraph,
  matmul,
  reshape,
  slice,
  sliceLike,
  softmax,
  type Tensor,
  takeAlongLast,
  transpose,
} from '../graph/builder.ts';
import { multiplyDims } from '../graph/sizes.ts';
import { maskNames } from '../nn/attention-masks.ts';
import {
  type AttentionTensors,
  attentionScale,
  declareDecoder,
  declareInputs,
  embedTokens,
  finishLayer,
  layerMask,
  projectAttention,
  scaledLogits,
} from '../nn/decoder.ts';
import type { LoraSpec } from '../nn/lora.ts';
import { rowOutputs } from './row-choice.ts';

/** Channels that one block of a score's sum takes. */
const SCORE_BLOCK = 128;

/** Query rows of a kv head: a single one is doubled. */
export function queryRows({ heads, kvHeads }: DecoderConfig): number {
  return Math.max(minProductRows, heads / kvHeads);
}

/** Whether the graph has the bits of other passes. */
export function isExactDecode(config: DecoderConfig): boolean {
  // The score of a new key is a sum of scaled parts beyond 128 channels, and scaling by a power of 2 alone is exact.
  return config.headSize <= SCORE_BLOCK || Number.isInteger(Math.log2(attentionScale(config)));
}

/** Where heads are read: R different ones of H keys, each by up to N sequences; W = H + S. */
interface HeadTensors {
  readonly keys: Tensor; // [R, K, H, C]
  readonly values: Tensor; // [R, K, H, C]
  readonly slotOf: Tensor; // int64 [R, N]: the slots that read a head; any slot where there are fewer
  readonly placeOf: Tensor; // int64 [B]: r·N + n of a slot
}

interface SlabTensors {
  readonly keys: Tensor; // [B, K, S, C]
  readonly values: Tensor; // [B, K, S, C]
  readonly newKey: Tensor; // int64 [B, K, G, 1]: row of the new token
  readonly identity: Tensor; // [B, K, G, G]
  readonly mask: Tensor; // [B, 1, 1, W]
  readonly head: HeadTensors | null;
}

/** B sequences, S keys from the block of the new token on. Ids from `vocabSize` on are never drawn. */
export function decodeGraph(config: DecoderConfig, lora: LoraSpec | null, vocabSize: number, hasHeads: boolean): Graph {
  const model = declareDecoder(config, lora);
  const { kvHeads, headSize } = config;
  const mask = (name: string): Tensor => input(name, ['B', 1, 1, hasHeads ? 'W' : 'S']);
  const inputs = {
    ...declareInputs(config, 'S'),
    tokenIds: input('tokenIds', ['B', 1], 'int64'),
    positions: input('positions', ['B', 1], 'int64'),
    mask: mask(maskNames.full),
    slidingMask: mask(maskNames.sliding),
  };
  const newKey = input('newKey', ['B', kvHeads, queryRows(config), 1], 'int64');
  const identity = input('identity', ['B', kvHeads, queryRows(config), queryRows(config)]);
  const slotOf = input('slotOf', ['R', 'N'], 'int64');
  const placeOf = input('placeOf', ['B'], 'int64');
  const fresh: Tensor[] = [];
  let x = embedTokens(model, inputs.tokenIds);
  for (let layer = 0; layer < config.layers; layer++) {
    const parts = projectAttention(model, layer, x, inputs);
    fresh.push(...[parts.keys, parts.values].map((part) => reshape(part, [1, 'B', kvHeads * headSize])));
    const read = (name: string, slots: string, keys: string): Tensor =>
      input(`${name}.${layer}`, [slots, kvHeads, keys, headSize]);
    const head = { keys: read('headKeys', 'R', 'H'), values: read('headValues', 'R', 'H'), slotOf, placeOf };
    const mixed = attendNew(config, parts, {
      keys: read('keys', 'B', 'S'),
      values: read('values', 'B', 'S'),
      newKey,
      identity,
      mask: layerMask(config, layer, inputs),
      head: hasHeads ? head : null,
    });
    x = finishLayer(model, layer, x, mixed);
  }
  const logits = scaledLogits(model, x, input('logitRows', ['M'], 'int64'), input('inverseTemperatures', ['M', 1]));
  return makeGraph({ ...rowOutputs(logits, vocabSize), fresh: concat(fresh, 0) });
}

/** Attention of one new token over head, slab and itself: [B, K, G, C]. */
function attendNew(config: DecoderConfig, { queries, keys, values }: AttentionTensors, slabs: SlabTensors): Tensor {
  const { heads, kvHeads, headSize } = config;
  const queriesPerKey = heads / kvHeads;
  const single = reshape(queries, ['B', kvHeads, queriesPerKey, headSize]);
  const grouped = queriesPerKey < minProductRows ? concat([single, single], 2) : single;
  const score = (q: Tensor, k: Tensor): Tensor => matmul(q, k, { transB: true, alpha: attentionScale(config) });
  let newScore: Tensor | null = null;
  for (let at = 0; at < headSize; at += SCORE_BLOCK) {
    const part = (x: Tensor): Tensor =>
      headSize <= SCORE_BLOCK ? x : slice(x, 3, at, Math.min(headSize, at + SCORE_BLOCK));
    const partial = score(part(grouped), part(keys));
    newScore = newScore === null ? partial : add(newScore, partial);
  }
  const slabScores = addAlongLast(score(grouped, slabs.keys), slabs.newKey, newScore!);
  const { head } = slabs;
  const headScores = head && toSlots(score(toHeads(grouped, head), head.keys), head, config);
  const scores = headScores ? concatLike(headScores, slabScores, slabs.mask) : slabScores;
  const all = softmax(add(scores, slabs.mask));
  const probabilities = headScores ? sliceLike(all, slabScores, 'end') : all;
  const before = matmul(probabilities, slabs.values);
  const last = takeAlongLast(probabilities, slabs.newKey);
  const own = matmul(concat([slabs.identity, last], 3), concat([before, values], 2));
  const mixed =
    head && headScores
      ? add(toSlots(matmul(toHeads(sliceLike(all, headScores, 'start'), head), head.values), head, config), own)
      : own;
  return queriesPerKey < minProductRows ? slice(mixed, 2, 0, queriesPerKey) : mixed;
}

/** Rows of slots [B, K, G, X] by the head that they read: [R, K, N*G, X]. */
function toHeads(x: Tensor, { slotOf }: HeadTensors): Tensor {
  const [, kvHeads, rows, width] = x.shape;
  const byHead = transpose(gatherRows(x, slotOf), [0, 2, 1, 3, 4]); // [R, K, N, G, X]
  return reshape(byHead, ['R', kvHeads!, multiplyDims(['N', rows!]), width!]);
}

/** The reverse: [R, K, N*G, X] as [B, K, G, X]. */
function toSlots(x: Tensor, { placeOf }: HeadTensors, config: DecoderConfig): Tensor {
  const [, kvHeads, , width] = x.shape;
  const rows = queryRows(config);
  const bySlot = transpose(reshape(x, ['R', kvHeads!, 'N', rows, width!]), [0, 2, 1, 3, 4]); // [R, N, K, G, X]
  return gatherRows(reshape(bySlot, [multiplyDims(['R', 'N']), kvHeads!, rows, width!]), placeOf);
}
